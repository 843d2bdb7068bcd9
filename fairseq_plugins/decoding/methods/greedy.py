"""Greedy decoding on our engine, without drafts."""

from fairseq_plugins.decoding.method import (
    Method,
    MethodContext,
    MethodOptions,
    MethodSpec,
    NativeMethod,
    draft_and_verify,
)
from fairseq_plugins.decoding.reference.drafters import NoDrafter


def _build(context: MethodContext, options: MethodOptions) -> Method:
    return draft_and_verify(context, NoDrafter())


def _build_native(context: MethodContext, options: MethodOptions) -> NativeMethod:
    return NativeMethod(context.native_weights)


METHODS = [
    MethodSpec(
        name="greedy",
        summary="our engine without drafts, the output of --beam 1",
        drafts="none (k = 0)",
        accepts="-",
        paper="baseline, on our engine",
        build=_build,
        build_native=_build_native,
        order=10,
    )
]

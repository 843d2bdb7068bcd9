"""Greedy decoding on our engine, without drafts."""

from fairseq_plugins.decoding.method import (
    KernelMethod,
    Method,
    MethodContext,
    MethodOptions,
    MethodSpec,
    draft_and_verify,
)
from fairseq_plugins.decoding.reference.drafters import NoDrafter


def _build(context: MethodContext, options: MethodOptions) -> Method:
    return draft_and_verify(context, NoDrafter())


def _build_kernels(context: MethodContext, options: MethodOptions) -> KernelMethod:
    return KernelMethod(context.kernel_weights)


METHODS = [
    MethodSpec(
        name="greedy",
        summary="our engine without drafts, the output of --beam 1",
        drafts="none (k = 0)",
        accepts="-",
        paper="baseline, on our engine",
        build=_build,
        build_kernels=_build_kernels,
        order=10,
    )
]

"""Searches without drafts: fairseq's own, and greedy and beam search on our engine."""

from dataclasses import replace

from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.method import (
    KernelMethod,
    Method,
    MethodContext,
    MethodOptions,
    MethodSpec,
    draft_and_verify,
)
from fairseq_plugins.decoding.reference.beam_verifier import has_enough
from fairseq_plugins.decoding.reference.captured.graphed_verifiers import beam_verifier
from fairseq_plugins.decoding.reference.drafters import NoDrafter
from fairseq_plugins.decoding.reference.search.beam import BeamSearch


def _build(context: MethodContext, options: MethodOptions) -> Method:
    return draft_and_verify(context, NoDrafter())


def _build_kernels(context: MethodContext, options: MethodOptions) -> KernelMethod:
    return KernelMethod(context.kernel_weights)


def _build_beams(context: MethodContext, options: MethodOptions) -> Method:
    verifier = beam_verifier(context.models, context.engine, context.temperature, beam=context.beam)
    verifier.strategy = context.strategy
    return Method(verifier, NoDrafter(), BeamSearch(context.beam))


def _build_beam_kernels(context: MethodContext, options: MethodOptions) -> KernelMethod:
    if not has_enough(len(context.target), context.beam):
        raise Unsupported(
            f"--beam {context.beam}: is too wide for a vocabulary of {len(context.target)} on the kernels"
        )
    return KernelMethod(replace(context.kernel_weights, many_rows=True))


METHODS = [
    MethodSpec(
        name="beam",
        summary="fairseq's own search",
        drafts="none: fairseq's own `SequenceGenerator`",
        accepts="-",
        paper="baseline",
        order=0,
    ),
    MethodSpec(
        name="greedy",
        summary="our engine without drafts, the output of --beam 1",
        drafts="none (k = 0)",
        accepts="-",
        paper="baseline, on our engine",
        build=_build,
        build_kernels=_build_kernels,
        order=10,
    ),
    MethodSpec(
        name="fast-beam",
        summary="beam search on our engine, the output of beam with the same --beam",
        drafts="none (k = 0)",
        accepts="beam search",
        paper="baseline, on our engine",
        build=_build_beams,
        build_kernels=_build_beam_kernels,
        searches_beams=True,
        order=5,
    ),
]

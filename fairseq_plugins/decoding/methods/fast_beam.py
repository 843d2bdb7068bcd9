"""fairseq's beam search on our engine."""

from dataclasses import replace

from fairseq_plugins.decoding.method import Method, MethodContext, MethodOptions, MethodSpec, NativeMethod
from fairseq_plugins.decoding.native import NotNative
from fairseq_plugins.decoding.reference.beam_verifier import BeamVerifier, has_enough
from fairseq_plugins.decoding.reference.drafters import NoDrafter
from fairseq_plugins.decoding.reference.search.beam import BeamSearch


def _build(context: MethodContext, options: MethodOptions) -> Method:
    verifier = BeamVerifier(context.models, context.engine, context.temperature, beam=context.beam)
    verifier.strategy = context.strategy
    return Method(verifier, NoDrafter(), BeamSearch(context.beam))


def _build_native(context: MethodContext, options: MethodOptions) -> NativeMethod:
    if not has_enough(len(context.target), context.beam):
        raise NotNative(f"--beam {context.beam}: is too wide for a vocabulary of {len(context.target)} on the kernels")
    return NativeMethod(replace(context.native_weights, many_rows=True))


METHODS = [
    MethodSpec(
        name="fast-beam",
        summary="beam search on our engine, the output of beam with the same --beam",
        drafts="none (k = 0)",
        accepts="beam search",
        paper="baseline, on our engine",
        build=_build,
        build_native=_build_native,
        searches_beams=True,
        order=5,
    )
]

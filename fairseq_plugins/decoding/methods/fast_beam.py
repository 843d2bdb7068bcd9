"""fairseq's beam search on our engine."""

from dataclasses import replace

from fairseq_plugins.decoding.engine.layout import BeamLayout
from fairseq_plugins.decoding.engine.native import NotNative
from fairseq_plugins.decoding.method import Method, MethodContext, MethodOptions, MethodSpec, NativeMethod
from fairseq_plugins.decoding.methods.greedy import NoDrafter
from fairseq_plugins.decoding.search.beam import BeamSearch, best_candidates
from fairseq_plugins.decoding.state import Candidates, DecodingState, Draft
from fairseq_plugins.decoding.verifier import ModelEnsemble


class BeamVerifier(ModelEnsemble):
    """Runs the last token of every hypothesis and finds the best continuations of every sentence."""

    def verify(self, state: DecodingState, draft: Draft) -> Candidates:
        """Return the best continuations by one token; the draft is empty."""
        beams = state.beams
        assert beams is not None
        layout = BeamLayout(state.lengths, state.span, beams.size, beams.beam_ancestors)
        return best_candidates(state, self.log_probs(state.last_tokens()[:, 0], layout))


def _build(context: MethodContext, options: MethodOptions) -> Method:
    verifier = BeamVerifier(context.models, context.engine, context.temperature, beam=context.beam)
    return Method(verifier, NoDrafter(), BeamSearch(context.beam))


def _build_native(context: MethodContext, options: MethodOptions) -> NativeMethod:
    # With a smaller vocabulary fairseq continues with forbidden tokens.
    if len(context.target) < 2 * context.beam + 2:
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

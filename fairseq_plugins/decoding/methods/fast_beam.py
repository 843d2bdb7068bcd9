"""fairseq's beam search on our engine: its output, several times as fast."""

from fairseq_plugins.decoding.candidates import best_candidates
from fairseq_plugins.decoding.engine.layout import BeamLayout
from fairseq_plugins.decoding.method import Method, MethodOptions, MethodSpec, Parts
from fairseq_plugins.decoding.methods.greedy import NoDrafter
from fairseq_plugins.decoding.search.beam import BeamSearch
from fairseq_plugins.decoding.state import Candidates, DecodingState, Draft
from fairseq_plugins.decoding.verifier import Verifier


class BeamVerifier(Verifier):
    """Runs the last token of every hypothesis, and finds the best continuations of every sentence."""

    def verify(self, state: DecodingState, draft: Draft) -> Candidates:
        """The best continuations by one token; the draft is empty."""
        beams = state.beams
        assert beams is not None
        layout = BeamLayout(state.lengths, state.span, beams.size, beams.holders)
        tokens = state.last_tokens()[:, 0]
        if self.is_plain:
            found = self.decoders[0].best_continuations(tokens, layout, beams.scores, state.constraints)
            if found is not None:
                return Candidates(*found)
        return best_candidates(state, self._log_probs(tokens, layout))


def _build(parts: Parts, options: MethodOptions) -> Method:
    engine = parts.engine.for_many_rows()
    verifier = BeamVerifier(parts.models, engine, parts.temperature, beam=parts.beam)
    return Method(verifier, NoDrafter(), BeamSearch(parts.beam, engine))


METHODS = [
    MethodSpec(
        name="fast-beam",
        summary="beam search on our engine, the output of beam with the same --beam",
        drafts="none (k = 0)",
        accepts="beam search",
        paper="baseline, on our engine",
        build=_build,
        searches_beams=True,
        order=5,
    )
]

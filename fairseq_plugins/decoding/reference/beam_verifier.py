"""Verify for beam search: run the last tokens of hypotheses and select the best continuations."""

from typing import Any

from torch import Tensor

from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.layout import BeamLayout
from fairseq_plugins.decoding.reference.search.beam import best_candidates, select_candidates
from fairseq_plugins.decoding.reference.search.strategy import SearchStrategy
from fairseq_plugins.decoding.reference.state import DecodingState, Draft, Selection
from fairseq_plugins.decoding.reference.verifier import ModelEnsemble


class BeamVerifier(ModelEnsemble):
    """Runs the last token of every hypothesis and selects continuations of every sentence."""

    strategy: SearchStrategy | None = None  # another search of fairseq's; None for plain beam search

    def verify(self, state: DecodingState, draft: Draft) -> Selection:
        """Return the continuations by one token; the draft is empty."""
        beams = state.beams
        assert beams is not None
        layout = BeamLayout(state.lengths, state.span, beams.size, beams.beam_ancestors)
        candidates = best_candidates(state, self.log_probs(state.last_tokens()[:, 0], layout), self.strategy)
        return select_candidates(candidates, beams.scores, beams.ignored, state.constraints.eos, self.strategy)

    def start(self, sample: dict[str, Any]) -> EncoderOut:
        """Begin a batch as `ModelEnsemble.start` does."""
        if self.strategy is not None:
            self.strategy.start(sample, self.beam)
        return super().start(sample)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these sentences [B'], indices into the current batch."""
        if self.strategy is not None:
            self.strategy.select_rows(rows)
        super().select_rows(rows)


def has_enough(vocabulary: int, beam: int) -> bool:
    """Return whether no forbidden token can be among the best: with fewer tokens fairseq continues with such ones."""
    return vocabulary >= 2 * beam + 2

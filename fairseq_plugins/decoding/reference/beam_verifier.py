"""Verify for beam search: run the last tokens of hypotheses and select the best continuations."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.captured.graph_capture import Outputs
from fairseq_plugins.decoding.reference.captured.graphed_decoder import GraphedDecoder
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.layout import BeamLayout
from fairseq_plugins.decoding.reference.search.beam import best_candidates, select_candidates, select_on_device
from fairseq_plugins.decoding.reference.search.strategy import SearchStrategy
from fairseq_plugins.decoding.reference.state import Beams, DecodingState, Draft, Selection
from fairseq_plugins.decoding.reference.verifier import ModelEnsemble


class BeamVerifier(ModelEnsemble):
    """Runs the last token of every hypothesis and selects continuations of every sentence."""

    strategy: SearchStrategy | None = None  # another search of fairseq's; None for plain beam search

    def verify(self, state: DecodingState, draft: Draft) -> Selection:
        """Return the continuations by one token; the draft is empty."""
        beams, limits, decoder = state.beams, state.constraints, self.decoders[0]
        assert beams is not None
        layout = BeamLayout(state.lengths, state.span, beams.size, beams.beam_ancestors)
        is_plain = len(self.decoders) == 1 and limits.prefix is None and not limits.no_repeat_ngram_size
        is_plain &= self.strategy is None
        is_plain &= has_enough(len(decoder.decoder.dictionary), beams.size)
        if isinstance(decoder, GraphedDecoder) and is_plain:
            return self._verify_and_select(decoder, state, beams, layout)
        candidates = best_candidates(state, self.log_probs(state.last_tokens()[:, 0], layout), self.strategy)
        return select_candidates(candidates, beams.scores, beams.ignored, limits.eos, self.strategy)

    def start(self, sample: dict[str, Any]) -> EncoderOut:
        """Begin a batch: see `VerifierProtocol`."""
        if self.strategy is not None:
            self.strategy.start(sample, self.beam)
        return super().start(sample)

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these sentences [B'], indices into the current batch."""
        if self.strategy is not None:
            self.strategy.select_rows(rows)
        super().select_rows(rows)

    def _verify_and_select(
        self, decoder: GraphedDecoder, state: DecodingState, beams: Beams, layout: BeamLayout
    ) -> Selection:
        """Verify and select in one CUDA graph."""
        size, rows = beams.size, len(beams.scores)
        # The maximum length differs between batches, so it is an input of the graph.
        limits = replace(state.constraints, max_len=0)

        def select(hidden: Tensor, states: list[Tensor] | None, inputs: dict[str, Tensor]) -> Outputs:
            lengths = inputs["lengths"]
            log_probs = self._mean_log_probs([self._logits(decoder, hidden)])
            log_probs.masked_fill_(log_probs.isnan(), -torch.inf)
            limits.apply_masks(log_probs[:, None], limits.masks_at(lengths, inputs["max_len"]))
            before = inputs["scores"].view(torch.double)[:, 0].float()
            ignored = inputs["ignored"].view(-1, size) > 0
            return select_on_device(log_probs, lengths[:, 0], before, ignored, limits.eos)

        inputs = {
            "max_len": decoder.column(state.max_len, rows),
            # Inputs of a graph are integers, so the scores are passed as the bits of doubles.
            "scores": beams.scores.double().view(torch.long)[:, None],
            "ignored": beams.ignored.long().view(-1, 1),
        }
        _, *outputs = decoder.step_then(select, limits, [state.last_tokens()], layout, inputs)
        # Outputs per row are already without padding; outputs per sentence are cut here.
        selected = (value if value.dim() == 1 else value[: rows // size] for value in outputs if value is not None)
        return Selection(*selected)


def has_enough(vocabulary: int, beam: int) -> bool:
    """Return whether no forbidden token can be among the best: with fewer tokens fairseq continues with such ones."""
    return vocabulary >= 2 * beam + 2

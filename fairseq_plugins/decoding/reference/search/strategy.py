"""fairseq's other beam searches: its own search objects choose from the log-probabilities of our engine."""

from typing import Any

import torch
from fairseq.search import (
    DiverseBeamSearch,
    DiverseSiblingsSearch,
    LengthConstrainedBeamSearch,
    LexicallyConstrainedBeamSearch,
    Search,
)
from torch import Tensor

from fairseq_plugins.decoding.reference.rows import from_host
from fairseq_plugins.decoding.reference.state import Candidates, DecodingState

# The searches, and the option of each.
OPTIONS: dict[type[Search], str] = {
    DiverseBeamSearch: "--diverse-beam-groups",
    DiverseSiblingsSearch: "--diversity-rate",
    LengthConstrainedBeamSearch: "--match-source-len",
    LexicallyConstrainedBeamSearch: "--constraints",
}


class SearchStrategy:
    """A search of `fairseq.search` for the sentences of a batch, and the language model of `--lm-path`.

    `search` is None for plain beam search, `lm_model` for no language model; it and its weight are fairseq's
    generator's.
    """

    def __init__(self, search: Search | None, lm_model: Any = None, lm_weight: float = 1.0) -> None:
        self.search, self.lm_model, self.lm_weight = search, lm_model, lm_weight
        self.source_lengths = torch.empty(0, dtype=torch.long)
        # [B, size], the candidates that continue, which the search is told once ended sentences are removed.
        self.continued: Tensor | None = None

    @property
    def option(self) -> str:
        """The option that asks for it."""
        return "--lm-path" if self.search is None else OPTIONS[type(self.search)]

    def start(self, sample: dict[str, Any], size: int) -> None:
        """Begin a batch with beams of a size; `constraints` of the sample are those of fairseq."""
        self.source_lengths, self.continued = sample["net_input"]["src_lengths"], None
        constraints = sample.get("constraints")
        if self.search is not None:
            self.search.init_constraints(constraints, size)

    def select_rows(self, sentences: Tensor) -> None:
        """Keep only these sentences [B'], indices into the current batch."""
        self.source_lengths = self.source_lengths[sentences]
        if self.search is not None:
            self.search.prune_sentences(sentences)
        if self.continued is not None:
            self.continued = self.continued[sentences]

    def add_language_model(self, state: DecodingState, log_probs: Tensor) -> None:
        """Add the weighted log-probabilities of the language model to log-probabilities [R, V], in place."""
        if self.lm_model is not None:
            output, *others = self.lm_model(hypotheses(state))
            # fairseq normalises the scores of all positions, of which it reads the last.
            last = output[:, -1:], *others
            scores = self.lm_model.get_normalized_probs(last, log_probs=True, sample=None)
            log_probs += scores[:, -1, :] * self.lm_weight

    def candidates(self, state: DecodingState, log_probs: Tensor, before: Tensor) -> Candidates:
        """Return the continuations that the search chooses.

        Args:
            state: before the step; all hypotheses have the same length.
            log_probs: [B, size, V], limits applied; changed in place.
            before: [B, size], scores of the hypotheses.
        """
        assert self.search is not None and state.beams is not None
        step = state.span.longest
        if self.continued is not None:
            self.search.update_constraints(self.continued)
        if getattr(self.search, "needs_src_lengths", False):
            self.search.set_src_lengths(self.source_lengths)
        # The searches read the scores of the last step only. fairseq gives numbers of the data set as indices of
        # sentences, which diverse beams then look up in a table of the batch.
        numbers = from_host(state.sentences[:: state.beams.size], log_probs.device)
        scores = before[:, :, None].expand(-1, -1, step)
        chosen = self.search.step(step, log_probs, scores, hypotheses(state), numbers)
        return Candidates(*chosen)


def hypotheses(state: DecodingState) -> Tensor:
    """Return the tokens [R, T + 1] of hypotheses of T tokens, after their first token."""
    beams, length = state.beams, state.span.longest
    assert beams is not None
    rows = torch.arange(len(state.lengths), device=state.tokens.device)
    return torch.cat([state.tokens[:, :1], state.tokens[beams.token_index(rows, length)]], dim=1)

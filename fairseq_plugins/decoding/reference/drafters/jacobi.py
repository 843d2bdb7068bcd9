"""The drafter of the Jacobi family: the verifier's own prediction of an iteration ago."""

import math
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.rows import cat_padded, padding_last
from fairseq_plugins.decoding.reference.state import Advance, DecodingState, Draft, no_draft

# Window of Algorithm 1 per source token: the length of the target is unknown.
WINDOW_RATIO = 1.5


class JacobiDrafter(Drafter):
    """Fixed-point iteration of greedy decoding (Santilli et al. 2023, Algorithms 1 to 3).

    Accepting the longest prefix that equals the verifier's argmax freezes the converged positions (stopping condition,
    eq. 5); the other predictions are the next iterate. The target length is unknown: a sentence is solved block by
    block until its first converged EOS.

    Args:
        pad: padding symbol.
        block_size: positions solved in parallel, b (Algorithm 2); None for 1.5 times the source length, which usually
            covers the whole target (Algorithm 1).
        length: solve the first h tokens in parallel and the others one by one (Algorithm 3); None for no limit.
        initial: first guess of every position: a symbol, or None for the source token at the same position.
    """

    def __init__(self, pad: int, block_size: int | None, length: int | None, initial: int | None) -> None:
        self.pad = pad
        self.block_size = block_size
        self.length = length
        self.initial = initial
        self.block = 1
        self.first_guess = torch.empty(0, 0, dtype=torch.long)
        self.tail = torch.empty(0, 0, dtype=torch.long)

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        source = sample["net_input"]["src_tokens"]
        self.block = self.block_size or math.ceil(WINDOW_RATIO * source.size(1)) + 1
        self.first_guess = self._first_guess(source)
        self.tail = source.new_empty(source.size(0), 0)

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        source = sample["net_input"]["src_tokens"]
        self.first_guess = cat_padded(self.first_guess, self._first_guess(source), dim=1, value=self.pad)
        self.tail = F.pad(self.tail, (0, 0, 0, source.size(0)), value=-1)

    def draft(self, state: DecodingState) -> Draft:
        # The verifier predicts one position beyond its guesses: the last one of a block needs no guess.
        num_drafted = self.block - 1 - state.lengths % self.block
        if self.length is not None:
            num_drafted = torch.minimum(num_drafted, self.length - 1 - state.lengths).clamp(min=0)
        # From the lengths on the host, to avoid a synchronisation.
        longest = sys.maxsize if self.length is None else self.length
        widest = max(min(self.block - 1 - n % self.block, longest - 1 - n) for n in state.host_lengths)
        width = min(widest, state.remaining)
        if width <= 0:
            return no_draft(state)
        position = state.lengths[:, None] + torch.arange(width, device=state.tokens.device)
        tokens = self.first_guess.gather(1, position.clamp(max=self.first_guess.size(1) - 1))
        return Draft(_overlay(tokens, self.tail), num_drafted.clamp(max=width))

    def observe(self, advance: Advance) -> None:
        """Take predictions for positions that are not final yet as their next guesses."""
        best = advance.verification.best
        drafted = best.size(1) - 1
        columns = torch.arange(drafted + 1, device=best.device)
        is_unused = columns > advance.draft.counts()[:, None]
        predicted = best.masked_fill(is_unused, -1)
        following = advance.num_emitted[:, None] + columns[:-1]
        self.tail = F.pad(predicted, (0, 1), value=-1).gather(1, following.clamp(max=drafted + 1))

    def _first_guess(self, source: Tensor) -> Tensor:
        if self.initial is not None:
            return source.new_full((source.size(0), 1), self.initial)
        return F.pad(source.gather(1, padding_last(source == self.pad)), (0, 1), value=self.pad)

    def select_rows(self, rows: Tensor) -> None:
        self.first_guess = self.first_guess.index_select(0, rows)
        self.tail = self.tail.index_select(0, rows)


def _overlay(tokens: Tensor, better: Tensor) -> Tensor:
    """Replace `tokens` [B, K] by those of `better` [B, any] that are not negative."""
    width = tokens.size(1)
    better = F.pad(better[:, :width], (0, max(0, width - better.size(1))), value=-1)
    return torch.where(better >= 0, better, tokens)

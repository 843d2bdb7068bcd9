"""The Jacobi family: the draft is what the verifier itself predicted for these places an iteration ago."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.cached_decoder import cat_padded
from fairseq_plugins.decoding.drafters import DecodingState, Draft, Verdict

# The first window of Algorithm 1, in lengths of the source: the length of the target is not known.
_WINDOW_RATIO = 1.5


class JacobiDrafter:
    """Fixed-point iteration of greedy decoding (Santilli et al. 2023, Algorithms 1 to 3).

    Accepting the longest prefix that equals the verifier's argmax freezes what has converged (stopping condition,
    eq. 5), and the rest of its predictions is the next iterate. The target length is never known: a sentence is
    solved block by block until its first converged EOS.

    Args:
        pad: padding symbol.
        block_size: places solved together, b (Algorithm 2); None for one and a half lengths of the source, which
            usually holds the whole target (Algorithm 1).
        length: solve in parallel up to this many tokens, h, and one by one from there (Algorithm 3); None: no end.
        initial: first guess of every place: a symbol, or None for the source token at the same place.
        pool: beyond the paper: remember what the verifier said after which token, right or not, and draft that; how
            many tokens there are (the size of the dictionary), 0 for no pool.
    """

    def __init__(
        self, pad: int, block_size: int | None, length: int | None, initial: int | None, pool: int = 0
    ) -> None:
        self.pad = pad
        self.block_size = block_size
        self.length = length
        self.initial = initial
        self.pool_size = pool
        self.block = 1
        self.first_guess = torch.empty(0, 0, dtype=torch.long)
        self.tail = torch.empty(0, 0, dtype=torch.long)
        # What the verifier last said after every token [B, V], -1 where nothing; and a column for what does not count.
        self.pool = torch.empty(0, 0, dtype=torch.long)
        self.last = torch.empty(0, 1, dtype=torch.long)

    def start(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        source = sample["net_input"]["src_tokens"]
        self.block = self.block_size or math.ceil(_WINDOW_RATIO * source.size(1)) + 1
        self.first_guess = self._first_guess(source)
        self.tail = source.new_empty(source.size(0), 0)
        if self.pool_size:
            self.pool = source.new_full((source.size(0), self.pool_size + 1), -1)

    def join(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        source = sample["net_input"]["src_tokens"]
        self.first_guess = cat_padded(self.first_guess, self._first_guess(source), dim=1, value=self.pad)
        nothing_known = (0, 0, 0, source.size(0))
        self.tail = F.pad(self.tail, nothing_known, value=-1)
        if self.pool_size:
            self.pool = F.pad(self.pool, nothing_known, value=-1)

    def draft(self, state: DecodingState) -> Draft:
        if self.pool_size:
            self.last = state.last_tokens()
        # The verifier predicts one place more than it is given guesses for: the last place of a block needs none.
        widths = self.block - 1 - state.lengths % self.block
        if self.length is not None:
            widths = torch.minimum(widths, self.length - 1 - state.lengths).clamp(min=0)
        width = min(int(widths.max()), state.max_len - state.span.shortest)
        if width <= 0:
            return Draft(state.tokens.new_empty(state.tokens.size(0), 0))
        place = state.lengths[:, None] + torch.arange(width, device=state.tokens.device)
        tokens = self.first_guess.gather(1, place.clamp(max=self.first_guess.size(1) - 1))
        tokens = _overlay(tokens, self.tail)
        if self.pool_size:
            tokens = self._chain(tokens)
        return Draft(tokens, widths.clamp(max=width))

    def observe(self, verdict: Verdict) -> None:
        """Predictions for places that are not final yet become their next guesses."""
        drafted = verdict.choice.size(1) - 1
        widths = verdict.draft.widths if verdict.draft.widths is not None else torch.full_like(verdict.lengths, drafted)
        columns = torch.arange(drafted + 1, device=widths.device)
        predicted = verdict.choice.masked_fill(columns > widths[:, None], -1)
        if self.pool_size:
            self._remember(verdict, columns <= widths[:, None])
        following = verdict.accepted[:, None] + 1 + columns[:-1]
        self.tail = F.pad(predicted, (0, 1), value=-1).gather(1, following.clamp(max=drafted + 1))

    def _first_guess(self, source: Tensor) -> Tensor:
        if self.initial is not None:
            return source.new_full((source.size(0), 1), self.initial)
        order = torch.argsort((source == self.pad).long(), dim=1, stable=True)
        return F.pad(source.gather(1, order), (0, 1), value=self.pad)

    def _chain(self, guesses: Tensor) -> Tensor:
        """Follow the pool from the last token on; where it knows nothing, the guess [B, K] of the place stands."""
        last, tokens = self.last, []
        for guess in guesses.split(1, dim=1):
            known = self.pool.gather(1, last)
            last = torch.where(known >= 0, known, guess)
            tokens.append(last)
        return torch.cat(tokens, dim=1)

    def _remember(self, verdict: Verdict, meant: Tensor) -> None:
        """Lookahead's n-grams (Fu et al. 2024, arXiv 2402.02057), as pairs: a guess, and the verifier's word after it.

        Unlike neighbours in one iterate, such a pair belongs together: the second was said in view of the first.
        """
        before = torch.cat([self.last, verdict.draft.tokens[:, : meant.size(1) - 1]], dim=1)
        self.pool.scatter_(1, before.masked_fill(~meant, self.pool_size), verdict.choice)

    def keep(self, rows: Tensor) -> None:
        self.first_guess = self.first_guess.index_select(0, rows)
        self.tail = self.tail.index_select(0, rows)
        if self.pool_size:
            self.pool = self.pool.index_select(0, rows)


def _overlay(tokens: Tensor, better: Tensor) -> Tensor:
    """`tokens` [B, K] with those of `better` [B, any] in their place, except where these are negative."""
    width = tokens.size(1)
    better = F.pad(better[:, :width], (0, max(0, width - better.size(1))), value=-1)
    return torch.where(better >= 0, better, tokens)

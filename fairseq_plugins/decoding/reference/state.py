"""Data of the decoding loop: the state of a batch, and an iteration's draft, verification and result."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Hypothesis
from fairseq_plugins.decoding.reference.layout import Span
from fairseq_plugins.decoding.reference.rows import from_host, rows_of


@dataclass
class Beams:
    """State of beam search: `size` hypotheses for each of B sentences, R = B * size rows.

    `beam_ancestors` is that of `BeamLayout`. It gives the rows of tokens and log-probabilities, too.
    """

    size: int  # hypotheses per sentence, in adjacent rows
    scores: Tensor  # [R], sums of log-probabilities
    beam_ancestors: Tensor  # [R, capacity], which of the sentence's rows holds each slot up to the last one
    ignored: Tensor  # [B, size], ranks of candidates that must not end: fairseq's `cands_to_ignore`
    ended: list[int]  # number of ended hypotheses of each of the B sentences

    @classmethod
    def begin(cls, size: int, sentences: int, like: Tensor) -> "Beams":
        """Return the state of sentences without tokens; `like` [any, capacity] are the tokens of the decoding state."""
        own = torch.arange(size, device=like.device).repeat(sentences)
        return cls(
            size,
            torch.zeros(len(own), device=like.device),
            own[:, None].repeat(1, like.size(1)),
            like.new_zeros(sentences, size, dtype=torch.bool),
            [0] * sentences,
        )

    def concat(self, other: "Beams") -> "Beams":
        """Append the sentences of another state."""
        return Beams(
            self.size,
            torch.cat([self.scores, other.scores]),
            torch.cat([self.beam_ancestors, other.beam_ancestors]),
            torch.cat([self.ignored, other.ignored]),
            self.ended + other.ended,
        )

    def select(self, sentences: Tensor, host_sentences: list[int]) -> "Beams":
        """Select sentences by index; `host_sentences` are the same indices on the host."""
        rows, ended = rows_of(sentences, self.size), [self.ended[sentence] for sentence in host_sentences]
        return Beams(self.size, self.scores[rows], self.beam_ancestors[rows], self.ignored[sentences], ended)

    def token_index(self, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return rows [N, length] and columns [length] of the tokens of hypotheses [N] in `DecodingState.tokens`."""
        columns = torch.arange(1, length + 1, device=rows.device)
        return (rows - rows % self.size)[:, None] + self.beam_ancestors[rows, 1 : length + 1], columns


@dataclass
class DecodingState:
    """Outputs so far: B rows, one per sentence; in beam search R rows, one per hypothesis."""

    # [B, capacity]: the beginning-of-sentence symbol and then the output; valid up to `lengths`. In beam search the
    # tokens of a hypothesis are spread over several rows: see `Beams`.
    tokens: Tensor
    lengths: Tensor  # [B], number of output tokens so far, which is also the column of the last one in `tokens`
    host_lengths: list[int]  # `lengths` on the host
    constraints: Constraints
    log_probs: Tensor  # [B, capacity], of the tokens
    sentences: list[int] = field(default_factory=list)  # index in the batch of each row's sentence
    beams: Beams | None = None  # state of beam search, None in greedy search
    noise_keys: Tensor | None = None  # [B, 4], of the rows (decoding/reference/noise.py), for sampling
    ended: Tensor | None = None  # [B], 1 for rows that have ended and gain no more tokens; None if none has
    host_ended: list[bool] = field(default_factory=list)  # `ended` on the host

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of an output before its EOS."""
        return self.constraints.max_len

    @property
    def remaining(self) -> int:
        """Most tokens that a row which has not ended may gain before its EOS."""
        ended = self.host_ended or [False] * len(self.host_lengths)
        return self.max_len - min(n for n, has_ended in zip(self.host_lengths, ended, strict=True) if not has_ended)

    @property
    def span(self) -> Span:
        """Shortest and longest output so far."""
        return Span(min(self.host_lengths), max(self.host_lengths))

    def forced_tokens(self, width: int) -> Tensor | None:
        """Return the next tokens [B, width] that `--prefix-size` forces, `pad` where it leaves a position free.

        None if it forces none. With `--left-pad-target` a prefix begins with free positions.
        """
        prefix, size = self.constraints.prefix, self.constraints.beginning
        if prefix is None or min(self.host_lengths) >= size:
            return None
        rows = F.pad(prefix[from_host(self.sentences, prefix.device), :size], (0, 1), value=self.constraints.pad)
        position = self.lengths[:, None] + torch.arange(width, device=prefix.device)
        return rows.gather(1, position.clamp(max=size))

    def last_tokens(self) -> Tensor:
        """Return the last token of every sentence, [B, 1]: the verifier's next input."""
        return self.tokens.gather(1, self.lengths[:, None])

    def append(self, advance: "Advance | BeamAdvance") -> None:
        """Add the emitted tokens of every sentence to its output; later steps overwrite the columns after them."""
        if isinstance(advance, BeamAdvance):
            self._reorder_beams(advance)
        column = self.lengths[:, None] + torch.arange(1, advance.tokens.size(1) + 1, device=self.lengths.device)
        for buffer, block in ((self.tokens, advance.tokens), (self.log_probs, advance.log_probs)):
            buffer.scatter_(1, column.clamp(max=buffer.size(1) - 1), block)
        self.lengths = self.lengths + advance.num_emitted
        self.host_lengths = [n + more for n, more in zip(self.host_lengths, advance.host_emitted, strict=True)]

    def _reorder_beams(self, advance: "BeamAdvance") -> None:
        """Give every row the ancestors of the hypothesis that it continues."""
        beams = self.beams
        assert beams is not None
        current = beams.beam_ancestors[:, : self.span.longest + 1]
        # Shorter sentences keep their own rows for future slots.
        is_past = torch.arange(current.size(1), device=current.device) <= self.lengths[:, None]
        current.copy_(torch.where(is_past, current[advance.parents], current))
        beams.scores, beams.ignored, beams.ended = advance.scores, advance.ignored, advance.ended


@dataclass
class Draft:
    """Drafted tokens, which follow the last token of each output."""

    tokens: Tensor  # [B, K]
    num_drafted: Tensor | None = None  # [B], number of valid columns, None for all
    log_probs: Tensor | None = None  # [B, K, V], the drafter's, only for rules that need them
    survival: Tensor | None = None  # [B, K], the drafter's probability that a token and all before it are right
    from_fallback: Tensor | None = None  # [B], whether a fallback drafter made the draft, for traces

    def counts(self) -> Tensor:
        """Return the number of valid columns of every sentence, [B]."""
        rows, width = self.tokens.shape
        return self.tokens.new_full((rows,), width) if self.num_drafted is None else self.num_drafted


def no_draft(state: DecodingState) -> Draft:
    """Return an empty draft; the iteration is then a step of greedy decoding."""
    return Draft(state.tokens.new_empty(state.tokens.size(0), 0))


def obeying_prefix(state: DecodingState, draft: Draft) -> Draft:
    """Return a draft cut before its first token that `--prefix-size` forbids, which relaxed rules could accept."""
    forced = state.forced_tokens(draft.tokens.size(1))
    if forced is None:
        return draft
    is_wrong = (forced != state.constraints.pad) & (forced != draft.tokens)
    allowed = (~is_wrong).long().cumprod(1).sum(1)
    return replace(draft, num_drafted=draft.counts().minimum(allowed))


class Verification:
    """The verifier's result for the last token and K drafted ones: T = K + 1 columns.

    Args:
        log_probs: [B, T, V], or a function that computes them on first use.
        best: [B, T], the verifier tokens.
        hidden: [B, T, D], decoder states of the (first) model, None without a verifier.
        features: [B, T, F], concatenated states after `Verifier.feature_layers` of the first model.
        accepted: the emitted tokens, if acceptance is already done in the verifier's CUDA graph.
    """

    def __init__(
        self,
        log_probs: Tensor | Callable[[], Tensor],
        best: Tensor,
        hidden: Tensor | None = None,
        features: Tensor | None = None,
        accepted: "Accepted | None" = None,
    ) -> None:
        self._log_probs = log_probs
        self.best = best
        self.hidden = hidden
        self.features = features
        self.accepted = accepted

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities [B, T, V] of the token after each column; -inf if fairseq's options forbid it."""
        if not isinstance(self._log_probs, Tensor):
            self._log_probs = self._log_probs()
        return self._log_probs

    def log_probs_of(self, tokens: Tensor, width: int | None = None) -> Tensor:
        """Return log-probabilities [B, width] of the first `width` (default: all) of tokens [B, T]."""
        width = tokens.size(1) if width is None else width
        return self.log_probs[:, :width].gather(2, tokens[:, :width, None]).squeeze(2)


@dataclass(frozen=True)
class Accepted:
    """The tokens that an iteration emits."""

    tokens: Tensor  # [B, T], the output path; its first `counts[:, 0]` tokens are emitted
    counts: Tensor  # [B, 3] of each sentence: emitted tokens, accepted tokens, and 1 if its output has ended
    log_probs: Tensor | None = None  # [B, T], of the tokens; None if they are still to be gathered


@dataclass
class Candidates:
    """The best continuations of every sentence by one token, best first, as fairseq's beam search takes them."""

    scores: Tensor  # [B, C], sums of log-probabilities, -inf for forbidden tokens
    tokens: Tensor  # [B, C]
    parents: Tensor  # [B, C], which of the sentence's hypotheses is continued


class Selection(NamedTuple):
    """Candidates of B sentences, those that end, and the R = B * size hypotheses that continue."""

    best_tokens: Tensor  # [B, C], of the candidates, as the next three
    best_parents: Tensor  # [B, C], the row that each candidate continues
    best_scores: Tensor  # [B, C], sums of log-probabilities
    best_log_probs: Tensor  # [B, C]
    tokens: Tensor  # [R], of continued hypotheses, as the next three
    parents: Tensor  # [R], the row that each row continues
    scores: Tensor  # [R], sums of log-probabilities
    log_probs: Tensor  # [R]
    ignored: Tensor  # [B, size], ranks that must not end in the next step
    ends: Tensor  # [B, size], which of the best candidates end


@dataclass
class Advance:
    """Result of one iteration: the path of every sentence, N columns of which `num_emitted` are valid.

    Sentences that ended in an earlier iteration and are still in the state gain no tokens.
    """

    tokens: Tensor  # [B, N], the emitted tokens; N is the maximum over the sentences
    log_probs: Tensor  # [B, N], the verifier's, of the emitted tokens
    num_emitted: Tensor  # [B]
    host_emitted: list[int]  # `num_emitted` on the host
    num_accepted: Tensor  # [B], number of drafted tokens among the emitted ones
    finished: list[bool]  # for each sentence whether its output has ended
    hidden: Tensor | None  # [B, N, D], the verifier's state that predicted each token, None without a verifier
    features: Tensor | None  # [B, N, F], as in `Verification`
    # Inputs of acceptance, for drafters that reuse rejected predictions and for traces.
    draft: Draft
    verification: Verification
    before: Tensor  # [B], lengths before the iteration
    span_before: Span  # shortest and longest of `before`
    ended: Tensor | None = None  # [B], `finished` on the device, 1 or 0

    def last(self, states: Tensor) -> Tensor:
        """Return the states [B, 1, D] of the last emitted token of every sentence from states [B, N, D]."""
        # Sentences that gain no tokens may take any state.
        column = (self.num_emitted - 1).clamp(min=0)[:, None, None]
        return states.gather(1, column.expand(-1, 1, states.size(2)))


@dataclass
class BeamAdvance:
    """Result of one iteration of beam search: a token for every continued hypothesis."""

    tokens: Tensor  # [R, 1]
    log_probs: Tensor  # [R, 1]
    num_emitted: Tensor | int  # [R], 1, or 0 if the sentence had ended before; a plain 1 if none had
    host_emitted: list[int]  # `num_emitted` of every row on the host
    finished: list[bool]  # for each row whether its sentence has ended
    parents: Tensor  # [R], the row that each row continues
    scores: Tensor  # this and the next two: as in `Beams`
    ignored: Tensor
    ended: list[int]
    hypotheses: list[tuple[int, Hypothesis]]  # ended ones, each with the index of its sentence in the state

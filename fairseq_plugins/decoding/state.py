"""What goes round in the loop: the state of a batch, a draft, its verification, and the advance that follows."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.layout import Span
from fairseq_plugins.decoding.engine.rows import rows_of


@dataclass
class Beams:
    """What beam search keeps of hypotheses, of B sentences with `size` of them each: R = B * size rows.

    A hypothesis may continue that of another row, and several the same one. What they have in common is there once:
    every row writes where it is itself, and `holders` says where a hypothesis has its earlier slots from, in the cache
    (see `BeamLayout`) and in tokens and log-probabilities.

    Attributes:
        size: hypotheses of a sentence; its rows follow each other.
        scores: [R], sums of log-probabilities.
        holders: [R, capacity], in which of the sentence's rows every slot up to the last one stands.
        ignored: [B, size], places among the best candidates from which nothing ends: fairseq's `cands_to_ignore`.
        ended: B numbers, how many hypotheses have ended.
    """

    size: int
    scores: Tensor
    holders: Tensor
    ignored: Tensor
    ended: list[int]

    @classmethod
    def begin(cls, size: int, sentences: int, like: Tensor) -> "Beams":
        """Of sentences without any token, for a state whose tokens are `like` [any, capacity]."""
        own = torch.arange(size, device=like.device).repeat(sentences)
        return cls(
            size,
            torch.zeros(len(own), device=like.device),
            own[:, None].repeat(1, like.size(1)),
            like.new_zeros(sentences, size, dtype=torch.bool),
            [0] * sentences,
        )

    def and_then(self, other: "Beams") -> "Beams":
        """These sentences and others after them."""
        return Beams(
            self.size,
            torch.cat([self.scores, other.scores]),
            torch.cat([self.holders, other.holders]),
            torch.cat([self.ignored, other.ignored]),
            self.ended + other.ended,
        )

    def select(self, sentences: Tensor, on_host: list[int]) -> "Beams":
        """Some of the sentences; `on_host` are the same numbers."""
        rows, ended = rows_of(sentences, self.size), [self.ended[sentence] for sentence in on_host]
        return Beams(self.size, self.scores[rows], self.holders[rows], self.ignored[sentences], ended)

    def where(self, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Where hypotheses [N] of so many tokens have these: rows [N, length] and columns [length] of the state's."""
        columns = torch.arange(1, length + 1, device=rows.device)
        return (rows - rows % self.size)[:, None] + self.holders[rows, 1 : length + 1], columns


@dataclass
class DecodingState:
    """What is decoded so far, of the sentences still in the batch: B rows.

    In beam search every hypothesis has a row: R in the place of B.

    Attributes:
        tokens: [B, capacity], the beginning-of-sentence symbol and then the output; valid up to `lengths`. In beam
            search those of a hypothesis stand in several rows: see `Beams`.
        lengths: [B], number of output tokens so far, which is also the column of the last token in `tokens`.
        host_lengths: the same numbers on the host.
        constraints: what fairseq's options forbid or force.
        log_probs: [B, capacity] of the tokens.
        sentences: for every row, which sentence of the batch it is.
        ended: [B], which rows' sentences have ended and gain nothing more; None where there are none of these.
        host_ended: the same on the host.
        beams: what there is in beam search besides, None in a greedy one.
    """

    tokens: Tensor
    lengths: Tensor
    host_lengths: list[int]
    constraints: Constraints
    log_probs: Tensor
    sentences: list[int] = field(default_factory=list)
    beams: Beams | None = None
    ended: Tensor | None = None
    host_ended: list[bool] = field(default_factory=list)

    @property
    def max_len(self) -> int:
        """No output may have more tokens than this before its EOS."""
        return self.constraints.max_len

    @property
    def span(self) -> Span:
        """Shortest and longest output so far."""
        return Span(min(self.host_lengths), max(self.host_lengths))

    def last_tokens(self) -> Tensor:
        """The last token of every sentence, [B, 1]: the verifier's next input."""
        span = self.span
        if span.uniform:
            return self.tokens[:, span.longest : span.longest + 1]
        return self.tokens.gather(1, self.lengths[:, None])

    def append(self, advance: "Advance | BeamAdvance") -> None:
        """Add the emitted tokens of every sentence to its output; what comes after them is overwritten later."""
        span, width = self.span, advance.tokens.size(1)
        if isinstance(advance, BeamAdvance):
            self._follow(advance, span)
        for buffer, block in ((self.tokens, advance.tokens), (self.log_probs, advance.log_probs)):
            if span.uniform:
                buffer[:, span.longest + 1 : span.longest + 1 + width] = block
            else:
                column = self.lengths[:, None] + torch.arange(1, width + 1, device=block.device)
                buffer.scatter_(1, column.clamp(max=buffer.size(1) - 1), block)
        self.lengths = self.lengths + advance.num_emitted
        self.host_lengths = [n + more for n, more in zip(self.host_lengths, advance.host_emitted, strict=True)]

    def _follow(self, advance: "BeamAdvance", span: Span) -> None:
        """Every row becomes that of the hypothesis which it continues; what comes next is its own."""
        beams = self.beams
        assert beams is not None
        followed = beams.holders[:, : span.longest + 1].index_select(0, advance.parents)
        if span.uniform:
            beams.holders[:, : span.longest + 1] = followed
        else:
            # Of sentences that are behind, the slots that are to come stay their own.
            is_past = torch.arange(followed.size(1), device=followed.device) <= self.lengths[:, None]
            own = beams.holders[:, : span.longest + 1]
            own.copy_(torch.where(is_past, followed, own))
        beams.scores, beams.ignored, beams.ended = advance.scores, advance.ignored, advance.ended


@dataclass
class Draft:
    """Guesses for the tokens after the last one.

    Attributes:
        tokens: [B, K].
        num_drafted: [B], how many of the K columns are meant (None: all).
        log_probs: [B, K, V], the drafter's, kept only for rules that ask for them.
        survival: [B, K], the drafter's probability that a token and all before it are right; None where nobody asks.
        from_fallback: [B], whether another drafter had to help out; None where there is no other. For traces.
    """

    tokens: Tensor
    num_drafted: Tensor | None = None
    log_probs: Tensor | None = None
    survival: Tensor | None = None
    from_fallback: Tensor | None = None


def no_draft(state: DecodingState) -> Draft:
    """A draft of no tokens: the iteration is a greedy step."""
    return Draft(state.tokens.new_empty(state.tokens.size(0), 0))


class Verification:
    """What the verifier says of the last token and a draft of K: T = K + 1 columns.

    Args:
        log_probs: see below; or what computes it, for those who ask.
        best: [B, T], the verifier's token after each column, given the drafted ones before it.
        hidden: [B, T, D], decoder states of the (first) model, None where no verifier runs.
        features: [B, T, F], the states after `Verifier.feature_layers` of the first model, side by side.
        log_probs_of_best: [B, T], where they are known; or what computes them of so many columns.
    """

    def __init__(
        self,
        log_probs: Tensor | Callable[[], Tensor],
        best: Tensor,
        hidden: Tensor | None = None,
        features: Tensor | None = None,
        log_probs_of_best: Tensor | Callable[[int], Tensor] | None = None,
    ) -> None:
        self._log_probs = log_probs
        self.best = best
        self.hidden = hidden
        self.features = features
        self.log_probs_of_best = log_probs_of_best

    @property
    def log_probs(self) -> Tensor:
        """[B, T, V], of the token after each column; what fairseq's options forbid has -inf."""
        if not isinstance(self._log_probs, Tensor):
            self._log_probs = self._log_probs()
        return self._log_probs

    def log_probs_of(self, tokens: Tensor, width: int | None = None) -> Tensor:
        """Log-probabilities [B, width] of the first (default: all) of these tokens [B, T]."""
        width = tokens.size(1) if width is None else width
        of_best = self.log_probs_of_best if tokens is self.best else None
        if isinstance(of_best, Tensor):
            return of_best[:, :width]
        if of_best is not None and not isinstance(self._log_probs, Tensor):
            return of_best(width)
        return self.log_probs[:, :width].gather(2, tokens[:, :width, None]).squeeze(2)


@dataclass
class Candidates:
    """The best continuations of every sentence by one token, the best first, as fairseq's beam search wants them.

    Attributes:
        scores: [B, C], sums of log-probabilities, -inf for what may not be.
        tokens: [B, C].
        parents: [B, C], which of the sentence's hypotheses is continued; -1 where there is no candidate any more.
    """

    scores: Tensor
    tokens: Tensor
    parents: Tensor


@dataclass
class Hypothesis:
    """An output.

    Attributes:
        tokens: [N], EOS included.
        log_probs: [N] of them.
        score: sum of them, before it is normalised.
    """

    tokens: Tensor
    log_probs: Tensor
    score: Tensor


@dataclass
class Decoded:
    """What a backend makes of a batch.

    Attributes:
        outputs: of every sentence its hypotheses, in the order in which they ended; one without beams.
        emitted: of every sentence the tokens that each iteration added.
    """

    outputs: list[list[Hypothesis]]
    emitted: list[list[int]]


@dataclass
class StepOutput:
    """What one iteration did to a sentence.

    Attributes:
        tokens: that it emitted; none after the end.
        drafted: tokens that were verified; `accepted`: how many of these were emitted.
        finished: whether the output has ended.
    """

    tokens: list[int]
    drafted: int
    accepted: int
    finished: bool


@dataclass
class Advance:
    """What one iteration adds: of every sentence the accepted path, N columns of which `num_emitted` count.

    Nothing of sentences that had ended before, where these are still in the state.

    Attributes:
        tokens: [B, N], the emitted tokens; N is the most that any sentence gets.
        log_probs: [B, N] of them, the verifier's.
        num_emitted: [B]; `host_emitted`: the same on the host.
        num_accepted: [B], how many of the emitted tokens were drafted.
        finished: for each sentence whether its output has ended, on the host.
        hidden: [B, N, D], the verifier's state that each token was chosen from, None where no verifier runs.
        features: [B, N, F], as `Verification.features`.
        draft, verification: what it came from, for drafters that learn from what was not accepted, and for traces.
        before: [B], the lengths before it; `span_before`: shortest and longest of them.
        ended: [B], `finished` on the device, 1 or 0.
    """

    tokens: Tensor
    log_probs: Tensor
    num_emitted: Tensor
    host_emitted: list[int]
    num_accepted: Tensor
    finished: list[bool]
    hidden: Tensor | None
    features: Tensor | None
    draft: Draft
    verification: Verification
    before: Tensor
    span_before: Span
    ended: Tensor | None = None

    @property
    def is_uniform(self) -> bool:
        """Whether every sentence gets the same number of tokens."""
        return min(self.host_emitted) == self.tokens.size(1)

    def last(self, states: Tensor) -> Tensor:
        """Of states [B, N, D] those of the last emitted token of every sentence, [B, 1, D]."""
        if self.is_uniform:
            return states[:, -1:]
        # Of sentences that gain nothing, any.
        column = (self.num_emitted - 1).clamp(min=0)[:, None, None]
        return states.gather(1, column.expand(-1, 1, states.size(2)))


@dataclass
class BeamAdvance:
    """What one iteration of beam search adds: a token to every hypothesis that goes on.

    Attributes:
        tokens: [R, 1], `log_probs`: [R, 1] of them; `num_emitted` [R]: one of each, none of sentences that had ended
            before; 1 for one of each.
        host_emitted: the same for every row, on the host.
        finished: for each row whether its sentence has ended, on the host.
        parents: [R], the row that each row continues.
        scores, ignored, ended: as in `Beams`.
        hypotheses: which ended: the place of the sentence among those of the state, and the hypothesis.
    """

    tokens: Tensor
    log_probs: Tensor
    num_emitted: Tensor | int
    host_emitted: list[int]
    finished: list[bool]
    parents: Tensor
    scores: Tensor
    ignored: Tensor
    ended: list[int]
    hypotheses: list[tuple[int, Hypothesis]]

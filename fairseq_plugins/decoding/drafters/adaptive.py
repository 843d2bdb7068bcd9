"""Adaptive verification: verify the drafted tokens that can win, draft only as many as pay, and none where none does.

A row of a verification costs time whether its token is accepted or not. How likely that is, the drafter says itself:
the product of its conditional probabilities up to the token, recalibrated by what became of earlier drafts. What a row
costs is measured while decoding. vLLM calls this adaptive verification. A drafted token costs time, too, before anybody
knows its probability: that of earlier drafts at the same position says whether it is worth it. With exact acceptance
the output is the same however many tokens are drafted and verified.
"""

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
from torch import Tensor

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.engine.native.build import BINS, AdaptiveStructure
from fairseq_plugins.decoding.engine.native.kernels import Together
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft

# What earlier iterations count for after each new one.
_MEMORY = 0.98
# The same for batches, the first of which finds nothing in the processor's caches.
_MEMORY_OF_BATCHES = 0.8
# What a call takes, and each of its rows, before anything is known of it. Only their ratio counts.
_GUESS = 4.0, 1.0
# How different the rows of calls have to be, in variance over squared mean, for what they say of the time of a row to
# count as much as the guess. Verifications have other rows every time; drafts and steps only when something else has
# changed, and how fast a machine is may have changed more by then than what a few rows more take.
_DOUBT, _MUCH_DOUBT = 0.05, 2.0
# Conditional probabilities are recalibrated in bins, each with this much evidence for itself at all times: tokens of
# the lower ones are seldom verified, and never would be again where little that was seen of them counts alone.
_PRIOR, _MEMORY_OF_TOKENS = 8.0, 0.998
# So many drafts are made before it is judged whether that pays; of those of one iteration so many count, for what it
# takes is seen once.
_EXPLORED, _COUNTED_TOGETHER = 32, 4
# So many iterations of the kernels the policy takes in at a time.
_LEARNT_AT_ONCE = 32
# What does not pay, to draft or not to draft, is tried again after so many batches, for the text may become easier or
# harder; after twice as many each time that it still does not, up to the most.
_TRY_AGAIN, _TRY_AGAIN_AT_LAST = 8, 800
# It is tried for so many sentences, for the first ones find nothing in the processor's caches.
_TRIAL = 8
# Where drafts promise so many times what verifications of one token would, steps without drafts need not be tried.
_CLEAR = 1.4
# What is known of the positions of drafts counts as so many drafts then.
_KEPT_DRAFTS = 4.0


class Cost:
    """Seconds of a call as a line over its rows, by least squares with a memory.

    Args:
        doubt: as `_DOUBT`.
    """

    def __init__(self, doubt: float) -> None:
        self.doubt = doubt
        # Running sums of 1, rows, rows^2, seconds, rows * seconds: so few that plain numbers are fastest.
        self.sums = [0.0] * 5

    def observe(self, rows: int, seconds: float) -> None:
        """Count one call."""
        self.add((1.0, rows, rows * rows, seconds, rows * seconds))

    def add(self, sums: Sequence[float]) -> None:
        """Count calls: their number, and the sums of rows, rows^2, seconds and rows * seconds."""
        kept = _MEMORY ** sums[0]
        self.sums = [kept * before + new for before, new in zip(self.sums, sums, strict=True)]

    @property
    def is_known(self) -> bool:
        """Whether there has been a call."""
        return self.sums[0] > 0

    def line(self, guess: tuple[float, float]) -> tuple[float, float]:
        """Seconds of a call, and of every row in it; both above 0.

        Args:
            guess: the same of something alike, in any unit. It is the answer before there is data.
        """
        count, rows, squares, seconds, products = self.sums
        if count == 0:
            return guess
        fixed, each = guess
        guessed = each * seconds / (count * fixed + rows * each)
        # The guess counts as much as rows that are as different as this.
        spread, doubt = count * squares - rows * rows, self.doubt * rows * rows
        each = (count * products - rows * seconds + doubt * guessed) / (spread + doubt)
        each = min(max(each, 1e-2 * seconds / rows), seconds / rows)
        return max((seconds - each * rows) / count, 1e-2 * seconds / count), each


class Calibration:
    """How often drafted tokens are right that the drafter gives a probability, given that those before them were."""

    def __init__(self) -> None:
        # Plain numbers: see `Cost`.
        self.tried, self.right = [0.0] * BINS, [0.0] * BINS

    def __call__(self, survival: numpy.ndarray) -> numpy.ndarray:
        """Recalibrated survival probabilities [B, K], from those that the drafter gives."""
        return numpy.cumprod(numpy.array(self.right_rate)[self._bins(survival)], axis=1)

    @property
    def right_rate(self) -> list[float]:
        """Of each bin, how often its tokens are right."""
        return [
            (_PRIOR * (number + 0.5) / BINS + right) / (_PRIOR + tried)
            for number, (right, tried) in enumerate(zip(self.right, self.tried, strict=True))
        ]

    def observe(
        self, survival: numpy.ndarray, verified: numpy.ndarray, emitted: numpy.ndarray, accepted: numpy.ndarray
    ) -> None:
        """Count what became of drafts.

        Args:
            survival: [B, K], the drafter's.
            verified: [B], how many tokens of each were verified.
            emitted: [B], how many tokens came of it: the accepted ones, and maybe one of the verifier's.
            accepted: [B], how many of the verified tokens stand.
        """
        position = numpy.arange(survival.shape[1])
        right = position < accepted[:, None]
        # After the first rejected token, and after the end of a sentence, nothing was tried.
        tried = position < numpy.minimum(emitted, verified)[:, None]
        bins = self._bins(survival)
        self.add(numpy.bincount(bins[tried], minlength=BINS), numpy.bincount(bins[right], minlength=BINS))

    def add(self, tried: Sequence[float], right: Sequence[float], iterations: float = 1) -> None:
        """Count tokens of each bin that were tried, and those of them that were right, in so many iterations."""
        kept = _MEMORY_OF_TOKENS**iterations
        self.tried = [kept * before + new for before, new in zip(self.tried, tried, strict=True)]
        self.right = [kept * before + new for before, new in zip(self.right, right, strict=True)]

    def _bins(self, survival: numpy.ndarray) -> numpy.ndarray:
        before = numpy.concatenate([numpy.ones((len(survival), 1)), survival[:, :-1]], axis=1)
        conditional = survival / numpy.maximum(before, 1e-30)
        return (conditional * BINS).astype(int).clip(0, BINS - 1)


@dataclass(frozen=True)
class Counting:
    """What the kernels count while they decode batches of so many sentences.

    Attributes:
        batch: so many.
        drafts: whether with drafts.
        structure: what they count in.
        positions: for each position of a draft, what `structure` points to; None without drafts.
        is_trial: whether it is not known yet that drafts pay.
    """

    batch: int
    drafts: bool
    structure: AdaptiveStructure
    positions: ctypes.Array[ctypes.c_double] | None = None
    is_trial: bool = False

    @property
    def iterations(self) -> float:
        """So many have been counted."""
        return self.structure.verify_sums[0]


class Policy:
    """Whether to draft and how much, and what of a draft to verify; it learns from what that took and what came of it.

    Args:
        block_size: tokens of a draft at most.
        together: as `sentences_together` has it; None for any number.
    """

    def __init__(self, block_size: int, together: Together | None = None) -> None:
        self.block_size = block_size
        self.together = together
        # Rows: of a draft, all positions; of a verification, all tokens; of a step without drafts, its sentences.
        self.draft_cost, self.verify_cost, self.step_cost = Cost(_MUCH_DOUBT), Cost(_DOUBT), Cost(_MUCH_DOUBT)
        self.calibration = Calibration()
        # Of each position of a draft: the sums of the survival probabilities of tokens that were worth a row, how many
        # there were, and of how many drafts. At first as if one draft had been all right. Plain numbers: see `Cost`.
        self.survival, self.worthy, self.of_drafts = ([1.0] * block_size for _ in range(3))
        # How many tokens drafts have now, and how many a second that promised; 0 where that is to be found out.
        self.width, self.promised = block_size, 0.0
        # Whether drafting paid last, whatever the length; batches since the other was tried, and how many there may be.
        self.paid, self.since, self.patience = True, 0, _TRY_AGAIN
        # How many batches the other is being tried for.
        self.trial = 0
        # Drafts so far, as `_EXPLORED` counts them.
        self.drafted = 0.0
        # What the drafter takes for a sentence before its first draft, in seconds: a running mean.
        self.preparation = 0.0
        # What `_rates` has found for batches of each size, and in what.
        self.rates: dict[int, tuple[float, float]] = {}
        self.rates_of = (self.draft_cost.sums, self.verify_cost.sums, self.step_cost.sums)

    @property
    def _verification(self) -> tuple[float, float]:
        """Seconds of a verification, and of every row in it."""
        return self.verify_cost.line(_GUESS)

    def _with_drafts(self, batch: int) -> tuple[float, int]:
        """Tokens a second that a batch promises with the drafts that promise most, and how long these are."""
        fixed, each = verification = self._verification
        draft_fixed, draft_each = self.draft_cost.line(verification)
        tokens, rows, best, width = 1.0, 1.0, 0.0, 0
        for position, drafts in enumerate(self.of_drafts):
            tokens += self.survival[position] / drafts
            rows += self.worthy[position] / drafts
            together = self._together(batch, position + 2)
            seconds = draft_fixed + fixed + together * (draft_each * (position + 1) + each * rows)
            if together * tokens > best * seconds:
                best, width = together * tokens / seconds, position + 1
        return best, width

    def _without_drafts(self, batch: int) -> float:
        """Tokens a second that a batch promises without drafts."""
        return self._a_token_each(batch, self.step_cost.line(self._verification))

    def _a_token_each(self, batch: int, line: tuple[float, float]) -> float:
        """Tokens a second of calls of this `Cost.line` that give every sentence one."""
        fixed, each = line
        together = self._together(batch, 1)
        return together / (fixed + each * together)

    def _together(self, batch: int, width: int) -> int:
        """How many sentences of a batch are decoded together that have so many rows each."""
        return batch if self.together is None else self.together.of(batch, width)

    def pays(self, batch: int, length: int) -> bool:
        """Whether to draft for a batch of so many sentences; now and then what did not pay so far is tried.

        Args:
            batch: number of sentences.
            length: tokens that an output is expected to have: what is done once for it is little where it is long.
        """
        if self.trial > 1:
            self.trial -= 1
            return not self.paid
        self.since, self.trial = self.since + 1, 0
        pays_here, is_known = self.may_pay(batch, length), self.step_cost.is_known
        # What pays with what is done once for a sentence does so without it.
        pays = pays_here or self.may_pay(batch)
        if is_known and pays != self.paid:
            self.paid, self.since, self.patience = pays, 1, _TRY_AGAIN
        if pays_here != self.paid:
            # Too short for drafts: so what steps without them take is seen.
            self.since = 0
            return pays_here
        is_overdue = self.since > self.patience if is_known else self.drafted >= _EXPLORED
        if not is_overdue:
            return self.paid
        self.since = 0
        if self.paid and self._clearly_pays(batch):
            return True
        self.trial = -(-_TRIAL // batch)
        if is_known:
            self.patience = min(2 * self.patience, _TRY_AGAIN_AT_LAST)
        if not self.paid:
            self._forget()
        return not self.paid

    def _rates(self, batch: int) -> tuple[float, float]:
        """Tokens a second that a batch promises with drafts and without; both are kept until there is more to learn."""
        rates_of = (self.draft_cost.sums, self.verify_cost.sums, self.step_cost.sums)
        if any(before is not now for before, now in zip(self.rates_of, rates_of, strict=True)):
            self.rates_of, self.rates = rates_of, {}
        if batch not in self.rates:
            self.rates[batch] = self._with_drafts(batch)[0], self._without_drafts(batch)
        return self.rates[batch]

    def _clearly_pays(self, batch: int) -> bool:
        """Whether it does without a look at steps without drafts, which verify one token of a sentence."""
        return self._with_drafts(batch)[0] >= _CLEAR * self._a_token_each(batch, self._verification)

    def may_pay(self, batch: int, length: int | None = None) -> bool:
        """Whether nothing speaks against drafting for a batch of so many sentences: it paid, or little is known yet.

        Without a length (see `pays`) what is done once for a sentence has been done.
        """
        if self.drafted < _EXPLORED:
            return True
        with_drafts, without = self._rates(batch)
        beside = 0.0 if length is None else self.preparation / length
        return 1 / with_drafts + beside <= 1 / without

    def is_known_to_pay(self, batch: int) -> bool:
        """Whether drafting for a batch of so many sentences has been worth its time."""
        return self.drafted >= _EXPLORED and self.may_pay(batch)

    def prepared(self, batch: int, seconds: float) -> None:
        """Count what drafting for so many sentences took besides drafts."""
        memory = _MEMORY_OF_BATCHES if self.preparation else 0.0
        self.preparation = memory * self.preparation + (1 - memory) * seconds / batch

    def threshold(self, batch: int) -> float:
        """The least survival probability that is worth a row: what its time would bring elsewhere (Dinkelbach 1967)."""
        return self._verification[1] * (self.promised or self._with_drafts(batch)[0])

    def worth_verifying(self, survival: numpy.ndarray) -> numpy.ndarray:
        """How many [B] of the drafted tokens are worth a row, of their survival probabilities [B, K]."""
        calibrated = self.calibration(survival)
        worthy = calibrated >= self.threshold(len(survival))
        self._count_positions(1, (calibrated * worthy).sum(0).tolist(), worthy.sum(0).tolist(), len(survival))
        return worthy.sum(1)

    def choose_width(self, batch: int) -> None:
        """Let drafts have as many tokens as promise most, and one more, so that this is seen to change."""
        self.promised, width = self._with_drafts(batch)
        self.width = min(self.block_size, width + 1)

    def _forget(self) -> None:
        """Keep what is known of the positions of drafts, but so that a few new drafts count as much."""
        self.rates = {}
        for sums in (self.survival, self.worthy):
            sums[:] = [_KEPT_DRAFTS * value / drafts for value, drafts in zip(sums, self.of_drafts, strict=True)]
        self.of_drafts = [_KEPT_DRAFTS] * self.block_size

    def _count_positions(
        self, iterations: float, survival: Sequence[float], worthy: Sequence[float], drafts: float
    ) -> None:
        """Count what the first positions of drafts gain.

        Args:
            iterations: so many.
            survival: of each position, the sum of the survival probabilities of tokens that were worth a row.
            worthy: of each position, how many there were.
            drafts: so many.
        """
        memory = _MEMORY**iterations
        for position, (probability, count) in enumerate(zip(survival, worthy, strict=True)):
            self.survival[position] = memory * self.survival[position] + probability
            self.worthy[position] = memory * self.worthy[position] + count
            self.of_drafts[position] = memory * self.of_drafts[position] + drafts

    def observe(
        self, survival: numpy.ndarray, verified: numpy.ndarray, emitted: numpy.ndarray, accepted: numpy.ndarray
    ) -> None:
        """Count what became of drafts; arguments as for `Calibration.observe`."""
        self.calibration.observe(survival, verified, emitted, accepted)
        self.drafted += min(len(survival), _COUNTED_TOGETHER)

    def counting(self, batch: int, drafts: bool) -> Counting:
        """What the kernels are to heed, and to count in for `learn`, while they decode so many sentences."""
        if not drafts:
            return Counting(batch, False, AdaptiveStructure())
        positions = (ctypes.c_double * (2 * self.width))()
        survival = ctypes.addressof(positions)
        structure = AdaptiveStructure(
            threshold=self.threshold(batch),
            right_rate=tuple(self.calibration.right_rate),
            survival=survival,
            worthy=survival + ctypes.sizeof(ctypes.c_double) * self.width,
        )
        return Counting(batch, True, structure, positions, not self.is_known_to_pay(batch))

    def learn(self, counts: Counting) -> None:
        """Take over what the kernels have counted."""
        counted, calls = counts.structure, counts.iterations
        if counts.positions is None or counted.drafts == 0:
            self.step_cost.add(counted.verify_sums)
            return
        self.verify_cost.add(counted.verify_sums)
        self.draft_cost.add(counted.draft_sums)
        self.calibration.add(counted.tried, counted.right, calls)
        values = list(counts.positions)
        self._count_positions(calls, values[: self.width], values[self.width :], counted.drafts)
        self.drafted += min(counted.drafts, _COUNTED_TOGETHER * calls)


class AdaptiveDrafter:
    """Lets a trained drafter draft for the batches where it pays, and hands on the tokens that are worth a row.

    Args:
        inner: the drafter; its drafts have `survival`, and as many tokens as its `width` says.
        policy: what decides.
    """

    def __init__(self, inner: Drafter, policy: Policy) -> None:
        self.inner = inner
        self.policy = policy
        # Whether this batch is drafted for; its sentences, and what that took besides drafts, in seconds.
        self.drafts = True
        self.batch, self.preparation = 0, 0.0
        self.given: numpy.ndarray | None = None  # survival of the last draft
        self.verified: numpy.ndarray | None = None
        # When the verification of that draft began.
        self.began: float | None = None
        # What the policy does not know yet.
        self.counts: Counting | None = None

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        if self.begin(*sample["net_input"]["src_tokens"].shape):
            with self.preparing():
                self.inner.start(sample, encoder_out)

    def begin(self, batch: int, source: int) -> bool:
        """Whether to draft for a batch of so many sentences with sources [batch, source]."""
        if self.batch:
            self.policy.prepared(self.batch, self.preparation)
        began = time.perf_counter()
        if self.policy.trial:
            self._learn()
        # Outputs are about as long as their sources.
        self.drafts = self.policy.pays(batch, source)
        # The first draft may be another's: that of --prefix-size.
        self.given = self.verified = self.began = None
        self.batch = batch if self.drafts else 0
        self.preparation = time.perf_counter() - began
        return self.drafts

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Counts the time of what is done for drafts besides them."""
        began = time.perf_counter()
        yield
        self.preparation += time.perf_counter() - began

    def counting(self, batch: int) -> Counting:
        """What the kernels are to count in while they decode so many sentences, with drafts of the width that pays."""
        counts = self.counts
        if counts is None or (counts.batch, counts.drafts) != (batch, self.drafts):
            with self.preparing():
                self._learn()
                if self.drafts:
                    self.choose_width(batch)
                counts = self.counts = self.policy.counting(batch, self.drafts)
        return counts

    def counted(self, batch: int) -> None:
        """The kernels have counted: learn from it, but not every time, for that takes longer than an iteration.

        No more is drafted for the batch in hand where a trial has shown that this does not pay.
        """
        assert self.counts is not None
        if self.counts.is_trial or self.counts.iterations >= _LEARNT_AT_ONCE:
            with self.preparing():
                self._learn()
                self.drafts = self.drafts and self.policy.may_pay(batch)

    def _learn(self) -> None:
        if self.counts is not None:
            self.policy.learn(self.counts)
        self.counts = None

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        if self.drafts:
            self.inner.append_rows(sample, encoder_out)

    def draft(self, state: DecodingState) -> Draft:
        self.given = self.verified = None
        draft = no_draft(state)
        if self.drafts:
            began = time.perf_counter()
            self.choose_width(len(state.host_lengths))
            draft = self.inner.draft(state)
            positions = draft.tokens.numel()
            if positions > 0:
                draft = self._worth_verifying(draft)
                self.policy.draft_cost.observe(positions, time.perf_counter() - began)
        self.began = time.perf_counter()
        return draft

    def choose_width(self, batch: int) -> None:
        """Say how many tokens the next drafts are to have."""
        self.policy.choose_width(batch)
        self.inner.width = self.policy.width

    def _worth_verifying(self, draft: Draft) -> Draft:
        assert draft.survival is not None
        self.given = draft.survival.cpu().numpy()
        self.verified = self.policy.worth_verifying(self.given)
        width = int(self.verified.max())
        is_ragged = self.verified.min() < width
        counts = draft.tokens.new_tensor(self.verified) if is_ragged else None
        return Draft(draft.tokens[:, :width], counts, survival=draft.survival[:, :width])

    def observe(self, advance: Advance) -> None:
        if self.began is not None:
            rows = len(advance.host_emitted) + (0 if self.verified is None else int(self.verified.sum()))
            cost = self.policy.verify_cost if self.drafts else self.policy.step_cost
            cost.observe(rows, time.perf_counter() - self.began)
        if not self.drafts:
            return
        if self.given is not None and self.verified is not None:
            emitted, accepted = numpy.array(advance.host_emitted), advance.num_accepted.cpu().numpy()
            self.policy.observe(self.given, self.verified, emitted, accepted)
        self.inner.observe(advance)

    def select_rows(self, rows: Tensor) -> None:
        if self.drafts:
            self.inner.select_rows(rows)


def inner_of(drafter: Drafter) -> Drafter:
    """The drafter that drafts: that of an `AdaptiveDrafter`, or the drafter itself."""
    return drafter.inner if isinstance(drafter, AdaptiveDrafter) else drafter

"""What adaptive verification decides: whether to draft for a batch, how much, and what of a draft to verify.

All follows from what calls took and how often drafted tokens were right (`estimates.py`). What is not being done, to
draft or not to draft, is tried now and then for some iterations, for the text may have become easier or harder.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

from fairseq_plugins.decoding.drafters.estimates import MEMORY, Calibration, Cost
from fairseq_plugins.decoding.engine.native.build import AdaptiveStructure
from fairseq_plugins.decoding.engine.native.kernels import Together

# What earlier batches count for after each new one, the first of which finds nothing in the processor's caches; and
# what the lengths of earlier sources count for.
_MEMORY_OF_BATCHES, _MEMORY_OF_LENGTHS = 0.8, 0.98
# What a call takes, and each of its rows, before anything is known of it. Only their ratio counts.
_GUESS = 4.0, 1.0
# The doubts of costs. Verifications have other rows every time; drafts and steps only when something else has changed,
# and how fast a machine is may have changed more by then than what a few rows more take.
_DOUBT, _MUCH_DOUBT = 0.05, 2.0
# So many drafts are made before it is judged whether that pays; of those of one iteration so many count, for what it
# takes is seen once.
_EXPLORED, _COUNTED_TOGETHER = 32, 16
# What does not pay, to draft or not to draft, is tried again after so many batches; after twice as many each time that
# it still does not, up to the most.
_TRY_AGAIN, _TRY_AGAIN_AT_LAST = 8, 800
# So many drafts, or steps, are tried, in so many iterations at least: the first finds nothing in the caches.
_DRAFTS_TRIED, _STEPS_TRIED, _AT_LEAST = 32, 128, 2
# Where drafts promise so many times what verifications of one token would, steps without drafts need not be tried.
_CLEAR = 1.4
# Where drafts were not worth their time they are to promise so many times what steps without them do.
_MARGIN = 1.03
# What is known of the positions of drafts counts as so many drafts where much may have changed.
_KEPT_DRAFTS = 4.0


def _tried(batch: int, drafts: bool) -> int:
    """For how many iterations of so many sentences drafts, or steps without them, are tried."""
    return max(-(-(_DRAFTS_TRIED if drafts else _STEPS_TRIED) // batch), _AT_LEAST)


def _mean(before: float, value: float, memory: float) -> float:
    """A running mean, 0 where there was none, with another value."""
    return memory * before + (1 - memory) * value if before else value


class Regime:
    """What is known of batches of about so many sentences.

    Args:
        before: of other batches, which is what is guessed of these; None for nothing.
    """

    def __init__(self, before: "Regime | None" = None) -> None:
        # Seconds of a verification, a draft and a step, and of every row in them.
        self.guesses = None if before is None else (before.verification, before.draft, before.step)
        # Whether that is enough to judge drafts before there were any.
        self.is_guessed = False
        # Rows: of a draft, all positions; of a verification, all tokens; of a step without drafts, its sentences.
        self.draft_cost, self.verify_cost, self.step_cost = Cost(_MUCH_DOUBT), Cost(_DOUBT), Cost(_MUCH_DOUBT)
        # What the drafter takes for a sentence before its first draft, in seconds: a running mean.
        self.preparation = 0.0
        # Of the sentences that are decoded together, how many have not ended in a mean call: without drafts, and with
        # them, for then some end long before others.
        self.unfinished = [1.0, 0.8]
        # Drafts so far, as `_EXPLORED` counts them.
        self.drafted = 0.0
        # Whether drafting paid last; batches since the other was tried, and how many there may be, 0 before the first.
        self.paid, self.since, self.patience = True, 0, 0
        # For how many iterations more the other is being tried, and whether it was since the last verdict.
        self.trial, self.is_tried = 0.0, False
        # Tokens of a source: a running mean.
        self.length = 0.0

    @property
    def verification(self) -> tuple[float, float]:
        """Seconds of a verification, and of every row in it."""
        return self.verify_cost.line(self.guesses[0] if self.guesses else _GUESS)

    @property
    def draft(self) -> tuple[float, float]:
        """The same of a draft."""
        return self.draft_cost.line(self.guesses[1] if self.guesses else self.verification)

    @property
    def step(self) -> tuple[float, float]:
        """The same of a step without drafts."""
        return self.step_cost.line(self.guesses[2] if self.guesses else self.verification)

    @property
    def sums(self) -> tuple[list[float], ...]:
        """Those of all costs; others as soon as there is something new."""
        return self.draft_cost.sums, self.verify_cost.sums, self.step_cost.sums

    @property
    def is_explored(self) -> bool:
        """Whether there have been enough drafts to judge them."""
        return self.drafted >= _EXPLORED

    def began(self, length: int) -> None:
        """Count a batch with sources of so many tokens."""
        self.since += 1
        self.length = _mean(self.length, length, _MEMORY_OF_LENGTHS)

    def prepared(self, batch: int, seconds: float) -> None:
        """Count what drafting for so many sentences took besides drafts."""
        self.preparation = _mean(self.preparation, seconds / batch, _MEMORY_OF_BATCHES)

    def count_drafts(self, drafts: float, iterations: float) -> None:
        """Count so many drafts of so many iterations."""
        self.drafted += min(drafts, _COUNTED_TOGETHER * iterations)

    def count_trial(self, drafts: bool, iterations: float) -> None:
        """Count iterations with or without drafts."""
        if drafts != self.paid and self.trial > 0:
            self.trial, self.since = max(0.0, self.trial - iterations), 0


@dataclass(frozen=True)
class Counting:
    """What the kernels count while they decode batches of so many sentences.

    Attributes:
        batch: so many sentences.
        structure: what they count in.
        positions: for each position of a draft, what `structure` points to; None without drafts.
        budget: after so many iterations it may be decided otherwise; None where nothing is being tried.
    """

    batch: int
    structure: AdaptiveStructure
    budget: int | None
    positions: ctypes.Array[ctypes.c_double] | None = None

    @property
    def drafts(self) -> bool:
        """Whether with drafts."""
        return self.positions is not None

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
        self.calibration = Calibration()
        # Of each position of a draft: the sums of the survival probabilities of tokens that were worth a row, how many
        # there were, and of how many drafts. Plain numbers: see `Cost`.
        self.survival, self.worthy, self.of_drafts = ([0.0] * block_size for _ in range(3))
        # How many tokens drafts have now, and how many a second that promised; 0 where that is to be found out.
        self.width, self.promised = block_size, 0.0
        # By the magnitude of the batch, as `_enter` has it; and that of the batch in hand.
        self.regimes: dict[int, Regime] = {}
        self.regime = Regime()
        # Sentences of the batch in hand when it began; calls without and with drafts, and the shares of sentences that
        # had not ended in them.
        self.batch, self.calls, self.shares = 1, [0.0, 0.0], [0.0, 0.0]
        # What `_rates` has found for batches of each size, and in what.
        self.rates: dict[int, tuple[float, float]] = {}
        self.rates_of = self.regime.sums

    # ---------------------------------------------------------------------------------------- what pays

    def _with_drafts(self, batch: int) -> tuple[float, int]:
        """Tokens a second that a batch promises with the drafts that promise most, and how long these are."""
        (fixed, each), (draft_fixed, draft_each) = self.regime.verification, self.regime.draft
        tokens, rows, best, width = 1.0, 1.0, 0.0, 0
        for position, (survives, is_worthy) in enumerate(self._positions(), start=1):
            tokens, rows = tokens + survives, rows + is_worthy
            together = self._together(batch, position)
            seconds = draft_fixed + fixed + together * (draft_each * position + each * rows)
            if together * tokens > best * seconds:
                best, width = together * tokens / seconds, position
        return best, width

    def _positions(self) -> Iterator[tuple[float, float]]:
        """Of every position of a draft, how likely its token is worth a row and survives, and is worth a row."""
        survives = is_worthy = 1.0
        for position, drafts in enumerate(self.of_drafts):
            # There is always a draft more: one whose tokens are as likely to be right as those before them.
            power = (position + 1) / max(position, 1)
            survives = (self.survival[position] + survives**power) / (drafts + 1)
            is_worthy = (self.worthy[position] + is_worthy**power) / (drafts + 1)
            yield survives, is_worthy

    def _a_token_each(self, batch: int, line: tuple[float, float]) -> float:
        """Tokens a second of calls of this `Cost.line` that give every sentence one."""
        fixed, each = line
        together = self._together(batch, 0)
        return together / (fixed + each * together)

    def _together(self, batch: int, width: int) -> float:
        """How many sentences of a batch a mean call decodes with drafts of this width, 0 for none."""
        if batch == 1:
            return 1.0
        return self._at_first(batch, width) * self.regime.unfinished[width > 0]

    def _at_first(self, batch: int, width: int) -> int:
        """The same when none has ended."""
        return batch if self.together is None else self.together.of(batch, 1 + width)

    def _rates(self, batch: int) -> tuple[float, float]:
        """Tokens a second that a batch promises with drafts and without; both are kept until there is more to learn."""
        regime, rates_of = self.regime, self.regime.sums
        if any(before is not now for before, now in zip(self.rates_of, rates_of, strict=True)):
            self.rates_of, self.rates = rates_of, {}
        if batch not in self.rates:
            self.rates[batch] = self._with_drafts(batch)[0], self._a_token_each(batch, regime.step)
        return self.rates[batch]

    def _clearly_pays(self, batch: int) -> bool:
        """Whether it does without a look at steps without drafts, which verify one token of a sentence."""
        return self._with_drafts(batch)[0] >= _CLEAR * self._a_token_each(batch, self.regime.verification)

    def may_pay(self, batch: int, length: float | None = None, margin: float = 1.0) -> bool:
        """Whether nothing speaks against drafting for a batch of so many sentences: it paid, or little is known yet.

        Args:
            batch: number of sentences.
            length: tokens that an output is expected to have: what is done once for it is little where it is long;
                None where that has been done.
            margin: so many times as many tokens a second are to be promised as without drafts.
        """
        regime = self.regime
        if not (regime.is_explored or regime.is_guessed):
            return True
        with_drafts, without = self._rates(batch)
        beside = regime.preparation / length if length is not None and regime.is_explored else 0.0
        return margin * (1 / with_drafts + beside) <= 1 / without

    # ---------------------------------------------------------------------------------------- whether to draft

    def begin(self, batch: int, length: int) -> bool:
        """Whether to draft for the next batch, be it for some iterations only; arguments as for `may_pay`."""
        self._count_unfinished()
        self._enter(batch)
        regime = self.regime
        regime.began(length)
        if regime.trial > 0:
            return self._is_ready(batch)
        self._judge(batch)
        if regime.paid and not self.may_pay(batch, length):
            # Too short for drafts: so what steps without them take is seen.
            regime.since = 0
            return False
        self._try_the_other(batch)
        return self._is_ready(batch) if regime.trial > 0 else regime.paid

    def _judge(self, batch: int) -> None:
        """Find out whether to draft for batches of so many sentences of mean length, where there is something new."""
        regime = self.regime
        if regime.paid and regime.step_cost.is_known:
            pays = self.may_pay(batch, regime.length)
        elif regime.is_tried:
            # What was not worth its time is to be so by more than chance.
            pays = self.may_pay(batch, regime.length, _MARGIN)
        else:
            return
        regime.is_tried = False
        if pays != regime.paid:
            regime.paid, regime.since, regime.patience = pays, 1, _TRY_AGAIN

    def _enter(self, batch: int) -> None:
        """Reckon from now on with what is known of batches like this one."""
        # One sentence, up to 7, 31, 127, ...
        magnitude, before = batch.bit_length() // 2, self.regime
        is_new, is_larger = magnitude not in self.regimes, batch > self.batch
        if is_new:
            self.regimes[magnitude] = Regime(before) if self.regimes else before
        self.batch, self.regime = batch, self.regimes[magnitude]
        if self.regime is before:
            return
        self.promised = 0.0
        self._forget()
        # To find out takes longer the larger a batch is, and gains less.
        if is_new and is_larger:
            self.regime.is_guessed = before.is_explored or before.is_guessed
            if not self.may_pay(batch):
                self.regime.paid, self.regime.patience = False, _TRY_AGAIN

    def goes_on(self, batch: int) -> bool:
        """Whether to go on drafting for the rest of a batch of so many sentences, maybe after some steps without."""
        regime = self.regime
        if batch > 1 and not regime.step_cost.is_known and self.may_pay(batch):
            self._try_the_other(batch)
        return regime.trial > 0 or self.may_pay(batch)

    def _is_ready(self, batch: int) -> bool:
        """Whether a drafter is ready in a trial: of drafts, or of steps without them which are few of a batch.

        Sentences by themselves are few steps each, which take longer where a drafter reads what they say.
        """
        return batch > 1 or not self.regime.paid

    def drafts_now(self) -> bool:
        """Whether the next iterations of a batch for which something is ready to draft have drafts."""
        return not (self.regime.paid and self.regime.trial > 0)

    def _try_the_other(self, batch: int) -> None:
        """Begin to try what does not pay, if it is time to."""
        regime = self.regime
        is_first = regime.is_explored and regime.patience == 0
        if not (is_first or regime.since > regime.patience > 0):
            return
        regime.since, regime.patience = 0, min(max(2 * regime.patience, _TRY_AGAIN), _TRY_AGAIN_AT_LAST)
        if regime.paid and self._clearly_pays(batch):
            return
        regime.trial, regime.is_tried = _tried(batch, not regime.paid), True
        if not regime.paid:
            self._forget()

    def _forget(self) -> None:
        """Keep what is known of the positions of drafts, but so that a few new drafts count as much."""
        self.rates = {}
        kept = [min(1.0, _KEPT_DRAFTS / max(drafts, 1.0)) for drafts in self.of_drafts]
        for sums in (self.survival, self.worthy, self.of_drafts):
            sums[:] = [share * value for share, value in zip(kept, sums, strict=True)]

    # ---------------------------------------------------------------------------------------- how much

    def threshold(self, batch: int) -> float:
        """The least survival probability that is worth a row: what its time would bring elsewhere (Dinkelbach 1967)."""
        return self.regime.verification[1] * (self.promised or self._with_drafts(batch)[0])

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

    # ---------------------------------------------------------------------------------------- what it learns

    def count_calls(self, calls: float, sentences: float, width: int) -> None:
        """Count calls with drafts of this width, 0 for none, and how many sentences all of them had."""
        drafts = width > 0
        self.calls[drafts] += calls
        self.shares[drafts] += sentences / self._at_first(self.batch, width)
        self.regime.count_trial(drafts, calls)

    def _count_unfinished(self) -> None:
        """Count the batch that is over, if all of it was decoded with drafts or all without."""
        for drafts in (False, True):
            if self.calls[drafts] > 0 and self.calls[not drafts] == 0:
                share = min(self.shares[drafts] / self.calls[drafts], 1.0)
                unfinished = self.regime.unfinished
                unfinished[drafts] = _mean(unfinished[drafts], share, _MEMORY_OF_BATCHES)
        self.calls, self.shares = [0.0, 0.0], [0.0, 0.0]

    def observe(
        self, survival: numpy.ndarray, verified: numpy.ndarray, emitted: numpy.ndarray, accepted: numpy.ndarray
    ) -> None:
        """Count what became of drafts; arguments as for `Calibration.observe`."""
        self.calibration.observe(survival, verified, emitted, accepted)
        self.regime.count_drafts(len(survival), 1)

    def counting(self, batch: int, drafts: bool) -> Counting:
        """What the kernels are to heed, and to count in for `learn`, while they decode so many sentences."""
        regime = self.regime
        if not drafts:
            budget = None if self.drafts_now() else math.ceil(regime.trial)
            return Counting(batch, AdaptiveStructure(), budget)
        positions = (ctypes.c_double * (2 * self.width))()
        survival = ctypes.addressof(positions)
        structure = AdaptiveStructure(
            threshold=self.threshold(batch),
            right_rate=tuple(self.calibration.right_rate),
            survival=survival,
            worthy=survival + ctypes.sizeof(ctypes.c_double) * self.width,
        )
        is_settled = regime.is_explored and regime.trial == 0 and self.may_pay(batch)
        return Counting(batch, structure, None if is_settled else _tried(batch, True), positions)

    def learn(self, counts: Counting) -> None:
        """Take over what the kernels have counted."""
        regime, counted, calls = self.regime, counts.structure, counts.iterations
        if counts.positions is None or counted.drafts == 0:
            self.count_calls(calls, counted.verify_sums[1], 0)
            regime.step_cost.add(counted.verify_sums)
            return
        values, width = list(counts.positions), len(counts.positions) // 2
        self.count_calls(calls, counted.drafts, width)
        regime.verify_cost.add(counted.verify_sums)
        regime.draft_cost.add(counted.draft_sums)
        regime.count_drafts(counted.drafts, calls)
        self.calibration.add(counted.tried, counted.right, calls)
        self._count_positions(calls, values[:width], values[width:], counted.drafts)

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
        memory = MEMORY**iterations
        for position, (probability, count) in enumerate(zip(survival, worthy, strict=True)):
            self.survival[position] = memory * self.survival[position] + probability
            self.worthy[position] = memory * self.worthy[position] + count
            self.of_drafts[position] = memory * self.of_drafts[position] + drafts

"""Adaptive verification: verify the drafted tokens that can win, draft only as many as pay, and none where none does.

A row of a verification costs time whether its token is accepted or not. How likely that is, the drafter says itself:
the product of its conditional probabilities up to the token, recalibrated by what became of earlier drafts. What a row
costs is measured while decoding. vLLM calls this adaptive verification. A drafted token costs time, too, before anybody
knows its probability: that of earlier drafts at the same position says whether it is worth it. With exact acceptance
the output is the same however many tokens are drafted and verified.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy
from torch import Tensor

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.engine.native.build import BINS, AdaptiveStructure
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft

# What earlier iterations count for after each new one.
_MEMORY = 0.98
# The same for batches, the first of which finds nothing in the processor's caches.
_MEMORY_OF_BATCHES = 0.8
# The slope of a cost over rows is read off these if their variance is above so much of their squared mean, and else
# guessed: how fast a machine is changes more between two calls than what a few rows more take.
_LEAST_SPREAD = 0.05
# Conditional probabilities are recalibrated in bins, each with this much evidence for itself at first.
_PRIOR = 8.0
# So many iterations draft before it is judged whether that pays.
_EXPLORED = 32
# What does not pay, to draft or not to draft, is tried again after so many batches, for the text may become easier or
# harder; after twice as many each time that it still does not, up to the most.
_TRY_AGAIN, _TRY_AGAIN_AT_LAST = 24, 800


class Cost:
    """Seconds of a call as a line over its rows, by least squares with a memory.

    Args:
        fixed, each: before there is data, of no unit: only their ratio counts.
    """

    def __init__(self, fixed: float, each: float) -> None:
        self.guess = fixed, each
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

    @property
    def line(self) -> tuple[float, float]:
        """Seconds of a call, and of every row in it; both above 0."""
        count, rows, squares, seconds, products = self.sums
        if count == 0:
            return self.guess
        fixed, each = self.guess
        scale = seconds / (count * fixed + rows * each)
        spread = count * squares - rows * rows
        if spread <= _LEAST_SPREAD * rows * rows:
            return fixed * scale, each * scale
        each = (count * products - rows * seconds) / spread
        each = min(max(each, 1e-2 * seconds / rows), seconds / rows)
        return max((seconds - each * rows) / count, 1e-2 * seconds / count), each


class Calibration:
    """How often drafted tokens are right that the drafter gives a probability, given that those before them were."""

    def __init__(self) -> None:
        self.tried = numpy.full(BINS, _PRIOR)
        self.right = _PRIOR * (numpy.arange(BINS) + 0.5) / BINS

    def __call__(self, survival: numpy.ndarray) -> numpy.ndarray:
        """Recalibrated survival probabilities [B, K], from those that the drafter gives."""
        return numpy.cumprod(self.right_rate[self._bins(survival)], axis=1)

    @property
    def right_rate(self) -> numpy.ndarray:
        """Of each bin, how often its tokens are right."""
        return self.right / self.tried

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
        self.tried = _MEMORY**iterations * self.tried + tried
        self.right = _MEMORY**iterations * self.right + right

    def _bins(self, survival: numpy.ndarray) -> numpy.ndarray:
        before = numpy.concatenate([numpy.ones((len(survival), 1)), survival[:, :-1]], axis=1)
        conditional = survival / numpy.maximum(before, 1e-30)
        return (conditional * BINS).astype(int).clip(0, BINS - 1)


class Policy:
    """Whether to draft and how much, and what of a draft to verify; it learns from what that took and what came of it.

    Args:
        block_size: tokens of a draft at most.
        together: as `sentences_together` has it; None for any number.
    """

    def __init__(self, block_size: int, together: tuple[int, int] | None = None) -> None:
        self.block_size = block_size
        self.together = together
        # Rows: of a draft, all positions; of a verification, all tokens; of a step without drafts, its sentences.
        self.draft_cost, self.verify_cost, self.step_cost = Cost(4.0, 1.0), Cost(4.0, 1.0), Cost(4.0, 1.0)
        self.calibration = Calibration()
        self._hope_anew()
        # Accepted tokens of a draft, and rows verified of it: running means over sentences, hopeful at first.
        self.gain, self.rows = 3.0, 4.0
        # Whether drafting paid last; batches since that was found or the other was tried, and how many there may be.
        self.paid, self.since, self.patience = True, 0, _TRY_AGAIN
        # Iterations with drafts so far.
        self.drafted = 0.0
        # What the drafter takes for a sentence before its first draft, in seconds: a running mean.
        self.preparation = 0.0

    def _rates(self, batch: int, length: int | None = None) -> tuple[float, float]:
        """Tokens a second that a batch promises with drafts, and without; `length` as for `pays`."""
        drafting = stepping = batch
        if self.together is not None:
            least, rows = self.together
            drafting, stepping = (min(batch, max(least, rows // width)) for width in (1 + self.width, 1))
        draft_fixed, draft_each = self.draft_cost.line
        fixed, each = self.verify_cost.line
        seconds = draft_fixed + draft_each * drafting * self.width + fixed + each * drafting * (1 + self.rows)
        if length is not None:
            seconds += drafting * self.preparation / max(1.0, length / (1 + self.gain))
        if self.step_cost.is_known:
            fixed, each = self.step_cost.line
        return drafting * (1 + self.gain) / seconds, stepping / (fixed + each * stepping)

    def pays(self, batch: int, length: int) -> bool:
        """Whether to draft for a batch of so many sentences; now and then what did not pay so far is tried.

        Args:
            batch: number of sentences.
            length: tokens that an output is expected to have: what is done once for it is little where it is long.
        """
        if self.drafted >= _EXPLORED and not self.step_cost.is_known:
            return False
        pays = self.may_pay(batch, length)
        if pays != self.paid:
            self.paid, self.since, self.patience = pays, 0, _TRY_AGAIN
        elif self.since >= self.patience:
            self.since, self.patience = 0, min(2 * self.patience, _TRY_AGAIN_AT_LAST)
            if not pays:
                self._hope_anew()
            return not pays
        self.since += 1
        return pays

    def may_pay(self, batch: int, length: int | None = None) -> bool:
        """Whether nothing speaks against drafting for a batch of so many sentences: it paid, or little is known yet.

        Without a length (see `pays`) what is done once for a sentence has been done.
        """
        with_drafts, without = self._rates(batch, length)
        return self.drafted < _EXPLORED or with_drafts >= without

    def is_known_to_pay(self, batch: int) -> bool:
        """Whether drafting for a batch of so many sentences has been worth its time."""
        return self.drafted >= _EXPLORED and self.may_pay(batch)

    def prepared(self, batch: int, seconds: float) -> None:
        """Count what drafting for so many sentences took besides drafts."""
        memory = _MEMORY_OF_BATCHES if self.preparation else 0.0
        self.preparation = memory * self.preparation + (1 - memory) * seconds / batch

    def threshold(self, batch: int) -> float:
        """The least survival probability that is worth a row: what its time would bring elsewhere (Dinkelbach 1967)."""
        return self.verify_cost.line[1] * self._rates(batch)[0]

    def worth_verifying(self, survival: numpy.ndarray) -> numpy.ndarray:
        """How many [B] of the drafted tokens are worth a row, of their survival probabilities [B, K]."""
        worth = self.calibration(survival) - self.threshold(len(survival))
        self._count_worth(1, worth.clip(0).sum(0), len(survival))
        return (worth >= 0).sum(1)

    def choose_width(self, batch: int) -> None:
        """Let drafts have as many tokens as are worth drafting, and one more, so that this is seen to change.

        A position is worth it where the tokens that its verification gains on average, less what its row would bring
        elsewhere, are more than what the time of drafting it would.
        """
        worth = self.worth / self.of_drafts
        pays = worth >= self.draft_cost.line[1] * self._rates(batch)[0]
        self.width = min(self.block_size, 1 + int(numpy.cumprod(pays).sum()))

    def _hope_anew(self) -> None:
        """As if one draft had been all right: the first ones are whole."""
        self.worth, self.of_drafts = numpy.ones(self.block_size), numpy.ones(self.block_size)
        self.width = self.block_size

    def _count_worth(self, iterations: float, worth: numpy.ndarray, drafts: float) -> None:
        """Count what verifying the first positions gains, in tokens and less what their rows would bring elsewhere.

        Args:
            iterations: so many.
            worth: of each position, the sum over all drafts.
            drafts: so many.
        """
        memory, counted = _MEMORY**iterations, len(worth)
        self.worth[:counted] = memory * self.worth[:counted] + worth
        self.of_drafts[:counted] = memory * self.of_drafts[:counted] + drafts

    def observe(
        self, survival: numpy.ndarray, verified: numpy.ndarray, emitted: numpy.ndarray, accepted: numpy.ndarray
    ) -> None:
        """Count what became of drafts; arguments as for `Calibration.observe`."""
        self.calibration.observe(survival, verified, emitted, accepted)
        self._count(1, float(accepted.mean()), float(verified.mean()))

    def _count(self, iterations: float, gain: float, rows: float) -> None:
        self.drafted += iterations
        memory = _MEMORY**iterations
        self.gain = memory * self.gain + (1 - memory) * gain
        self.rows = memory * self.rows + (1 - memory) * rows

    def structure(self, batch: int | None) -> tuple[AdaptiveStructure, numpy.ndarray]:
        """The same for the kernels, which count for `learn`, and what must be held; a batch of None has no drafts."""
        if batch is None:
            return AdaptiveStructure(), numpy.zeros(0)
        rates, worth = self.calibration.right_rate, numpy.zeros(self.width)
        structure = AdaptiveStructure(
            threshold=self.threshold(batch), right_rate=tuple(rates.tolist()), worth=worth.ctypes.data
        )
        return structure, worth

    def learn(self, counted: AdaptiveStructure, worth: numpy.ndarray) -> None:
        """Take over what the kernels have counted: the two of `structure`."""
        calls = counted.verify_sums[0]
        if counted.drafts == 0:
            self.step_cost.add(counted.verify_sums)
            return
        self.verify_cost.add(counted.verify_sums)
        self.draft_cost.add(counted.draft_sums)
        self.calibration.add(counted.tried, counted.right, calls)
        self._count_worth(calls, worth, counted.drafts)
        self._count(calls, counted.accepted / counted.drafts, counted.rows / counted.drafts)


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

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        if self.batch:
            self.policy.prepared(self.batch, self.preparation)
        began = time.perf_counter()
        # Outputs are about as long as their sources.
        batch, length = sample["net_input"]["src_tokens"].shape
        self.drafts = self.policy.pays(batch, length)
        # The first draft may be another's: that of --prefix-size.
        self.given = self.verified = self.began = None
        self.batch = batch if self.drafts else 0
        if self.drafts:
            self.inner.start(sample, encoder_out)
            self.preparation = time.perf_counter() - began

    def reconsider(self, batch: int) -> None:
        """Draft no more for the batch in hand, where a trial has shown that this does not pay."""
        self.drafts = self.drafts and self.policy.may_pay(batch)

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

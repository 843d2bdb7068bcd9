"""`--auto-block-size`: verify the drafted tokens that can win, draft only where it pays.

A row of a verification costs time whether its token is accepted or not. How likely that is, the drafter says itself:
the product of its conditional probabilities up to the token, recalibrated by what became of earlier drafts. What a row
costs is measured while decoding. vLLM calls this adaptive verification. With exact acceptance the output is the same
however many tokens are verified.
"""

import time
from typing import Any

import numpy
from torch import Tensor

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft

# What earlier iterations count for after each new one.
_MEMORY = 0.98
# Conditional probabilities are recalibrated in so many bins, each with this much evidence for itself at first.
_BINS, _PRIOR = 10, 8.0
# Where drafting does not pay, it is tried again in one of so many iterations: the text may become easier.
_TRY_AGAIN = 24


class Cost:
    """Seconds of a call as a line over its rows, by least squares with a memory.

    Args:
        fixed, each: before there is data, of no unit: only their ratio counts.
    """

    def __init__(self, fixed: float, each: float) -> None:
        self.guess = fixed, each
        # Running sums of 1, rows, rows^2, seconds, rows * seconds.
        self.sums = numpy.zeros(5)

    def observe(self, rows: int, seconds: float) -> None:
        """Count one call."""
        self.sums = _MEMORY * self.sums + (1.0, rows, rows * rows, seconds, rows * seconds)

    @property
    def line(self) -> tuple[float, float]:
        """Seconds of a call, and of every row in it; both above 0."""
        count, rows, squares, seconds, products = self.sums
        if count == 0:
            return self.guess
        fixed, each = self.guess
        scale = seconds / (count * fixed + rows * each)
        spread = count * squares - rows * rows
        if spread <= 1e-2 * count * count:
            return fixed * scale, each * scale  # rows were always as many: the guess, at the speed that was seen
        each = (count * products - rows * seconds) / spread
        each = min(max(each, 1e-2 * seconds / rows), seconds / rows)
        return max((seconds - each * rows) / count, 1e-2 * seconds / count), each


class Calibration:
    """How often drafted tokens are right that the drafter gives a probability, given that those before them were."""

    def __init__(self) -> None:
        self.tried = numpy.full(_BINS, _PRIOR)
        self.right = _PRIOR * (numpy.arange(_BINS) + 0.5) / _BINS

    def __call__(self, survival: numpy.ndarray) -> numpy.ndarray:
        """Recalibrated survival probabilities [B, K], from those that the drafter gives."""
        return numpy.cumprod((self.right / self.tried)[self._bins(survival)], axis=1)

    def observe(self, survival: numpy.ndarray, verified: numpy.ndarray, accepted: numpy.ndarray) -> None:
        """Count what became of drafts.

        Args:
            survival: [B, K], the drafter's.
            verified: [B], how many tokens of each were verified.
            accepted: [B], how many of these stand.
        """
        position = numpy.arange(survival.shape[1])
        right = position < accepted[:, None]
        # After the first rejected token nothing was tried.
        tried = (position <= accepted[:, None]) & (position < verified[:, None])
        bins = self._bins(survival)
        self.tried = _MEMORY * self.tried + numpy.bincount(bins[tried], minlength=_BINS)
        self.right = _MEMORY * self.right + numpy.bincount(bins[right], minlength=_BINS)

    def _bins(self, survival: numpy.ndarray) -> numpy.ndarray:
        before = numpy.concatenate([numpy.ones((len(survival), 1)), survival[:, :-1]], axis=1)
        conditional = survival / numpy.maximum(before, 1e-30)
        return (conditional * _BINS).astype(int).clip(0, _BINS - 1)


class AdaptiveDrafter:
    """Lets a trained drafter draft where it pays, and hands on the tokens that are worth a row of the verification.

    Args:
        inner: the drafter; its drafts have `survival`.
    """

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        # Rows: of a draft, its sentences; of a verification, all tokens.
        self.draft_cost, self.verify_cost = Cost(4.0, 1.0), Cost(4.0, 1.0)
        self.calibration = Calibration()
        # Accepted tokens of a draft, and rows verified of it: running means over sentences.
        self.gain, self.rows = 1.0, 2.0
        self.skipped = 0
        self.given: numpy.ndarray | None = None  # survival of the last draft
        self.verified: numpy.ndarray | None = None
        self.began = 0.0

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.inner.start(sample, encoder_out)

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.inner.append_rows(sample, encoder_out)

    def draft(self, state: DecodingState) -> Draft:
        began = time.perf_counter()
        self.given = self.verified = None
        batch = len(state.host_lengths)
        draft = no_draft(state)
        if self._pays(batch):
            draft = self.inner.draft(state)
        if draft.tokens.size(1) > 0:
            assert draft.survival is not None
            draft = self._worth_verifying(draft)
            self.draft_cost.observe(batch, time.perf_counter() - began)
        self.began = time.perf_counter()
        return draft

    def observe(self, advance: Advance) -> None:
        rows = len(advance.host_emitted) + (0 if self.verified is None else int(self.verified.sum()))
        self.verify_cost.observe(rows, time.perf_counter() - self.began)
        if self.given is not None and self.verified is not None:
            accepted = numpy.minimum(numpy.array(advance.host_emitted) - 1, self.verified)
            self.calibration.observe(self.given, self.verified, accepted)
            self.gain = _MEMORY * self.gain + (1 - _MEMORY) * float(accepted.mean())
            self.rows = _MEMORY * self.rows + (1 - _MEMORY) * float(self.verified.mean())
        self.inner.observe(advance)

    def select_rows(self, rows: Tensor) -> None:
        self.inner.select_rows(rows)

    def _pays(self, batch: int) -> bool:
        """Whether a draft of so many sentences promises more tokens a second than a greedy step."""
        draft_fixed, draft_each = self.draft_cost.line
        fixed, each = self.verify_cost.line
        greedy = batch / (fixed + each * batch)
        seconds = draft_fixed + draft_each * batch + fixed + each * batch * (1 + self.rows)
        if batch * (1 + self.gain) / seconds >= greedy or self.skipped >= _TRY_AGAIN:
            self.skipped = 0
            return True
        self.skipped += 1
        return False

    def _worth_verifying(self, draft: Draft) -> Draft:
        """The draft without the tokens whose rows would cost more than they promise.

        Rows are taken in the order of their survival probabilities, over the whole batch, as long as the tokens that
        an iteration emits in a second become more; the draft is paid for already.
        """
        survival = draft.survival.cpu().numpy()
        batch = len(survival)
        expected = self.calibration(survival)
        ranked = numpy.sort(expected, axis=None)[::-1]
        tokens = batch + numpy.concatenate([[0.0], numpy.cumsum(ranked)])
        fixed, each = self.verify_cost.line
        draft_fixed, draft_each = self.draft_cost.line
        seconds = draft_fixed + draft_each * batch + fixed + each * (batch + numpy.arange(len(tokens)))
        best = int(numpy.argmax(tokens / seconds))
        least = ranked[best - 1] if best else numpy.inf
        self.given, self.verified = survival, (expected >= least).sum(1)
        width = int(self.verified.max())
        num_drafted = None
        if self.verified.min() < width:
            num_drafted = draft.tokens.new_tensor(self.verified)
        return Draft(draft.tokens[:, :width], num_drafted)

"""What calls take and how often drafted tokens are right, measured while decoding: what `policy.py` reckons with."""

from collections.abc import Sequence

import numpy

from fairseq_plugins.decoding.engine.native.build import BINS

# What earlier calls count for after each new one.
MEMORY = 0.98
# Conditional probabilities are recalibrated in bins, each with this much evidence for itself at all times: tokens of
# the lower ones are seldom verified, and never would be again where little that was seen of them counts alone.
_PRIOR, _MEMORY_OF_TOKENS = 8.0, 0.998


class Cost:
    """Seconds of a call as a line over its rows, by least squares with a memory.

    Args:
        doubt: how different the rows of calls have to be, in variance over squared mean, for what they say of the time
            of a row to count as much as the guess.
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
        kept = MEMORY ** sums[0]
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

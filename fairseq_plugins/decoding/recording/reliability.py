"""Calibration of a drafter: the counts of a reliability diagram."""

from dataclasses import dataclass

import torch
from torch import Tensor

# Of a diagram that people read; policies have 20 (`SURVIVAL_BINS`, native/csrc/policy.h).
BINS = 10

HEADERS = ("drafter's probability", "tokens", "its mean", "right")


@dataclass(frozen=True)
class Reliability:
    """Counts [BINS] of drafted tokens whose predecessors in the draft are right, by predicted probability.

    Attributes:
        tokens: number of tokens.
        probability: sum of the drafter's conditional probabilities of the tokens.
        right: number of right tokens.
    """

    tokens: Tensor
    probability: Tensor
    right: Tensor

    @classmethod
    def of(cls, probabilities: Tensor, right: Tensor) -> "Reliability":
        """Count tokens with predicted probabilities [n]; `right` [n] says which are right."""
        probabilities = probabilities.double()
        bins = (probabilities * BINS).long().clamp(0, BINS - 1)
        return cls(
            torch.bincount(bins, minlength=BINS).double(),
            torch.bincount(bins, probabilities, BINS),
            torch.bincount(bins[right], minlength=BINS).double(),
        )

    @property
    def total(self) -> int:
        """Total number of tokens."""
        return int(self.tokens.sum())

    @property
    def error(self) -> float:
        """Expected calibration error, 0 to 1 (Guo et al. 2017, equation 3); 0 without tokens."""
        return float((self.right - self.probability).abs().sum()) / max(self.total, 1)

    def points(self) -> list[tuple[float, float, int]]:
        """Return (mean probability, share of right tokens, tokens) of every bin that is not empty."""
        rows = zip(self.probability.tolist(), self.right.tolist(), self.tokens.tolist(), strict=True)
        return [(total / tokens, right / tokens, int(tokens)) for total, right, tokens in rows if tokens > 0]

    def rows(self) -> list[list[str]]:
        """Return `points` as table rows, for `HEADERS`."""
        names = [f"{number / BINS:g} to {(number + 1) / BINS:g}" for number in range(BINS)]
        filled = [name for name, tokens in zip(names, self.tokens.tolist(), strict=True) if tokens > 0]
        return [
            [name, f"{tokens:,}", f"{probability:.3f}", f"{right:.3f}"]
            for name, (probability, right, tokens) in zip(filled, self.points(), strict=True)
        ]

"""Whether a drafter knows how likely its tokens are right: the counts of a reliability diagram."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Of probabilities, as adaptive verification has them (engine/native/csrc/drafter.h).
BINS = 10

HEADERS = ("drafter's probability", "tokens", "its mean", "right")


@dataclass(frozen=True)
class Reliability:
    """Drafted tokens after right ones only, in the bins of probabilities that adaptive verification has: [BINS] each.

    Attributes:
        tokens: how many.
        probability: sum of what the drafter said of them: how likely each is right, given that those before it are.
        right: how many were right.
    """

    tokens: Tensor
    probability: Tensor
    right: Tensor

    @classmethod
    def of(cls, probabilities: Tensor, right: Tensor) -> "Reliability":
        """Count tokens with these probabilities [n], of which some were right [n]."""
        probabilities = probabilities.double()
        bins = (probabilities * BINS).long().clamp(0, BINS - 1)
        return cls(
            torch.bincount(bins, minlength=BINS).double(),
            torch.bincount(bins, probabilities, BINS),
            torch.bincount(bins[right], minlength=BINS).double(),
        )

    @classmethod
    def from_sums(cls, sums: Mapping[str, Tensor]) -> "Reliability":
        """As `vars` gave them, added up."""
        return cls(**{name: sums[name].double().cpu() for name in cls.__dataclass_fields__})

    @property
    def total(self) -> int:
        """Number of all tokens."""
        return int(self.tokens.sum())

    @property
    def error(self) -> float:
        """Expected calibration error: how far probability and share of right tokens are apart in a token's bin.

        0 to 1, the mean over tokens (Guo et al. 2017, equation 3); 0 without any.
        """
        return float((self.right - self.probability).abs().sum()) / max(self.total, 1)

    def points(self) -> list[tuple[float, float, int]]:
        """(mean probability, share of right tokens, tokens) of every bin that has some."""
        rows = zip(self.probability.tolist(), self.right.tolist(), self.tokens.tolist(), strict=True)
        return [(promised / tokens, right / tokens, int(tokens)) for promised, right, tokens in rows if tokens > 0]

    def rows(self) -> list[list[str]]:
        """The same as a table, with `HEADERS`."""
        names = [f"{number / BINS:g} to {(number + 1) / BINS:g}" for number in range(BINS)]
        filled = [name for name, tokens in zip(names, self.tokens.tolist(), strict=True) if tokens > 0]
        return [
            [name, f"{tokens:,}", f"{promised:.3f}", f"{right:.3f}"]
            for name, (promised, right, tokens) in zip(filled, self.points(), strict=True)
        ]

"""Chooses the length of drafts: the one with the most expected tokens per second.

An iteration of n sentences with drafts of w tokens emits n (1 + sum of the survival of the first w tokens) and takes
as long as a replay of its graph, which is measured. Survival begins with the drafter's counts and follows what is
accepted.
"""

from collections.abc import Callable

from torch import Tensor

from fairseq_plugins.decoding.kernel_module import Unsupported

# Drafted tokens at a position after which older counts have half of their weight.
_HORIZON = 500.0
# Tokens that a prior counts as: unknown positions are tried.
_PRIOR = 8.0
# Iterations between two looks at longer drafts than the chosen ones, which alone would not be counted.
_EXPLORE = 200


class Policy:
    """Chooses among some lengths of drafts up to `width` tokens; 0 is greedy decoding."""

    def __init__(self, width: int, always_drafts: bool = False) -> None:
        if always_drafts:
            raise Unsupported("survival is counted by the drafter's probabilities, which stay on the device")
        self.most = width
        self.widths = sorted({0, *(max(1, width * share // 4) for share in (1, 2, 4))})
        self.drafted = [_PRIOR] * width
        self.accepted = [_PRIOR * 0.8 ** (place + 1) for place in range(width)]
        self.seconds: dict[int, dict[int, float]] = {}
        self.chosen: dict[int, int] = {}
        self.uses = 0

    def learn(self, drafted: Tensor, accepted: Tensor) -> None:
        """Add counts [W, bins] of drafts that were verified in full."""
        for place, (tried, kept) in enumerate(zip(drafted.sum(1).tolist(), accepted.sum(1).tolist(), strict=True)):
            if place < self.most:
                self._add(place, tried, kept)
        self.chosen.clear()

    def count(self, drafted: int, accepted: int) -> None:
        """Add the result of a draft: tokens drafted, and accepted from the first one on."""
        for place in range(drafted):
            self._add(place, 1.0, float(place < accepted))

    def measure(self, places: int, seconds_of: Callable[[int], float]) -> None:
        """Measure the lengths of drafts for a number of places, once."""
        if places not in self.seconds:
            self.seconds[places] = {width: seconds_of(width) for width in self.widths}

    def width(self, places: int) -> int:
        """Return the length of the drafts of the next iteration."""
        self.uses += 1
        if self.uses % _EXPLORE == 0:
            self.chosen.clear()
            return self.most
        if self.uses % 16 == 0:
            self.chosen.clear()
        if places not in self.chosen:
            self.chosen[places] = max(self.widths, key=lambda width: self.rate(places, width))
        return self.chosen[places]

    def rate(self, places: int, width: int) -> float:
        """Return the expected tokens per second of a sentence with drafts of `width` tokens."""
        survival = [kept / tried for kept, tried in zip(self.accepted, self.drafted, strict=True)]
        return (1 + sum(survival[:width])) / self.seconds[places][width]

    def _add(self, place: int, tried: float, kept: float) -> None:
        total = self.drafted[place] + tried
        share = min(1.0, _HORIZON / total)
        self.drafted[place], self.accepted[place] = share * total, share * (self.accepted[place] + kept)

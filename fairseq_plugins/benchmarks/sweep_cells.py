"""The settings of a sweep, what was measured for them, and which of them are best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

GREEDY = "AT, greedy"


@dataclass(frozen=True, order=True)
class Cell:
    """One setting. Without a block size: a baseline, by name."""

    block_size: int = 0
    top_beta: int = 1
    tau: float = 0.0
    baseline: str = ""

    @property
    def exact(self) -> bool:
        """Whether only the verifier's best token is accepted: then it is gad, and its output greedy's."""
        return self.top_beta == 1 or self.tau == 0

    @property
    def effective(self) -> "Cell":
        """The setting that stands for all of the same outcome."""
        return Cell(self.block_size) if self.exact and not self.baseline else self

    def options(self) -> str:
        """As options of fairseq-generate."""
        if self.exact:
            return f"--decoder gad --fixed-width --block-size {self.block_size}"
        return f"--decoder gad++ --block-size {self.block_size} --top-beta {self.top_beta} --tau {self.tau:g}"

    def __str__(self) -> str:
        if self.baseline:
            return self.baseline
        rule = "exact" if self.exact else f"top-{self.top_beta}, τ = {self.tau:g}"
        return f"k = {self.block_size}, {rule}"


@dataclass(frozen=True)
class Result:
    """What was measured for a setting.

    Attributes:
        bleu: sacreBLEU of raw text.
        mean_accepted_tokens: tokens per iteration, None where they are not counted (beam search).
        iterations: per sentence.
        sentences: how many were decoded.
        seconds: time in the decoder, the median over repetitions.
    """

    bleu: float
    mean_accepted_tokens: float | None
    iterations: float | None
    sentences: int
    seconds: float

    @property
    def rate(self) -> float:
        """Sentences per second: the speed that counts for the user."""
        return self.sentences / max(self.seconds, 1e-9)

    @property
    def tokens(self) -> float:
        """Tokens per iteration: the speed that does not depend on the machine."""
        return self.mean_accepted_tokens or 0.0


Results = dict[Cell, Result]


def grid(block_sizes: Sequence[int], top_betas: Sequence[int], taus: Sequence[float]) -> list[Cell]:
    """All settings in the order of the tables, those of the same outcome included."""
    return [Cell(k, beta, tau) for k in block_sizes for tau in taus for beta in top_betas]


def pareto_front(results: Mapping[Cell, Result], speed: Callable[[Result], float]) -> set[Cell]:
    """Settings that no other beats in speed without losing BLEU, or in BLEU without losing speed."""
    front = set()
    best = float("-inf")
    for cell in sorted(results, key=lambda c: (-speed(results[c]), -results[c].bleu, c)):
        if results[cell].bleu > best:
            best = results[cell].bleu
            front.add(cell)
    return front


def fastest(results: Mapping[Cell, Result], min_bleu: float) -> Cell | None:
    """The setting with the most sentences per second among those of at least this BLEU, compared as printed."""
    good = [cell for cell, result in results.items() if round(result.bleu, 2) >= round(min_bleu, 2)]
    return max(good, key=lambda cell: results[cell].rate, default=None)


def distinct(results: Mapping[Cell, Result]) -> Results:
    """Results of different settings only, without baselines."""
    return {cell.effective: result for cell, result in results.items() if not cell.baseline}


def recommendations(results: Mapping[Cell, Result], tolerance: float) -> dict[str, Cell | None]:
    """The settings to use: title -> setting, None where no setting will do."""
    settings, greedy = distinct(results), results[Cell(baseline=GREEDY)].bleu
    return {
        f"no quality loss (BLEU at least greedy's {greedy:.2f})": fastest(settings, greedy),
        f"fastest within {tolerance:g} BLEU of greedy": fastest(settings, greedy - tolerance),
    }

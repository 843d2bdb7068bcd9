"""The settings of a sweep, their measurements and recommendations; as Markdown and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairseq_plugins.shared.display import table

GREEDY = "AT, greedy"


@dataclass(frozen=True, order=True)
class Cell:
    """One setting, or a baseline by name (`block_size` 0)."""

    block_size: int = 0
    top_beta: int = 1
    tau: float = 0.0
    baseline: str = ""

    @property
    def exact(self) -> bool:
        """Whether acceptance is exact, so that the output is that of greedy decoding."""
        return self.top_beta == 1 or self.tau == 0

    def options(self) -> str:
        """Return the setting as options of fairseq-generate."""
        if self.exact:
            return f"--decoder gad --fixed-width --block-size {self.block_size}"
        return f"--decoder gad++ --block-size {self.block_size} --top-beta {self.top_beta} --tau {self.tau:g}"

    def __str__(self) -> str:
        if self.baseline:
            return self.baseline
        rule = "exact" if self.exact else f"top-{self.top_beta}, τ = {self.tau:g}"
        return f"k = {self.block_size}, {rule}"


@dataclass(frozen=True)
class CellResult:
    """The measurement of a setting."""

    bleu: float  # sacreBLEU of raw text
    tokens_per_iteration: float | None  # tokens per iteration; None for beam search
    sentences: int  # number of decoded sentences
    seconds: float  # in the decoder; median over the repetitions

    @property
    def rate(self) -> float:
        """Sentences per second."""
        return self.sentences / max(self.seconds, 1e-9)


CellResults = dict[Cell, CellResult]


def grid(block_sizes: Sequence[int], top_betas: Sequence[int], taus: Sequence[float]) -> list[Cell]:
    """Return all settings; of the exact ones, whose results are equal, one for each block size."""
    cells = [Cell(k, beta, tau) for k in block_sizes for tau in taus for beta in top_betas]
    return list(dict.fromkeys(Cell(cell.block_size) if cell.exact else cell for cell in cells))


def pareto_front(results: Mapping[Cell, CellResult]) -> set[Cell]:
    """Return the settings that no other beats in speed without losing BLEU, or in BLEU without losing speed."""
    settings = without_baselines(results)
    front = set()
    best = float("-inf")
    for cell in sorted(settings, key=lambda c: (-settings[c].rate, -settings[c].bleu, c)):
        if settings[cell].bleu > best:
            best = settings[cell].bleu
            front.add(cell)
    return front


def fastest(results: Mapping[Cell, CellResult], min_bleu: float) -> Cell | None:
    """Return the fastest setting with at least this BLEU, compared as printed."""
    good = [cell for cell, result in results.items() if round(result.bleu, 2) >= round(min_bleu, 2)]
    return max(good, key=lambda cell: results[cell].rate, default=None)


def without_baselines(results: Mapping[Cell, CellResult]) -> CellResults:
    """Return the results of settings."""
    return {cell: result for cell, result in results.items() if not cell.baseline}


def recommendations(results: Mapping[Cell, CellResult], tolerance: float) -> dict[str, Cell | None]:
    """Return title -> recommended setting, None if no setting qualifies."""
    settings, greedy = without_baselines(results), results[Cell(baseline=GREEDY)].bleu
    return {
        f"no quality loss (BLEU at least greedy's {greedy:.2f})": fastest(settings, greedy),
        f"fastest within {tolerance:g} BLEU of greedy": fastest(settings, greedy - tolerance),
    }


def _table(results: Mapping[Cell, CellResult]) -> str:
    """Return a table of all settings, baselines first, with the Pareto front marked."""
    front, greedy = pareto_front(results), results[Cell(baseline=GREEDY)]
    rows = []
    for cell, result in sorted(results.items()):
        tokens = "-" if result.tokens_per_iteration is None else f"{result.tokens_per_iteration:.2f}"
        quality = [f"{result.bleu:.2f}", f"{result.bleu - greedy.bleu:+.2f}"]
        speed = [f"{result.rate:.1f}", f"{result.rate / greedy.rate:.2f}×"]
        rows.append([str(cell), tokens, *quality, *speed, "●" if cell in front else ""])
    headers = ["setting", "tokens/iteration", "BLEU", "over greedy", "sentences/s", "over greedy", "Pareto front"]
    return table(rows, headers, "pipe")


def as_json(results: Mapping[Cell, CellResult], tolerance: float, notes: Sequence[str]) -> dict[str, Any]:
    """Everything, for `sweep.json`."""
    front = pareto_front(results)
    records = {
        cell: {**asdict(cell), **asdict(result), "sentences_per_second": result.rate}
        for cell, result in sorted(results.items())
    }
    chosen = zip(("no_quality_loss", "within_tolerance"), recommendations(results, tolerance).values(), strict=True)
    return {
        "cells": [{**record, "pareto_front": cell in front} for cell, record in records.items() if not cell.baseline],
        "baselines": {
            "greedy" if cell.baseline == GREEDY else "beam": record for cell, record in records.items() if cell.baseline
        },
        "recommended": {name: None if cell is None else cell.options() for name, cell in chosen},
        "tolerance": tolerance,
        "notes": list(notes),
    }


def markdown(results: Mapping[Cell, CellResult], tolerance: float, notes: Sequence[str]) -> str:
    """The table and recommendations."""
    greedy = results[Cell(baseline=GREEDY)]
    parts = [_table(results), "## Recommended settings"]
    for title, cell in recommendations(results, tolerance).items():
        if cell is None:
            parts.append(f"- {title}: none of these; add --top-betas 1, which keeps greedy's output")
            continue
        result = results[cell]
        parts.append(
            f"- {title}: `{cell.options()}` (BLEU {result.bleu:.2f}, {result.tokens_per_iteration:.2f} tokens "
            f"per iteration, {result.rate:.1f} sentences/s, {result.rate / greedy.rate:.2f}× greedy)"
            + ("" if result.rate >= greedy.rate else "; `--decoder greedy` is faster with these models on this machine")
        )
    return "\n\n".join([*parts, *notes]) + "\n"

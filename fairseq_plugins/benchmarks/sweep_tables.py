"""The table of a sweep and its settings to use; as Markdown and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fairseq_plugins.benchmarks.sweep_cells import GREEDY, Cell, CellResult, pareto_front, recommendations
from fairseq_plugins.shared.display import table


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

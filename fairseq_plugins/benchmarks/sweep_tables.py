"""The tables of a sweep, as GAD Tables 2 and 3, and its settings to use; as Markdown and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fairseq_plugins.benchmarks.sweep_cells import (
    GREEDY,
    Cell,
    CellResult,
    pareto_front,
    recommendations,
    without_baselines,
)
from fairseq_plugins.shared.display import table

# The paper's own choices, GAD Table 2 and section 5.3.1.
TABLE_2_SETTING = (3, 1.0)


def fronts(settings: Mapping[Cell, CellResult]) -> tuple[set[Cell], set[Cell]]:
    """Return the settings on the Pareto front of BLEU and tokens per iteration, and of BLEU and sentences/s."""
    by_tokens = pareto_front(settings, lambda result: result.tokens)
    return by_tokens, pareto_front(settings, lambda result: result.rate)


def table_2(results: Mapping[Cell, CellResult]) -> str:
    """As GAD Table 2: tokens per iteration, BLEU and speed by block size, for gad and for one setting of gad++."""
    settings = sorted({(cell.top_beta, cell.tau) for cell in results if not cell.exact})
    chosen = TABLE_2_SETTING if TABLE_2_SETTING in settings else next(iter(settings), None)
    shown = [cell for cell in results if cell.baseline]
    shown += sorted(cell for cell in without_baselines(results) if cell.exact)
    shown += sorted(cell for cell in results if not cell.exact and (cell.top_beta, cell.tau) == chosen)
    slowest = results[shown[0]].rate
    rows, before = [], ""
    for cell in shown:
        result = results[cell]
        name = cell.baseline or ("GAD" if cell.exact else f"GAD++ (top-{cell.top_beta}, τ = {cell.tau:g})")
        tokens = "/" if result.tokens_per_iteration is None else f"{result.tokens:.2f}"
        speed = [f"{result.rate / slowest:.2f}×", f"{result.rate:.1f}"]
        rows.append(["" if name == before else name, cell.block_size or "/", tokens, f"{result.bleu:.2f}", *speed])
        before = name
    return table(rows, ["Models", "k", "Tok.", "BLEU", "Speed", "sentences/s"], "pipe")


def table_3(results: Mapping[Cell, CellResult], block_size: int) -> str:
    """As GAD Table 3: tokens per iteration and BLEU by τ and β, at one block size; bold: Pareto front over all k."""
    front, _ = fronts(without_baselines(results))
    cells = [cell for cell in results if cell.block_size == block_size and not cell.exact]
    betas = sorted({cell.top_beta for cell in cells})
    rows = []
    for tau in sorted({cell.tau for cell in cells}):
        row = [f"{tau:g}"]
        for cell in (Cell(block_size, beta, tau) for beta in betas):
            text = f"{results[cell].tokens:.2f}/{results[cell].bleu:.2f}"
            row.append(f"**{text}**" if cell in front else text)
        rows.append(row)
    return table(rows, ["τ", *(f"Top-{beta} (β = {beta})" for beta in betas)], "pipe")


def table_of_all(results: Mapping[Cell, CellResult]) -> str:
    """Every setting, with the two Pareto fronts marked."""
    settings = without_baselines(results)
    by_tokens, by_rate = fronts(settings)
    greedy = results[Cell(baseline=GREEDY)]
    rows = []
    for cell, result in sorted(settings.items()):
        quality = [f"{result.bleu:.2f}", f"{result.bleu - greedy.bleu:+.2f}"]
        speed = [f"{result.rate:.1f}", f"{result.rate / greedy.rate:.2f}×"]
        marks = ["●" if cell in front else "" for front in (by_tokens, by_rate)]
        rows.append([str(cell), f"{result.tokens:.2f}", f"{result.iterations:.2f}", *quality, *speed, *marks])
    headers = ["setting", "tokens per iteration", "iterations", "BLEU", "over greedy", "sentences/s", "over greedy"]
    return table(rows, [*headers, "Pareto, tokens", "Pareto, speed"], "pipe")


def as_record(cell: Cell, result: CellResult) -> dict[str, Any]:
    """A setting and what was measured for it, for JSON."""
    return {**asdict(cell), **asdict(result), "sentences_per_second": result.rate}


def as_json(results: Mapping[Cell, CellResult], tolerance: float, notes: Sequence[str]) -> dict[str, Any]:
    """Everything, for `sweep.json`."""
    settings = without_baselines(results)
    by_tokens, by_rate = fronts(settings)
    baselines = {"greedy" if cell.baseline == GREEDY else "beam": cell for cell in results if cell.baseline}
    chosen = zip(("no_quality_loss", "within_tolerance"), recommendations(results, tolerance).values(), strict=True)
    return {
        "cells": [
            {**as_record(cell, result), "pareto_tokens": cell in by_tokens, "pareto_speed": cell in by_rate}
            for cell, result in sorted(settings.items())
        ],
        "baselines": {name: as_record(cell, results[cell]) for name, cell in baselines.items()},
        "recommended": {name: None if cell is None else cell.options() for name, cell in chosen},
        "tolerance": tolerance,
        "notes": list(notes),
    }


def markdown(results: Mapping[Cell, CellResult], tolerance: float, notes: Sequence[str]) -> str:
    """The tables and recommendations."""
    greedy = results[Cell(baseline=GREEDY)]
    parts = ["## By block size (as GAD Table 2)", table_2(results)]
    for block_size in sorted({cell.block_size for cell in results if not cell.exact}):
        parts += [
            f"## By β and τ, k = {block_size} (as GAD Table 3)",
            table_3(results, block_size),
            f"Tokens per iteration/BLEU; greedy has BLEU {greedy.bleu:.2f}. Bold: on the Pareto front over all k.",
        ]
    parts += ["## All settings", table_of_all(results), "![BLEU over speed](sweep.png)", "## Recommended settings"]
    for title, cell in recommendations(results, tolerance).items():
        if cell is None:
            parts.append(f"- {title}: none of these; add --top-betas 1, which keeps greedy's output")
            continue
        result = results[cell]
        parts.append(
            f"- {title}: `{cell.options()}` (BLEU {result.bleu:.2f}, {result.tokens:.2f} tokens "
            f"per iteration, {result.rate:.1f} sentences/s, {result.rate / greedy.rate:.2f}× greedy)"
            + ("" if result.rate >= greedy.rate else "; `--decoder greedy` is faster with these models on this machine")
        )
    return "\n\n".join([*parts, *notes]) + "\n"

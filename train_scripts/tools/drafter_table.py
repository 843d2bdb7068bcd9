"""Write the table of `train_scripts/drafter_table.sh`: quality and speed of each drafter, over one or several seeds."""

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from tabulate import tabulate

import fairseq_plugins  # noqa: F401  (lets torch read fairseq's checkpoints)


def mean_and_spread(values: Sequence[float], format_spec: str) -> str:
    """Return the mean of values as text; of several values also the standard deviation."""
    spread = f" ± {statistics.stdev(values):{format_spec}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{format_spec}}{spread}"


def read_cell(file: Path) -> list[float]:
    """Return BLEU, tokens, iterations and tokens per iteration of a decoding, from the file of `measure_decoding`."""
    return [float(number) for number in file.read_text(encoding="utf-8").split()]


def read_timing(folder: Path) -> tuple[float, float, float, float]:
    """Return milliseconds per draft, sentences/s at batch sizes 1 and 16, and speed-up over fairseq's beam 1."""
    rows = json.loads((folder / "table.json").read_text(encoding="utf-8"))["rows"]
    row = next(row for row in rows if row["name"] == "gad fixed width")
    profile = Path(f"{folder}.log").read_text(encoding="utf-8").split("Where the time goes: gad fixed width", 1)[1]
    drafting = re.search(r"\| drafter +\| +([\d.]+)", profile)
    assert drafting is not None
    rates = row["sentences_per_second"]
    return float(drafting[1]) / row["iterations"], rates["1"], rates["16"], row["speed_up_over_fairseq_beam_1"]["1"]


def row(name: str, runs: Sequence[str], block_sizes: Sequence[str], cells: Path, models: Path) -> list[str]:
    """Return a drafter's row of the table.

    Args:
        name: name of the drafter; the file NAME.what describes it.
        runs: names of its trainings, one for each seed.
        block_sizes: block sizes of the decodings.
        cells: folder of the measurements.
        models: folder of the trained drafters and their logs.
    """
    accepted = [[read_cell(cells / f"{run}-{k}")[3] for run in runs] for k in block_sizes]
    bleu = [read_cell(cells / f"{run}-relaxed")[0] for run in runs]
    logs = [(models / "logs" / f"{run}.log").read_text(encoding="utf-8") for run in runs]
    updates = [float(re.findall(r"num_updates\W+(\d+)", log)[-1]) for log in logs]
    weights = torch.load(models / runs[0] / "checkpoint_best.pt", map_location="cpu")["model"]
    parameters = sum(value.numel() for value in weights.values() if value.is_floating_point())
    timings = zip(*(read_timing(cells / f"{run}-timing") for run in runs), strict=True)
    description = (cells / f"{name}.what").read_text(encoding="utf-8").strip()
    measured = [mean_and_spread(values, ".2f") for values in (*accepted, bleu)]
    speed = [mean_and_spread(*pair) for pair in zip(timings, (".3f", ".1f", ".1f", ".2f"), strict=True)]
    return [description, *measured, mean_and_spread(updates, ".0f"), f"{parameters / 1000:,.0f}", *speed]


def write(
    out: Path,
    *,
    cells: Path,
    models: Path,
    drafters: Sequence[str],
    seeds: Sequence[str],
    block_sizes: Sequence[str],
    timed: str,
    note: str,
) -> None:
    """Write the table of drafter_table.sh.

    Args:
        out: file of the table.
        cells: folder of the measurements.
        models: folder of the trained drafters and their logs.
        drafters: names of the drafters, in the order of the rows.
        seeds: seeds of the trainings.
        block_sizes: block sizes of the decodings.
        timed: block size of the timings, and of gad++.
        note: description of all trainings, for the note below the table.
    """
    header = ["drafter", *(f"accepted, k = {k}" for k in block_sizes), "BLEU of gad++", "updates", "1000 parameters"]
    header += ["ms per draft", "sent/s, batch 1", "sent/s, batch 16", "× beam 1"]
    rows = [row(name, [f"{name}-{seed}" for seed in seeds], block_sizes, cells, models) for name in drafters]
    alignment = ["left"] + ["right"] * (len(header) - 1)
    table = tabulate(rows, header, tablefmt="github", colalign=alignment, disable_numparse=True)
    notes = f"Every drafter: {note}. Whole drafts are verified. BLEU of gad++ (high-quality) and speeds: k = {timed}."
    out.write_text(f"{table}\n\n{notes}\n", encoding="utf-8")

"""Find the settings of gad++ on a development set: block size k, top-beta and tau, in one process.

    spec-dec-sweep DATA --path V.pt --drafter-path D.pt --gen-subset valid --block-sizes 5,10 --top-betas 1,3,5 \\
        --taus 0,1,2,3 --output FOLDER

All options of fairseq-generate are understood too. Prints Tables 2 and 3 of Generalized Aggressive Decoding, and the
settings to use. Interrupted, it goes on where it was: every finished setting is in FOLDER/cells.jsonl.
"""

import argparse
import fcntl
import json
import shlex
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from fairseq_plugins.benchmarks import machine, measuring
from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.comparison_options import leave_the_decoder_to_us
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.commands.cli import run_command
from fairseq_plugins.commands.files import sha256, write_atomically
from fairseq_plugins.commands.parsing import (
    as_config,
    check_paths,
    generation_parser,
    parse_arguments,
    positive,
    positive_list,
)
from fairseq_plugins.commands.progress import progress_bar
from fairseq_plugins.commands.tables import table
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.pages.sweep_figure import quality_figure

# The paper's own choices, GAD Table 2 and section 5.3.1.
TABLE_2_SETTING = (3, 1.0)


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
            return f"--decoder gad --block-size {self.block_size}"
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
        accepted_tokens: tokens per iteration, None where they are not counted (beam search).
        iterations: per sentence.
        sentences: how many were decoded.
        seconds: time in the decoder, the median over repetitions.
    """

    bleu: float
    accepted_tokens: float | None
    iterations: float | None
    sentences: int
    seconds: float

    @property
    def rate(self) -> float:
        """Sentences per second."""
        return self.sentences / max(self.seconds, 1e-9)


Results = dict[Cell, Result]
Measure = Callable[[Cell], Result]


def grid(block_sizes: Sequence[int], top_betas: Sequence[int], taus: Sequence[float]) -> list[Cell]:
    """All settings in the order of the tables, those of the same outcome included."""
    return [Cell(k, beta, tau) for k in block_sizes for tau in taus for beta in top_betas]


# ------------------------------------------------------------------------------------------------------ resuming


class Journal:
    """The finished settings of a folder, in a JSON-lines file that is replaced as a whole whenever one is added.

    Args:
        file: `cells.jsonl`.
        circumstances: all that must be the same for a finished setting to count: checkpoints, data, options, machine.

    Raises:
        ConfigurationError: when the file was not written by a sweep.
    """

    def __init__(self, file: Path, circumstances: Mapping[str, Any]) -> None:
        self.file = file
        self.circumstances = dict(circumstances)
        self.results: Results = {}
        self.foreign = 0
        self._lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        for number, line in enumerate(self._lines, 1):
            try:
                record = json.loads(line)
                cell, result = Cell(**record["cell"]), Result(**record["result"])
                same = record["circumstances"] == self.circumstances
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigurationError(
                    f"--output {file}, line {number}: not written by spec-dec-sweep; remove the file or choose "
                    "another folder"
                ) from error
            if same:
                self.results[cell] = result
            else:
                self.foreign += 1

    def add(self, cell: Cell, result: Result) -> None:
        """Record a finished setting."""
        record = {"cell": asdict(cell), "result": asdict(result), "circumstances": self.circumstances}
        self._lines.append(json.dumps(record, ensure_ascii=False))
        write_atomically(self.file, "\n".join(self._lines) + "\n", "--output")
        self.results[cell] = result


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Keep a second sweep out of the folder.

    Raises:
        ConfigurationError: when one is running there, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"--output {folder}: cannot be written ({error.strerror}); give a writable folder"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigurationError(
                f"--output {folder}: another sweep is running there; wait for it or give another folder"
            ) from error
        yield


def circumstances(cfg: DictConfig, args: argparse.Namespace) -> dict[str, Any]:
    """All that the measured values depend on, besides the setting itself."""
    device = "cpu" if cfg.common.cpu or not torch.cuda.is_available() else torch.cuda.get_device_name()
    found = {
        "verifier": sha256([Path(path) for path in utils.split_paths(cfg.common_eval.path)]),
        "drafter": sha256([Path(cfg.task.drafter_path)]),
        "data": sha256(sorted(Path(cfg.task.data).glob(f"{cfg.dataset.gen_subset}.*"))),
        "reference": None if args.reference is None else sha256([Path(args.reference)]),
        "subset": cfg.dataset.gen_subset,
        "sentences": args.sentences,
        "repeats": args.repeats,
        "batch_size": cfg.dataset.batch_size,
        "accept_score": str(cfg.task.accept_score),
        "generation": OmegaConf.to_container(cfg.generation),
        "model_overrides": cfg.common_eval.model_overrides,
        "fp16": cfg.common.fp16,
        "text": [
            str(part) for part in (cfg.common_eval.post_process, cfg.get("bpe"), cfg.get("tokenizer"))
        ],
        "machine": f"{machine.cpu_model()}, {torch.get_num_threads()} threads, {device}, torch {torch.__version__}",
    }
    return json.loads(json.dumps(found, default=str))  # as it will be read back


# ----------------------------------------------------------------------------------------------------- measuring


def sweep(cells: Sequence[Cell], journal: Journal, measure: Measure, step: Callable[[Cell], None]) -> Results:
    """Measure what the journal lacks, settings of the same outcome once.

    Args:
        cells: baselines and settings.
        journal: keeps what is finished.
        measure: decodes with a setting.
        step: called before each measurement.

    Returns:
        a result for every cell.
    """
    for cell in dict.fromkeys(cell.effective for cell in cells):
        if cell not in journal.results:
            step(cell)
            journal.add(cell, measure(cell))
    return {cell: journal.results[cell.effective] for cell in cells}


def contender(cell: Cell, beam: int) -> Contender:
    """The decoder that a cell names."""
    if cell.baseline == GREEDY:
        return Contender(cell.baseline, "greedy")
    if cell.baseline:
        return Contender(cell.baseline, "beam", beam=beam)
    settings = {"block_size": cell.block_size, "top_beta": cell.top_beta, "tau": cell.tau}
    return Contender(str(cell), "gad" if cell.exact else "gad++", task_options=settings)


GREEDY = "AT, greedy"


def beam_name(beam: int) -> str:
    """Name of fairseq's beam search in tables."""
    return f"AT (b = {beam})"


class Measurement:
    """Decodes settings on the development set, with models loaded once."""

    def __init__(
        self, bench: Bench, numbers: Sequence[int], references: Mapping[int, str], repeats: int, bar: tqdm
    ) -> None:
        self.bench, self.numbers, self.references, self.repeats, self.bar = bench, numbers, references, repeats, bar

    def __call__(self, cell: Cell) -> Result:
        """Decode after a short warm-up: quality and speed come from the same passes."""
        bench = self.bench
        chosen = contender(cell, bench.cfg.generation.beam)
        batch_size = bench.cfg.dataset.batch_size
        bench.decode(bench.generator(chosen), self.numbers[-measuring.WARM_UP_SENTENCES :], batch_size)
        generator, times = bench.generator(chosen), []
        for _ in range(self.repeats):
            outputs, seconds = bench.decode(generator, self.numbers, batch_size, self.bar)
            times.append(seconds)
        # Every pass counts the same, so that these means are those of one.
        iterations, accepted = measuring.iterations(generator, chosen, outputs)
        bleu = measuring.bleu(bench, outputs, self.references)
        return Result(bleu, accepted, iterations, len(outputs), statistics.median(times))


# ----------------------------------------------------------------------------------------------------- choosing


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


# ------------------------------------------------------------------------------------------------------ reporting


def table_2(results: Mapping[Cell, Result]) -> str:
    """As GAD Table 2: accepted tokens, BLEU and speed by block size, for gad and for one setting of gad++."""
    baselines = [cell for cell in results if cell.baseline]
    settings = sorted({(cell.top_beta, cell.tau) for cell in distinct(results) if not cell.exact})
    chosen = TABLE_2_SETTING if TABLE_2_SETTING in settings else next(iter(settings), None)
    shown = [*baselines, *sorted(cell for cell in distinct(results) if cell.exact)]
    shown += sorted(cell for cell in distinct(results) if not cell.exact and (cell.top_beta, cell.tau) == chosen)
    slowest = results[baselines[0]].rate
    rows, before = [], ""
    for cell in shown:
        result = results[cell] if cell in results else distinct(results)[cell]
        name = cell.baseline or ("GAD" if cell.exact else f"GAD++ (top-{cell.top_beta}, τ = {cell.tau:g})")
        accepted = "/" if result.accepted_tokens is None else f"{result.accepted_tokens:.2f}"
        rows.append(
            ["" if name == before else name, cell.block_size or "/", accepted, f"{result.bleu:.2f}",
             f"{result.rate / slowest:.2f}×", f"{result.rate:.1f}"]
        )
        before = name
    return table(rows, ["Models", "k", "Tok.", "BLEU", "Speed", "sentences/s"], "pipe")


def table_3(results: Mapping[Cell, Result], block_size: int) -> str:
    """As GAD Table 3: accepted tokens/BLEU by τ and β, at one block size; bold: Pareto front over all block sizes."""
    front = pareto_front(distinct(results), _accepted)
    cells = [cell for cell in results if cell.block_size == block_size]
    betas = sorted({cell.top_beta for cell in cells})
    rows = []
    for tau in sorted({cell.tau for cell in cells}):
        row = [f"{tau:g}"]
        for beta in betas:
            cell = Cell(block_size, beta, tau)
            text = f"{results[cell].accepted_tokens:.2f}/{results[cell].bleu:.2f}"
            row.append(f"**{text}**" if cell.effective in front else text)
        rows.append(row)
    return table(rows, ["τ", *(f"Top-{beta} (β = {beta})" for beta in betas)], "pipe")


def table_of_all(results: Mapping[Cell, Result]) -> str:
    """Every setting, with the two Pareto fronts marked."""
    settings = distinct(results)
    by_tokens, by_rate = pareto_front(settings, _accepted), pareto_front(settings, _rate)
    greedy = results[Cell(baseline=GREEDY)]
    rows = [
        [
            str(cell), f"{result.accepted_tokens:.2f}", f"{result.iterations:.2f}", f"{result.bleu:.2f}",
            f"{result.bleu - greedy.bleu:+.2f}", f"{result.rate:.1f}", f"{result.rate / greedy.rate:.2f}×",
            "●" if cell in by_tokens else "", "●" if cell in by_rate else "",
        ]
        for cell, result in sorted(settings.items())
    ]
    headers = ["setting", "accepted tokens", "iterations", "BLEU", "over greedy", "sentences/s", "over greedy"]
    return table(rows, [*headers, "Pareto, tokens", "Pareto, speed"], "pipe")


def _accepted(result: Result) -> float:
    return result.accepted_tokens or 0.0


def _rate(result: Result) -> float:
    return result.rate


def recommendations(results: Mapping[Cell, Result], tolerance: float) -> dict[str, Cell | None]:
    """The settings to use: title -> setting, None where no setting will do."""
    settings, greedy = distinct(results), results[Cell(baseline=GREEDY)].bleu
    return {
        f"no quality loss (BLEU at least greedy's {greedy:.2f})": fastest(settings, greedy),
        f"fastest within {tolerance:g} BLEU of greedy": fastest(settings, greedy - tolerance),
    }


def as_record(cell: Cell, result: Result) -> dict[str, Any]:
    """A setting and what was measured for it, for JSON."""
    return {**asdict(cell), **asdict(result), "sentences_per_second": result.rate}


def as_json(results: Mapping[Cell, Result], tolerance: float, notes: Sequence[str]) -> dict[str, Any]:
    """Everything, for `sweep.json`."""
    settings = distinct(results)
    by_tokens, by_rate = pareto_front(settings, _accepted), pareto_front(settings, _rate)
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


def markdown(results: Mapping[Cell, Result], tolerance: float, notes: Sequence[str]) -> str:
    """The tables and recommendations."""
    greedy = results[Cell(baseline=GREEDY)].bleu
    parts = ["## By block size (as GAD Table 2)", table_2(results)]
    for block_size in sorted({cell.block_size for cell in results if not cell.baseline}):
        parts += [
            f"## By β and τ, k = {block_size} (as GAD Table 3)",
            table_3(results, block_size),
            f"Accepted tokens/BLEU; greedy has BLEU {greedy:.2f}. Bold: on the Pareto front of the two, over all k.",
        ]
    parts += ["## All settings", table_of_all(results), "![BLEU over speed](sweep.png)", "## Recommended settings"]
    for title, cell in recommendations(results, tolerance).items():
        if cell is None:
            parts.append(f"- {title}: none of these; add --top-betas 1, which keeps greedy's output")
            continue
        result = distinct(results)[cell]
        parts.append(
            f"- {title}: `{cell.options()}` (BLEU {result.bleu:.2f}, {_accepted(result):.2f} accepted tokens, "
            f"{result.rate:.1f} sentences/s, {result.rate / results[Cell(baseline=GREEDY)].rate:.2f}× greedy)"
        )
    return "\n\n".join([*parts, *notes]) + "\n"


# -------------------------------------------------------------------------------------------------------- command


def tau_list(text: str) -> list[float]:
    """Parse a comma-separated list of numbers of at least 0, for argparse."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from error
    if not all(0 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: a gap of log-probabilities is 0 or more")
    return values


def tolerance_value(text: str) -> float:
    """Parse a number of at least 0, for argparse."""
    (value, *more) = tau_list(text)
    if more:
        raise argparse.ArgumentTypeError(f"{text!r} is not one number")
    return value


def get_parser() -> argparse.ArgumentParser:
    """fairseq-generate's parser with our own options added."""
    parser = generation_parser("spec-dec-sweep")
    parser.set_defaults(gen_subset="valid", batch_size=1)
    add = parser.add_argument_group("sweep").add_argument
    add("--block-sizes", type=positive_list, default=[5, 10, 15, 20, 25], metavar="K,K", help="drafted tokens")
    add("--top-betas", type=positive_list, default=[1, 3, 5], metavar="B,B", help="1: exact")
    add("--taus", type=tau_list, default=[1.0, 2.0, 3.0, 4.0, 5.0], metavar="T,T", help="0: exact")
    add("--output", required=True, metavar="FOLDER", help="write sweep.md, sweep.json, sweep.png and cells.jsonl there")
    add("--tolerance", type=tolerance_value, default=0.2, help="BLEU that the faster setting may lose (default: 0.2)")
    add("--repeats", type=positive, default=1, help="timed passes for each setting; the median counts (default: 1)")
    add("--sentences", type=positive, help="use only the first of the subset")
    add("--reference", metavar="FILE", help="raw text to score against (default: the subset's target side)")
    add("--no-beam", action="store_true", help="leave out the row of fairseq's beam search, which takes longest")
    return parser


def check(cfg: DictConfig, args: argparse.Namespace) -> None:
    """Refuse what a sweep cannot start with."""
    check_paths(cfg)
    if cfg.task.drafter_path is None:
        raise ConfigurationError("--drafter-path is missing; give the checkpoint of the drafter")
    if args.reference is not None and not Path(args.reference).is_file():
        raise ConfigurationError(f"--reference {args.reference}: no such file; give the raw text of the target side")
    leave_the_decoder_to_us(cfg)


def prepare(bench: Bench, args: argparse.Namespace) -> tuple[list[int], dict[int, str], list[Cell]]:
    """Sentences, references and cells of a sweep, checked before anything is decoded."""
    numbers = bench.order if args.sentences is None else bench.first(args.sentences)
    if not numbers:
        raise ConfigurationError(f"--gen-subset {bench.subset}: has no sentences; choose another")
    references = bench.references(args.reference)
    if references is None:
        raise ConfigurationError(f"--gen-subset {bench.subset}: has no target side; give --reference FILE")
    cells = grid(*(sorted(set(values)) for values in (args.block_sizes, args.top_betas, args.taus)))
    # Refuses block sizes that the drafter was not trained for.
    bench.generator(contender(cells[-1], 1))
    baselines = [Cell(baseline=GREEDY)]
    if not args.no_beam:
        baselines.insert(0, Cell(baseline=beam_name(bench.cfg.generation.beam)))
    return list(numbers), references, [*baselines, *cells]


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    args = parse_arguments(get_parser(), argv)
    cfg = as_config(args)
    check(cfg, args)
    folder = Path(args.output)
    with sole_use(folder):
        journal = Journal(folder / "cells.jsonl", circumstances(cfg, args))
        bench = Bench(cfg)
        numbers, references, cells = prepare(bench, args)
        todo = {cell.effective for cell in cells} - journal.results.keys()
        if journal.results or journal.foreign:
            say_what_is_there(journal, len(todo))
        total = len(todo) * len(numbers) * args.repeats
        with progress_bar(total) as bar:
            measure = Measurement(bench, numbers, references, args.repeats, bar)
            results = sweep(cells, journal, measure, lambda cell: bar.set_description(str(cell), refresh=False))
        notes = [
            f"Subset {bench.subset}, {len(numbers)} sentences, batch size {cfg.dataset.batch_size}, timed "
            f"passes: {args.repeats}; "
            f"sacrebleu {measuring.SCORER.get_signature()}",
            f"Machine: {machine.machine()}",
            f"Command: {shlex.join(['spec-dec-sweep', *argv])}",
        ]
        text = markdown(results, args.tolerance, notes)
        content = as_json(results, args.tolerance, notes)
        print(text)
        write_atomically(folder / "sweep.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n", "--output")
        write_atomically(folder / "sweep.png", quality_figure(content), "--output")
        write_atomically(folder / "sweep.md", "# Sweep\n\n" + text, "--output")


def say_what_is_there(journal: Journal, todo: int) -> None:
    """Tell what of an earlier sweep is used and what is not."""
    print(f"{journal.file}: {len(journal.results)} settings finished before, {todo} to do", file=sys.stderr)
    if journal.foreign:
        print(
            f"{journal.file}: {journal.foreign} more are of other checkpoints, data, options or machines, and not used",
            file=sys.stderr,
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-sweep`."""
    return run_command("spec-dec-sweep", run, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Find the settings of gad++ on a development set: block size k, top-beta and tau, in one process.

    spec-dec-sweep DATA --path V.pt --drafter-path D.pt --gen-subset valid --block-sizes 5,10 --top-betas 1,3,5 \\
        --taus 0,1,2,3 --output FOLDER

Takes all options of fairseq-generate. Prints a table of all settings and recommends two of them.
"""

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from fairseq_plugins.benchmarks import measuring
from fairseq_plugins.benchmarks.bench import Bench, References
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.benchmarks.setting import reset_decoder
from fairseq_plugins.benchmarks.sweep_results import GREEDY, Cell, CellResult, as_json, grid, markdown
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.cli import CommandParser, not_negative, positive, positive_list, run_command
from fairseq_plugins.shared.display import progress_bar
from fairseq_plugins.shared.files import check_folder, write_atomically
from fairseq_plugins.shared.machine import machine
from fairseq_plugins.shared.parsing import as_config, check_paths, generation_parser, parse_arguments


def contender(cell: Cell, beam: int) -> Contender:
    """Return the decoder that a cell names."""
    if cell.baseline == GREEDY:
        return Contender(cell.baseline, "greedy")
    if cell.baseline:
        return Contender(cell.baseline, "beam", beam=beam)
    settings = {"block_size": cell.block_size, "top_beta": cell.top_beta, "tau": cell.tau}
    if cell.exact:
        return Contender(str(cell), "gad", task_options={**settings, "fixed_width": True})
    return Contender(str(cell), "gad++", task_options=settings)


def measure(
    bench: Bench, cell: Cell, numbers: Sequence[int], references: References, repeats: int, bar: tqdm
) -> CellResult:
    """Decode with a setting after a short warm-up; quality and speed come from the same passes."""
    bar.set_description(str(cell), refresh=False)
    chosen = contender(cell, bench.cfg.generation.beam)
    bench.decode(bench.generator(chosen), numbers[-measuring.WARM_UP_SENTENCES :], bench.batch_size)
    generator, times = bench.generator(chosen), []
    for _ in range(repeats):
        outputs, seconds = bench.decode(generator, numbers, bench.batch_size, bar)
        times.append(seconds)
    stats = getattr(generator, "stats", None)  # none of fairseq's search
    accepted = None if stats is None else stats.tokens_per_iteration
    return CellResult(measuring.bleu(bench, outputs, references), accepted, len(outputs), statistics.median(times))


def taus(text: str) -> list[float]:
    """Parse a comma-separated list of numbers of at least 0, for argparse."""
    return [not_negative(part) for part in text.split(",")]


def get_parser() -> CommandParser:
    """Return fairseq-generate's parser with the options of a sweep."""
    description = "Measure gad and gad++ with every block size, top-beta and tau, and recommend settings."
    example = "spec-dec-sweep data-bin --path verifier.pt --drafter-path drafter.pt --output sweep"
    parser = generation_parser("spec-dec-sweep", description, example)
    parser.set_defaults(gen_subset="valid", batch_size=1)
    add = parser.add_argument_group("sweep").add_argument
    sizes = "values of --block-size (default: 5,10,15,20,25)"
    add("--block-sizes", type=positive_list, default=[5, 10, 15, 20, 25], metavar="K,K", help=sizes)
    betas = "values of --top-beta; 1 is exact acceptance (default: 1,3,5)"
    add("--top-betas", type=positive_list, default=[1, 3, 5], metavar="B,B", help=betas)
    gaps = "values of --tau; 0 is exact acceptance (default: 1,2,3,4,5)"
    add("--taus", type=taus, default=[1.0, 2.0, 3.0, 4.0, 5.0], metavar="T,T", help=gaps)
    add("--output", required=True, metavar="FOLDER", help="write sweep.md and sweep.json there")
    loss = "BLEU that the faster of the two recommended settings may lose (default: 0.2)"
    add("--tolerance", type=not_negative, default=0.2, metavar="BLEU", help=loss)
    passes = "timed passes for each setting; the table shows the median (default: 1)"
    add("--repeats", type=positive, default=1, metavar="N", help=passes)
    add("--sentences", type=positive, metavar="N", help="use only the first N of the subset (default: all)")
    several = "raw text to score against; repeatable, for several references (default: the subset's target side)"
    add("--reference", action="append", metavar="FILE", help=several)
    add("--no-beam", action="store_true", help="leave out the row of fairseq's beam search, the slowest")
    return parser


def prepare(bench: Bench, args: argparse.Namespace) -> tuple[list[int], References, list[Cell]]:
    """Return sentences, references and cells of a sweep.

    Raises ConfigurationError for a missing reference, and block sizes that the drafter was not trained for.
    """
    numbers = bench.order
    references = bench.references(args.reference)
    if references is None:
        raise ConfigurationError("--gen-subset", bench.subset, "has no target side", "give {--reference FILE}")
    cells = grid(*(sorted(set(values)) for values in (args.block_sizes, args.top_betas, args.taus)))
    bench.generator(contender(max(cells), 1))  # checks the largest block size
    baselines = [Cell(baseline=GREEDY)]
    if not args.no_beam:
        baselines.insert(0, Cell(baseline=f"AT (b = {bench.cfg.generation.beam})"))
    return list(numbers), references, [*baselines, *cells]


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    args = parse_arguments(get_parser(), argv)
    cfg = as_config(args)
    check_paths(cfg)
    if cfg.task.drafter_path is None:
        raise ConfigurationError("--drafter-path", None, "is missing", "give the checkpoint of the drafter")
    for file in args.reference or ():
        if not Path(file).is_file():
            raise ConfigurationError("--reference", file, "no such file", "give the raw text of the target side")
    reset_decoder(cfg)
    folder = Path(args.output)
    check_folder(folder, "--output")
    bench = Bench(cfg, sentences=args.sentences)
    numbers, references, cells = prepare(bench, args)
    with progress_bar(len(cells) * len(numbers) * args.repeats) as bar:
        results = {cell: measure(bench, cell, numbers, references, args.repeats, bar) for cell in cells}
    notes = [
        f"Subset {bench.subset}, {len(numbers)} sentences, batch size {bench.batch_size}, timed passes: "
        f"{args.repeats}; sacrebleu {measuring.bleu_signature(bench, len(args.reference or [1]))}",
        f"Machine: {machine()}",
        f"Command: {shlex.join(['spec-dec-sweep', *argv])}",
    ]
    text = markdown(results, args.tolerance, notes)
    content = as_json(results, args.tolerance, notes)
    print(text)
    write_atomically(folder / "sweep.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n", "--output")
    write_atomically(folder / "sweep.md", "# Sweep\n\n" + text, "--output")


main = partial(run_command, "spec-dec-sweep", run)


if __name__ == "__main__":
    sys.exit(main())

"""Compare the speed of our decoders, fairseq's own search and CTranslate2 on the same checkpoints and sentences.

    spec-dec-bench DATA_BIN --path VERIFIER.pt [--drafter-path DRAFTER.pt] [--blockwise-path HEADS.pt] --results FOLDER
    spec-dec-bench --replay base --results FOLDER

Takes all options of fairseq-generate. Contenders are timed in turns in one process, so that other load on the machine
slows all of them alike; memory is measured in a separate process for each. `--replay SHAPE` uses random weights and
replayed drafts: it measures the speed of a shape, not quality.
"""

import os
import shlex
import sys
from collections.abc import Sequence

from fairseq_plugins.benchmarks import ctranslate, peak_memory, replay, tables
from fairseq_plugins.benchmarks.compare import publish
from fairseq_plugins.benchmarks.measuring import Plan, measure
from fairseq_plugins.benchmarks.setting import Setting, configure
from fairseq_plugins.shared.cli import run_command
from fairseq_plugins.shared.machine import machine
from fairseq_plugins.shared.session import precision

MEASURED = (
    "Latency: percentiles over the sentences of each sentence's median over the repetitions. Memory: peak in a "
    "separate process; on a CPU resident memory minus that before models were loaded, on a GPU memory allocated by "
    "PyTorch, and memory reserved by it (CUDA graphs included). On paper: computed size of the models' weights, and of "
    "the keys and values of all layers for the largest batch."
)


def origin(setting: Setting, argv: Sequence[str], load: float) -> list[str]:
    """Return the notes on models, machine and command; `load` is the load average before the run."""
    args, cfg = setting.args, setting.bench.cfg
    lines = []
    if args.replay is not None:
        drawn = ", ".join(f"{row.name} {row.replay}" for row in setting.contenders if row.replay is not None)
        models = (args.replay, args.replay_drafter, args.replay_lengths, args.replay_vocabulary)
        lines.append(replay.describe(*models, cfg.task.block_size or replay.BLOCK_SIZE, drawn))
    return [
        *lines,
        f"Machine: {machine()}{ctranslate.version()}; load average before the run {load:.2f}; "
        f"{precision(cfg)} but for rows that say otherwise",
        f"Command: {shlex.join(['spec-dec-bench', *argv])}",
    ]


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    load = os.getloadavg()[0]
    setting = configure(argv)
    args, bench = setting.args, setting.bench
    contenders = bench.runnable(setting.contenders)
    last = origin(setting, argv, load)
    plan = Plan(
        args.timing_batch_sizes, args.timing_sentences, args.repeats, args.timing_seconds, args.timing_sentences
    )
    rows = measure(bench, contenders, plan, bench.references(args.reference))
    sizes = plan.batch_sizes
    sections = [("Output", tables.output_table(rows, sizes)), ("Speed", tables.speed_table(rows, sizes))]
    for baseline in tables.baselines(rows):
        sections.append((f"Speed-up over {baseline.name}", tables.speed_up_table(rows, sizes, baseline)))
    if 1 in sizes:
        sections.append(("Latency", tables.latency_table(rows)))
    if not args.no_memory:
        ends = sorted({min(sizes), max(sizes)})
        peak_memory.add_memory(rows, ends, bench.first(plan.timing_sentences), argv)
        sections.append(("Memory", tables.memory_table(rows, ends)))
    publish("benchmark", args.results, bench, contenders, rows, plan, sections, [MEASURED, *last])


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-bench`: 0, or 2 after a one-line error."""
    return run_command("spec-dec-bench", run, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Speed side by side: our decoders, fairseq's own search and CTranslate2, on the same checkpoints and sentences.

    spec-dec-bench DATA_BIN --path VERIFIER.pt [--drafter-path DRAFTER.pt] [--blockwise-path HEADS.pt] --results FOLDER
    spec-dec-bench --replay base --results FOLDER

All options of fairseq-generate are understood too. Everything is timed in one process, with the contenders taking
turns, so that whatever else the machine does meanwhile falls on all of them alike; memory is measured in a process
for each. `--replay SHAPE` takes random weights and replayed drafts: for the speed of a shape, not for quality.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from omegaconf import DictConfig

from fairseq_plugins.benchmarks import by_length, ctranslate, gpu_use, long_run, peak_memory, replay, tables
from fairseq_plugins.benchmarks.compare import warn_if_lossy
from fairseq_plugins.benchmarks.contenders import identity_note, lossy_note, reference_contender
from fairseq_plugins.benchmarks.machine import machine
from fairseq_plugins.benchmarks.measuring import (
    DEFAULT_BATCH_SIZE,
    WHERE_THE_TIME_GOES,
    Plan,
    Row,
    bleu_signature,
    drafting_notes,
    measure,
    profiles,
    speed_up,
)
from fairseq_plugins.benchmarks.setting import Setting, configure
from fairseq_plugins.benchmarks.speed_figure import speed_figure
from fairseq_plugins.commands.cli import run_command
from fairseq_plugins.commands.files import write_atomically
from fairseq_plugins.commands.session import precision
from fairseq_plugins.decoding.profile import Profile
from fairseq_plugins.errors import ConfigurationError


def notes(setting: Setting, plan: Plan, timed: int, argv: Sequence[str], has_bleu: bool, load: float) -> list[str]:
    """Lines that say what the numbers mean and how they were measured; `load` is the machine's before the run."""
    cfg = setting.bench.cfg
    lines = [
        *_origin(setting, argv, load),
        f"Subset {setting.bench.subset}: {len(setting.bench.order)} sentences decoded at batch size "
        f"{cfg.dataset.batch_size or DEFAULT_BATCH_SIZE} for BLEU, identity with "
        f"{reference_contender(precision(cfg)).name}{identity_note(setting.wanted)}, iterations per sentence and "
        f"accepted tokens per iteration; the first {timed} timed, {plan.repeats} alternating "
        f"repetitions{plan.at_least} after one for warm-up, time in the decoder only, batches of similar length.",
        "Latency: of every sentence the median of its repetitions, then percentiles over the sentences. Memory: in a "
        "process of its own; on a CPU resident memory beyond what the process had before it loaded models, on a GPU "
        "what PyTorch had allocated, and reserved (with the memory of CUDA graphs). On paper: weights of the models "
        "that take part, and keys and values of all layers for the batch that has most of them.",
    ]
    lines += lossy_note(setting.wanted)
    if has_bleu:
        lines.append(f"sacrebleu {bleu_signature()}")
    return lines + _replay_note(setting)


def _origin(setting: Setting, argv: Sequence[str], load: float) -> list[str]:
    return [
        f"Machine: {machine()}{_ctranslate2_version()}; load average before the run {load:.2f}; "
        f"{_precision(setting.bench.cfg)}",
        f"Command: {shlex.join(['spec-dec-bench', *argv])}",
    ]


def _replay_note(setting: Setting) -> list[str]:
    args = setting.args
    if args.replay is None:
        return []
    drawn = ", ".join(f"{row.name} {row.replay}" for row in setting.wanted if row.replay is not None)
    lengths, of_each = args.by_length or args.replay_lengths, args.by_length is not None
    block_size = setting.bench.cfg.task.block_size or replay.BLOCK_SIZE
    return [
        replay.describe(args.replay, args.replay_drafter, lengths, args.replay_vocabulary, block_size, drawn, of_each)
    ]


def _ctranslate2_version() -> str:
    if not ctranslate.is_installed():
        return ""
    import ctranslate2

    return f", CTranslate2 {ctranslate2.__version__}"


def _precision(cfg: DictConfig) -> str:
    return f"{precision(cfg)} but for rows that say otherwise"


def markdown(sections: Sequence[tuple[str, str]], lines: Sequence[str]) -> str:
    """Return the sections, title and table, and the notes below them."""
    parts = [f"## {title}\n\n{table}\n" for title, table in sections]
    return "\n".join([*parts, "".join(f"- {line}\n" for line in lines)])


def as_json(rows: Sequence[Row], lines: Sequence[str], batch_sizes: Sequence[int], profiled: dict[str, Profile]) -> str:
    """Return everything that was measured, every repetition and every sentence's latency included."""
    records = []
    for row in rows:
        record = asdict(row)
        record["sentences_per_second"] = {size: row.rate(size) for size in batch_sizes}
        record["speed_up"] = {
            baseline.name: {size: speed_up(row, baseline, size) for size in batch_sizes}
            for baseline in tables.baselines(rows)
        }
        if row.name in profiled:
            record["profile"] = [
                dict(zip(("part", "milliseconds", "percent"), part, strict=True)) for part in profiled[row.name].rows()
            ]
        records.append(record)
    return json.dumps({"rows": records, "notes": list(lines)}, indent=2, ensure_ascii=False) + "\n"


def run_long(setting: Setting, argv: Sequence[str], load: float) -> None:
    """`--long-run`: measure, print, write."""
    args, bench = setting.args, setting.bench
    runs = long_run.measure(bench, bench.runnable(setting.wanted), args.long_run, args.varied)
    lines = [
        *_origin(setting, argv, load),
        f"Subset {bench.subset}: its {len(bench.order)} sentences again and again, each time in another order, "
        f"{_sizes(setting)}; time in the decoder only, memory at the end "
        "of each part, of the whole process (on a GPU what PyTorch had allocated); one decoder after the other.",
        *lossy_note(setting.wanted),
        *_replay_note(setting),
    ]
    _publish(setting, "long_run", [("A long run", long_run.table(runs))], lines, long_run.as_json(runs, lines))


def _sizes(setting: Setting) -> str:
    """The batches of a long run, in words."""
    cfg = setting.bench.cfg
    size, active = cfg.dataset.batch_size or DEFAULT_BATCH_SIZE, cfg.task.active_sentences
    together = f", {active} sentences decoded at a time" if active else ""
    if not setting.args.varied:
        return f"at batch size {size}{together}"
    widths = ", ".join(map(str, long_run.widths(setting.bench)))
    reference = reference_contender(precision(cfg)).name
    return f"batches of 1 to {size}{together}, block sizes {widths}, both drawn; *identical* to {reference}"


def run_by_length(setting: Setting, argv: Sequence[str], load: float) -> None:
    """`--by-length`: measure, print, write."""
    args, bench = setting.args, setting.bench
    times = by_length.measure(bench, bench.runnable(setting.wanted), args.by_length, args.repeats)
    lines = [
        *_origin(setting, argv, load),
        f"{args.timing_sentences} sentences of each length, one at a time; the median of {args.repeats} alternating "
        "repetitions after one sentence for warm-up, time in the decoder only.",
        *lossy_note(setting.wanted),
        *_replay_note(setting),
    ]
    record = by_length.as_json(times, lines)
    _publish(setting, "by_length", [("Cost against length", by_length.table(times))], lines, record)


def _publish(
    setting: Setting, name: str, sections: Sequence[tuple[str, str]], lines: Sequence[str], record: str
) -> None:
    text = markdown(sections, lines)
    print(text)
    if setting.args.results:
        folder = Path(setting.args.results)
        write_atomically(folder / f"{name}.json", record, "--results")
        write_atomically(folder / f"{name}.md", text, "--results")


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    load = os.getloadavg()[0]
    setting = configure(argv)
    args, bench = setting.args, setting.bench
    if not bench.order:
        raise ConfigurationError(f"--gen-subset {bench.subset}: has no sentences; choose another")
    if args.long_run is not None:
        return run_long(setting, argv, load)
    if args.by_length is not None:
        return run_by_length(setting, argv, load)
    sentences = args.timing_sentences
    plan = Plan(args.timing_batch_sizes, sentences, args.repeats, args.timing_seconds, warm_up_sentences=sentences)
    references = bench.references(args.reference)
    contenders = bench.runnable(setting.wanted)
    rows = measure(bench, contenders, plan, references)
    timed = bench.first(plan.timing_sentences)
    sizes = plan.batch_sizes
    sections = [("Output", tables.output_table(rows, sizes)), ("Speed", tables.speed_table(rows, sizes))]
    for baseline in tables.baselines(rows):
        sections.append((f"Speed-up over {baseline.name}", tables.speed_up_table(rows, sizes, baseline)))
    if 1 in sizes:
        sections.append(("Latency", tables.latency_table(rows)))
    if not args.no_memory:
        ends = sorted({min(sizes), max(sizes)})
        peak_memory.add_memory(rows, ends, timed, argv)
        sections.append(("Memory", tables.memory_table(rows, ends)))
    if bench.cuda:
        used = [(row.name, row.gpu_use) for row in rows if row.gpu_use is not None]
        sections.append(("CUDA graphs and attention", gpu_use.table(used)))
    profiled = profiles(bench, contenders, timed) if bench.cfg.common.profile else {}
    sections += [(f"{WHERE_THE_TIME_GOES}: {name}, batch 1", profile.table()) for name, profile in profiled.items()]
    lines = notes(setting, plan, len(timed), argv, references is not None, load)
    lines += drafting_notes(rows, contenders, sizes)
    text = markdown(sections, lines)
    print(text)
    warn_if_lossy(rows, contenders, precision(bench.cfg))
    if args.results:
        folder = Path(args.results)
        write_atomically(folder / "benchmark.json", as_json(rows, lines, sizes, profiled), "--results")
        write_atomically(folder / "benchmark.md", text, "--results")
        write_atomically(folder / "benchmark.png", speed_figure(rows, sizes), "--results")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-bench`: 0, or 2 after a one-line error."""
    return run_command("spec-dec-bench", run, argv)


if __name__ == "__main__":
    sys.exit(main())

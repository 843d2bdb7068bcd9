"""One table of decoders on one test set: quality, identity with fairseq's output, iterations and speed.

    spec-dec-compare DATA_BIN --path VERIFIER.pt [--drafter-path DRAFTER.pt] [--blockwise-path HEADS.pt] \
        [--results FOLDER]

All options of fairseq-generate are understood too. Everything is measured in one process, with models loaded
once. Speed is measured with the decoders taking turns, so that whatever else the machine does meanwhile falls
on all of them alike.
"""

import json
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fairseq_plugins.benchmarks import gpu_use
from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.comparison_options import get_parser, parse
from fairseq_plugins.benchmarks.contenders import (
    BEAM_1,
    BEAM_5,
    CONTENDERS,
    GREEDY,
    ON_CPU,
    Contender,
    choose,
    identity_note,
    lossy_note,
    reference_contender,
    reference_of,
)
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
from fairseq_plugins.commands.cli import run_command
from fairseq_plugins.commands.files import write_atomically
from fairseq_plugins.commands.session import precision
from fairseq_plugins.commands.tables import shown, table
from fairseq_plugins.errors import ConfigurationError

logger = logging.getLogger("spec-dec-compare")


def markdown_table(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return the rows as a Markdown table that also reads well in a terminal."""
    baselines = {name: row for row in rows for name in (BEAM_5, BEAM_1) if row.name == name}
    first = batch_sizes[0]
    header = ["decoder", "BLEU", "identical"]
    header += ["at batch 1"] if 1 in batch_sizes else []
    header += ["iterations", "mean accepted"]
    header += [f"sent/s, batch {size}" for size in batch_sizes]
    header += [f"× {name.removeprefix('fairseq ')}" for name in baselines]
    body = []
    for row in rows:
        cells = [row.name, shown(row.bleu, ".2f"), f"{row.identical} of {row.sentences}"]
        cells += [f"{row.identical_timed[1]} of {row.timed_sentences}"] if 1 in batch_sizes else []
        cells += [shown(row.iterations, ".2f"), shown(row.mean_accepted_tokens, ".2f")]
        cells += [shown(row.rate(size), ".1f") for size in batch_sizes]
        cells += [shown(speed_up(row, baseline, first), ".2f") for baseline in baselines.values()]
        body.append(cells)
    return table(body, header)


def notes(
    bench: Bench, contenders: Sequence[Contender], rows: Sequence[Row], plan: Plan, command: str, has_bleu: bool
) -> list[str]:
    """Return the lines below the table: what the columns mean, and how it was measured."""
    lossless = ", ".join(contender.name for contender in contenders if contender.lossless) or "none"
    quality_batch = bench.cfg.dataset.batch_size or DEFAULT_BATCH_SIZE
    kind = precision(bench.cfg)
    lines = [
        f"Subset {bench.subset}, {len(bench.order)} sentences, at batch size {quality_batch}: BLEU; "
        f"sentences with exactly the token ids of {reference_contender(kind).name}{identity_note(contenders)}; "
        "iterations per sentence; accepted tokens per iteration.",
        f"Speed on the first {rows[0].timed_sentences} sentences: median of {plan.repeats} alternating runs"
        f"{plan.at_least}, time in the decoder only; × is the speed-up at batch size {plan.batch_sizes[0]}.",
        f"Lossless by construction: {lossless}.",
        *drafting_notes(rows, contenders, plan.batch_sizes),
        f"Precision: {kind}. {what_holds(kind)}",
        *lossy_note(contenders),
        *gpu_use.lines([(row.name, row.gpu_use) for row in rows]),
        f"Machine: {machine()}",
        f"Command: {command}",
    ]
    if has_bleu:
        lines.insert(1, f"sacrebleu {bleu_signature()}")
    return lines


def as_json(rows: Sequence[Row], lines: Sequence[str], batch_sizes: Sequence[int]) -> str:
    """Return everything that was measured, every repetition included."""
    by_name = {row.name: row for row in rows}
    records = []
    for row in rows:
        record = asdict(row)
        record["sentences_per_second"] = {size: row.rate(size) for size in batch_sizes}
        for baseline in (name for name in (BEAM_5, BEAM_1) if name in by_name):
            record[f"speed_up_over_{baseline.replace(' ', '_')}"] = {
                size: speed_up(row, by_name[baseline], size) for size in batch_sizes
            }
        records.append(record)
    return json.dumps({"rows": records, "notes": list(lines)}, indent=2, ensure_ascii=False) + "\n"


def what_holds(kind: str) -> str:
    """What is promised of lossless decoders in a precision."""
    if kind == "fp32":
        return f"Lossless means the token ids of {BEAM_1}, but for two tokens of equal score."
    return (
        f"Lossless means the token ids of our {GREEDY} in {kind}; those of fairseq, whose sums depend on the size of "
        "its batches, may differ."
    )


def warn_if_lossy(rows: Sequence[Row], contenders: Sequence[Contender], kind: str) -> None:
    """Say so where a decoder that promises an output did not give it, in this precision."""
    can_explain = "only two tokens of equal score can explain that" if kind == "fp32" else "nothing explains that"
    for row, contender in zip(rows, contenders, strict=True):
        if not contender.lossless or (kind != "fp32" and contender.reference == BEAM_5):
            continue  # fairseq's own beam search in half precision depends on its batches
        for identical, total in ((row.identical, row.sentences), (row.identical_timed.get(1), row.timed_sentences)):
            if identical is not None and identical < total:
                reference = reference_of(contender, kind)
                different = f"{row.name} differs from {reference} in {total - identical} of {total} sentences"
                logger.warning("%s; in %s %s", different, kind, can_explain)


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    there = (*CONTENDERS, *ON_CPU)
    args, cfg = parse(get_parser("spec-dec-compare", there, repeats=3, batch_sizes=[1, 16]), argv)
    wanted = choose(args.decoders, there, CONTENDERS, precision(cfg))
    plan = Plan(args.timing_batch_sizes, args.timing_sentences, args.repeats, args.timing_seconds)
    bench = Bench(cfg, args.blockwise_path)
    contenders = bench.runnable(wanted)
    if not bench.order:
        raise ConfigurationError(f"--gen-subset {bench.subset}: has no sentences; choose another")
    references = bench.references(args.reference)
    rows = measure(bench, contenders, plan, references)

    text = markdown_table(rows, plan.batch_sizes)
    command = shlex.join(["spec-dec-compare", *argv])
    lines = notes(bench, contenders, rows, plan, command, references is not None)
    print(text + "\n")
    print("\n".join(lines))
    if cfg.common.profile:
        for name, profile in profiles(bench, contenders, bench.first(plan.timing_sentences)).items():
            print(f"\n{WHERE_THE_TIME_GOES}: {name}, batch 1\n\n{profile.table()}")
    warn_if_lossy(rows, contenders, precision(cfg))
    if args.results:
        folder = Path(args.results)
        write_atomically(folder / "table.json", as_json(rows, lines, plan.batch_sizes), "--results")
        markdown = text + "\n\n" + "".join(f"- {line}\n" for line in lines)
        write_atomically(folder / "table.md", markdown, "--results")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-compare`: 0, or 2 after a one-line error."""
    return run_command("spec-dec-compare", run, argv)


if __name__ == "__main__":
    sys.exit(main())

"""Compare decoders on one test set: quality, identity with fairseq's output, iterations and speed.

    spec-dec-compare DATA_BIN --path VERIFIER.pt [--drafter-path DRAFTER.pt] [--blockwise-path HEADS.pt] \
        [--results FOLDER]

Takes all options of fairseq-generate. Everything is measured in one process that loads the models once. Decoders are
timed in turns, so that other load on the machine slows all of them alike.
"""

import json
import logging
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fairseq_plugins.benchmarks import ctranslate, gpu_use
from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import (
    BEAM_1,
    BEAM_5,
    CONTENDERS,
    CTRANSLATE2_ON_CPU,
    GREEDY,
    ON_CPU,
    Contender,
    choose,
    lossy_note,
    reference_of,
)
from fairseq_plugins.benchmarks.measuring import Plan, Row, bleu_signature, drafting_notes, measure, profiles, speed_up
from fairseq_plugins.benchmarks.setting import conversions, get_parser, parse
from fairseq_plugins.benchmarks.tables import baselines, compared_with, identical, same_as, speed_ups
from fairseq_plugins.decoding.recording.profile import Profile
from fairseq_plugins.process.output import counted
from fairseq_plugins.shared.cli import run_command
from fairseq_plugins.shared.files import write_atomically
from fairseq_plugins.shared.machine import machine
from fairseq_plugins.shared.session import precision
from fairseq_plugins.shared.tables import shown, table

logger = logging.getLogger("spec-dec-compare")


def markdown_table(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return the rows as a Markdown table that also reads well in a terminal."""
    first, body = batch_sizes[0], []
    references = compared_with(rows)
    header = ["decoder", "BLEU", *map(same_as, references)]
    header += ["at batch 1"] if 1 in batch_sizes else []
    header += ["tokens/iteration", *(f"sent/s, batch {size}" for size in batch_sizes)]
    header += [f"× {name}" for name in speed_ups(rows[0], rows, first)]
    for row in rows:
        cells = [row.name, shown(row.bleu, ".2f"), *identical(row, references)]
        cells += [f"{row.identical_timed[1]} of {row.timed_sentences}"] if 1 in batch_sizes else []
        cells += [shown(row.timed_tokens.get(first), ".2f"), *(shown(row.rate(size), ".1f") for size in batch_sizes)]
        cells += [shown(ratio, ".2f") for ratio in speed_ups(row, rows, first).values()]
        body.append(cells)
    return table(body, header)


def notes(bench: Bench, contenders: Sequence[Contender], rows: Sequence[Row], plan: Plan) -> list[str]:
    """Return the lines below the tables: the meaning of the columns, and guarantees."""
    lossless = ", ".join(contender.name for contender in contenders if contender.lossless) or "none"
    kind, first = precision(bench.cfg), "" if bench.sentences is None else "the first "
    return [
        f"BLEU and same output: subset {bench.subset}, {first}{counted(len(bench.order), 'sentence')}, "
        f"batch size {bench.batch_size}. "
        f"Same as: sentences with the token ids of {' and '.join(compared_with(rows))}.",
        *([f"sacrebleu {bleu_signature()}"] if rows[0].bleu is not None else []),
        f"Speed on the first {counted(rows[0].timed_sentences, 'sentence')}: median of {plan.repeats} alternating runs"
        f"{plan.at_least} after a warm-up, time in the decoder only.",
        f"Lossless by construction: {lossless}.",
        *drafting_notes(rows, contenders, plan.batch_sizes),
        f"Precision: {kind}. {guarantee(kind)}",
        *lossy_note(contenders),
    ]


def guarantee(kind: str) -> str:
    """Return the guarantee of lossless decoders in a precision."""
    if kind == "fp32":
        return f"Lossless means the token ids of {BEAM_1}, except where two tokens have equal scores."
    return (
        f"Lossless means the token ids of our {GREEDY} in {kind}; those of fairseq, whose sums depend on the size of "
        "its batches, may differ."
    )


def warn_if_lossy(rows: Sequence[Row], contenders: Sequence[Contender], kind: str) -> None:
    """Warn if the output of a lossless decoder differs from its reference."""
    can_explain = "only two tokens of equal score can explain that" if kind == "fp32" else "nothing explains that"
    for row, contender in zip(rows, contenders, strict=True):
        if not contender.lossless or (kind != "fp32" and contender.reference == BEAM_5):
            continue  # fairseq's own beam search in half precision depends on its batches
        for same, total in ((row.identical, row.sentences), (row.identical_timed.get(1), row.timed_sentences)):
            if same is not None and same < total:
                reference = reference_of(contender, kind)
                different = f"{row.name} differs from {reference} in {total - same} of {total} sentences"
                logger.warning("%s; in %s %s", different, kind, can_explain)


def records(rows: Sequence[Row], batch_sizes: Sequence[int], profiled: Mapping[str, Profile]) -> list[dict[str, Any]]:
    """Return all measurements for JSON, with every repetition and every sentence's latency."""
    result = []
    for row in rows:
        record = {**asdict(row), "sentences_per_second": {size: row.rate(size) for size in batch_sizes}}
        for baseline in baselines(rows):
            ratios = {size: speed_up(row, baseline, size) for size in batch_sizes}
            record[f"speed_up_over_{baseline.name.replace(' ', '_')}"] = ratios
        if row.name in profiled:
            names = ("part", "milliseconds", "percent")
            record["profile"] = [dict(zip(names, part, strict=True)) for part in profiled[row.name].rows()]
        result.append(record)
    return result


def publish(
    name: str,
    results: str | None,
    bench: Bench,
    contenders: Sequence[Contender],
    rows: Sequence[Row],
    plan: Plan,
    sections: Sequence[tuple[str, str]],
    lines: Sequence[str],
) -> None:
    """Print tables and notes, write them and all measurements, and warn of differences; profile with --profile.

    Args:
        name: name of the files.
        results: folder of --results; None only prints.
        bench, contenders, rows, plan: the measurement.
        sections: title (may be empty) and table.
        lines: further notes below the tables.
    """
    profiled = profiles(bench, contenders, plan)
    used = [(row.name, row.gpu_use) for row in rows if row.gpu_use is not None]
    sections = [
        *sections,
        *([("CUDA graphs and attention", gpu_use.table(used))] if used else []),
        *((f"Where the time goes: {row}, batch 1", profile.table()) for row, profile in profiled.items()),
    ]
    lines = [*notes(bench, contenders, rows, plan), *lines]
    parts = [f"## {title}\n\n{text}\n" if title else f"{text}\n" for title, text in sections]
    text = "\n".join([*parts, "".join(f"- {line}\n" for line in lines)])
    print(text)
    if results is not None:
        record = {"rows": records(rows, plan.batch_sizes, profiled), "notes": lines}
        content = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        write_atomically(Path(results) / f"{name}.json", content, "--results")
        write_atomically(Path(results) / f"{name}.md", text, "--results")
    warn_if_lossy(rows, contenders, precision(bench.cfg))


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    available = (*CONTENDERS, *ON_CPU, *CTRANSLATE2_ON_CPU)
    description = "Compare quality, speed and tokens per iteration of the decoders that these models can run."
    parser = get_parser("spec-dec-compare", description, available, repeats=3, batch_sizes=[1, 16])
    args, cfg = parse(parser, argv)
    plan = Plan(args.timing_batch_sizes, args.timing_sentences, args.repeats, args.timing_seconds)
    bench = Bench(cfg, args.blockwise_path, conversions(args.results), args.sentences)
    contenders = bench.runnable(choose(args.decoders, available, CONTENDERS, precision(cfg)))
    rows = measure(bench, contenders, plan, bench.references(args.reference))
    lines = [
        f"Tokens per iteration and × (speed-ups) are those of the timed runs at batch size {plan.batch_sizes[0]}: × "
        "fairseq and × CTranslate2 over the same search, × greedy over our greedy decoding.",
        f"Machine: {machine()}{ctranslate.version()}",
        f"Command: {shlex.join(['spec-dec-compare', *argv])}",
    ]
    sections = [("", markdown_table(rows, plan.batch_sizes))]
    publish("table", args.results, bench, contenders, rows, plan, sections, lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-compare`: 0, or 2 after a one-line error."""
    return run_command("spec-dec-compare", run, argv)


if __name__ == "__main__":
    sys.exit(main())

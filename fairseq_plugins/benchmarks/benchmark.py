"""Compare decoders on one test set: quality, identity with fairseq's output, iterations and speed.

    spec-dec-bench DATA_BIN --path VERIFIER.pt [--drafter-path DRAFTER.pt] [--results FOLDER]

Takes all options of fairseq-generate. One process loads the models once, and decoders are timed in turns, so that other
load on the machine slows all of them alike.
"""

import argparse
import json
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

from fairseq_plugins.benchmarks import ctranslate
from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import BEAM_1, BEAM_5, GREEDY, Contender, lossy_note, reference_of
from fairseq_plugins.benchmarks.measuring import Row, bleu_signature, measure
from fairseq_plugins.benchmarks.setting import configure
from fairseq_plugins.checkpoint.session import precision
from fairseq_plugins.process.output import counted
from fairseq_plugins.shared.cli import run_command
from fairseq_plugins.shared.display import shown, table
from fairseq_plugins.shared.files import write_atomically
from fairseq_plugins.shared.machine import machine

logger = logging.getLogger("spec-dec-bench")

PERCENTILES = (50, 90, 99)


def table_of(rows: Sequence[Row], batch_sizes: Sequence[int]) -> str:
    """Return quality, identity, speed and latency in Markdown; ratios are those of the first batch size."""
    first, by_name, references = batch_sizes[0], {row.name: row for row in rows}, compared_with(rows)
    lines = []
    for row in rows:
        line = {"decoder": row.name, "BLEU": shown(row.bleu, ".2f")}
        line |= {f"same as {name.removeprefix('fairseq ')}": _same(row, name) for name in references}
        line["tokens/iteration"] = shown(row.tokens_per_iteration.get(first), ".2f")
        line |= {f"sent/s, batch {size}": f"{row.rate(size):.1f}" for size in batch_sizes}
        if 1 in batch_sizes:
            # Of the medians of each sentence over the repetitions.
            percentiles = np.percentile(row.latencies, PERCENTILES)
            line["ms, p50 / p90 / p99"] = " / ".join(f"{1000 * seconds:.1f}" for seconds in percentiles)
        for name, baseline in _baselines(row).items():
            other = by_name.get(baseline)
            line[f"× {name}"] = "-" if other is None else f"{row.rate(first) / other.rate(first):.2f}"
        lines.append(line)
    titles = [name for name in lines[0] if name[0] != "×" or any(line[name] != "-" for line in lines)]
    return table([[line[title] for title in titles] for line in lines], titles)


def compared_with(rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows that others are compared with, in their order; of all if none is."""
    others = {row.reference for row in rows if row.reference != row.name}
    return list(dict.fromkeys(row.reference for row in rows if row.reference in others or not others))


def _same(row: Row, reference: str) -> str:
    """Return how many sentences have the reference's ids, if the row is compared with it."""
    if row.name == reference:
        return "reference"
    return f"{row.identical} of {row.sentences}" if row.reference == reference else "-"


def _baselines(row: Row) -> dict[str, str]:
    """Return the rows over which the table gives speed: the same search of others, and our greedy decoding."""
    search = "greedy" if row.beam == 1 else f"beam {row.beam}"
    return {"fairseq": f"fairseq beam {row.beam}", "CTranslate2": f"CTranslate2 {search} fp32", "greedy": GREEDY}


def notes(bench: Bench, contenders: Sequence[Contender], rows: Sequence[Row], args: argparse.Namespace) -> list[str]:
    """Return the lines below the tables: the meaning of the columns, and guarantees."""
    least = f" of at least {args.timing_seconds:g} s each" if args.timing_seconds else ""
    lossless = ", ".join(contender.name for contender in contenders if contender.lossless) or "none"
    runs = f"median of {args.repeats} alternating runs" if args.repeats > 1 else "one run"
    spread = max(row.spread() for row in rows)
    kind, first = precision(bench.cfg), "" if bench.sentences is None else "the first "
    return [
        f"BLEU and same output: subset {bench.subset}, {first}{counted(len(bench.order), 'sentence')}, "
        f"batch size {bench.batch_size}. "
        f"Same as: sentences with the token ids of {' and '.join(compared_with(rows))}.",
        *([f"sacrebleu {bleu_signature(bench, len(args.reference or [1]))}"] if rows[0].bleu is not None else []),
        f"Speed on the first {counted(rows[0].timed_sentences, 'sentence')}: {runs}{least} after a warm-up, "
        f"time in the decoder only. Tokens per iteration and × (speed over the same search) at batch size "
        f"{args.timing_batch_sizes[0]}; × greedy is over our greedy decoding.",
        f"The slowest run of a row took up to {spread:.2f} times as long as its fastest."
        if args.repeats > 1
        else "Speeds of one run may be far off; --repeats 3 shows how far runs differ.",
        f"Lossless by construction: {lossless}.",
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
        timed = ((count, row.timed_sentences) for count in row.identical_timed.values())
        for same, total in ((row.identical, row.sentences), *timed):
            if same is not None and same < total:
                reference = reference_of(contender, kind)
                different = f"{row.name} differs from {reference} in {total - same} of {total} sentences"
                logger.warning("%s; in %s %s", different, kind, can_explain)


def run(argv: Sequence[str]) -> None:
    """Parse, measure, print, write."""
    load = os.getloadavg()[0]
    args, bench, chosen = configure(argv)
    references = bench.references(args.reference)  # files first, before the models are loaded
    contenders = bench.runnable(chosen)
    rows = measure(bench, contenders, args, references)
    lines = [
        *notes(bench, contenders, rows, args),
        f"Machine: {machine()}{ctranslate.version()}; load average before the run {load:.2f}",
        f"Command: {shlex.join(['spec-dec-bench', *argv])}",
    ]
    text = table_of(rows, args.timing_batch_sizes) + "\n\n" + "".join(f"- {line}\n" for line in lines)
    print(text)
    if args.results is not None:
        rates = [{"sentences_per_second": {size: row.rate(size) for size in args.timing_batch_sizes}} for row in rows]
        record = {"rows": [asdict(row) | rate for row, rate in zip(rows, rates, strict=True)], "notes": lines}
        content = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        write_atomically(Path(args.results) / "table.json", content, "--results")
        write_atomically(Path(args.results) / "table.md", text, "--results")
    warn_if_lossy(rows, contenders, precision(bench.cfg))


main = partial(run_command, "spec-dec-bench", run)


if __name__ == "__main__":
    sys.exit(main())

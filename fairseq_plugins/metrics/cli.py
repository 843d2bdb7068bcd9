"""Score translations against references: BLEU, chrF, TER, ROUGE, SARI, F0.5 of edits, repetition.

    spec-dec-metrics --hypotheses generate.out [--references FILE ...] [--source FILE] [--baseline FILE]

Files are plain text with one sentence per line, or output of fairseq-generate or fairseq-interactive, whose sentences
are sorted. All values come from the tools that papers cite (sacrebleu, sacremoses, rouge-score), except SARI
(`sari.py`), F0.5 of edits (`edits.py`) and the token repetition ratio, which have no packaged tool.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import sacrebleu
from tabulate import tabulate

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.registry import METRICS, choose, compute
from fairseq_plugins.metrics.sample import Sample, Score, Sentences
from fairseq_plugins.metrics.texts import Text, aligned, read_text
from fairseq_plugins.process.output import counted, say
from fairseq_plugins.shared.cli import CommandParser, run_command
from fairseq_plugins.shared.files import destination, write_atomically


def load(args: argparse.Namespace) -> Sample:
    """Read the files of the command line and align their sentences."""
    hypotheses = read_text(args.hypotheses, "--hypotheses")
    warn_of_subwords(hypotheses)
    warn_of_gaps(hypotheses)
    references = [_read_side(file, "T", hypotheses, "--references") for file in args.references or []]
    if not references:
        if not hypotheses.references:
            problem = f"missing, and {args.hypotheses} has {hypotheses.lacks('T')}"
            raise ConfigurationError("--references", None, problem, "add {--references FILE}")
        references = [aligned(hypotheses, hypotheses.references, hypotheses, "--hypotheses")]
    if args.source is not None:
        sources = _read_side(args.source, "S", hypotheses, "--source")
    elif hypotheses.sources:
        sources = aligned(hypotheses, hypotheses.sources, hypotheses, "--hypotheses")
    else:
        sources = None
    baseline = None
    if args.baseline is not None:
        text = read_text(args.baseline, "--baseline")
        baseline = aligned(text, text.hypotheses, hypotheses, "--baseline")
    return Sample(
        list(hypotheses.hypotheses),
        Sentences(list(hypotheses.hypotheses.values()), args),
        [Sentences(lines, args) for lines in references],
        None if sources is None else Sentences(sources, args),
        baseline,
        args,
    )


def _read_side(file: str, kind: str, hypotheses: Text, option: str) -> list[str]:
    """Read the lines of a plain text, or the S- or T- lines of generate output, one for each hypothesis."""
    text = read_text(file, option)
    if not text.generated:
        return aligned(text, text.hypotheses, hypotheses, option)
    sentences = text.sources if kind == "S" else text.references
    if not sentences:
        raise ConfigurationError(option, file, f"generate output with {text.lacks(kind)}", "give plain text")
    return aligned(text, sentences, hypotheses, option)


def warn_of_subwords(text: Text) -> None:
    """Warn if the hypotheses are subwords: all metrics need words."""
    marked = [number for number, line in text.hypotheses.items() if "@@ " in line or "\u2581" in line]
    if marked:
        say(
            f"warning: {text.file}: sentence {marked[0]} is in subwords; generate with --remove-bpe "
            "(--remove-bpe sentencepiece) for comparable values"
        )


def warn_of_gaps(text: Text) -> None:
    """Warn if generate output lacks sentences: by default fairseq drops a last batch that is not full."""
    missing = sorted(set(range(max(text.hypotheses) + 1)) - text.hypotheses.keys())
    if missing:
        say(
            f"warning: {text.file}: {len(missing)} sentence(s) are missing, the first is {missing[0]}; fairseq leaves "
            "out a last batch that is not full, and what --skip-invalid-size-inputs-valid-test skips: generate with "
            "--required-batch-size-multiple 1"
        )


@dataclass
class Difference:
    """Differences between hypotheses and baseline."""

    identical: int  # sentences with the same text
    sentences: int  # all
    first: int | None = None  # number of the first different sentence
    word: int | None = None  # position of the first different word in it, from 1
    baseline: str = ""  # its text in the baseline
    hypothesis: str = ""  # its text in the hypotheses


def difference(sample: Sample) -> Difference:
    """Count the sentences that equal the baseline's, and find the first different one."""
    assert sample.baseline is not None
    pairs = list(zip(sample.numbers, sample.baseline, sample.hypotheses.lines, strict=True))
    different = [pair for pair in pairs if pair[1] != pair[2]]
    result = Difference(len(pairs) - len(different), len(pairs))
    if different:
        result.first, result.baseline, result.hypothesis = different[0]
        ours, theirs = result.hypothesis.split(), result.baseline.split()
        same = [one == other for one, other in zip(ours, theirs, strict=False)]
        result.word = (same.index(False) if False in same else len(same)) + 1
    return result


def report(sample: Sample, scores: list[Score], left_out: list[str], differs: Difference | None) -> str:
    """Return all results as text for a terminal."""
    parts = [
        f"{counted(len(sample.numbers), 'sentence')}, {counted(len(sample.references), 'reference')} each",
        tabulate(
            [(score.metric, score.shown, score.details) for score in scores],
            headers=["metric", "value", "details"],
            colalign=["left", "right", "left"],
            disable_numparse=True,
        ),
        "\n".join(f"{', '.join(names)}: {signature}" for signature, names in _by_signature(scores).items()),
    ]
    if differs is not None:
        parts.append(_difference_text(differs))
    if left_out:
        parts.append("\n".join(f"left out: {reason}" for reason in left_out))
    return "\n\n".join(parts)


def _by_signature(scores: Sequence[Score]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for score in scores:
        names.setdefault(score.signature, []).append(score.metric)
    return names


def _difference_text(differs: Difference) -> str:
    text = f"Identical to the baseline: {differs.identical} of {differs.sentences} sentences"
    if differs.first is None:
        return text
    return (
        f"{text}; the first difference is in sentence {differs.first} (counted from 0), word {differs.word}:\n"
        f"  baseline: {differs.baseline}\n  here:     {differs.hypothesis}"
    )


def get_parser() -> CommandParser:
    """Return the parser of `spec-dec-metrics`."""
    example = "spec-dec-metrics --hypotheses gad.out --baseline greedy.out"
    parser = CommandParser("spec-dec-metrics", (__doc__ or "").split("\n")[0], example)
    add = parser.add_argument
    add("--hypotheses", required=True, metavar="FILE", help="translations: plain text, or output of fairseq-generate")
    references = "one or several reference files (default: the T- lines of fairseq-generate's output)"
    add("--references", nargs="+", metavar="FILE", help=references)
    source = "source file, for SARI and F0.5 (default: the S- lines of fairseq-generate's output)"
    add("--source", metavar="FILE", help=source)
    baseline = "other translations of the same text: count identical sentences, and show the first different one"
    add("--baseline", metavar="FILE", help=baseline)
    add("--metrics", metavar="NAME,NAME", help=f"some of {','.join(METRICS)} (default: all that can be computed)")
    language = "target language, for the tokenisation of Moses and sacreBLEU (default: en)"
    add("--lang", default="en", metavar="NAME", help=language)
    tokenized = "the files are tokenised by Moses: score these tokens, and detokenise for sacreBLEU"
    add("--tokenized", action="store_true", help=tokenized)
    compounds = "tokenised BLEU: split words at hyphens, as papers on WMT14 English-German do"
    add("--compound-split", action="store_true", help=compounds)
    tokenizer = "sacreBLEU's tokenizer (default: by --lang)"
    add("--tokenize", metavar="NAME", choices=sorted(sacrebleu.BLEU.TOKENIZERS), help=tokenizer)
    add("--stemmer", action="store_true", help="ROUGE: stem words")
    separator = "ROUGE-Lsum: separator of the sentences of a line (default: <q>)"
    add("--sentence-separator", default="<q>", metavar="TEXT", help=separator)
    add("--json", metavar="FILE", help="also write all results there")
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse, compute, print, write."""
    args = get_parser().parse_args(argv)
    names = choose(args.metrics)
    if args.json is not None:
        destination(args.json, "--json")
    sample = load(args)
    scores, left_out = compute(names, sample)
    differs = difference(sample) if sample.baseline is not None else None
    print(report(sample, scores, left_out, differs))
    if args.json is not None:
        result = {
            "arguments": vars(args),
            "sentences": len(sample.numbers),
            "scores": [asdict(score) for score in scores],
            "identical": None if differs is None else asdict(differs),
            "left_out": left_out,
        }
        write_atomically(Path(args.json), json.dumps(result, indent=2, ensure_ascii=False) + "\n", "--json")


main = partial(run_command, "spec-dec-metrics", run)


if __name__ == "__main__":
    sys.exit(main())

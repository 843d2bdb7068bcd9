"""Make a page for the browser of a trace, the file of fairseq-generate's `--trace-file`.

spec-dec-trace TRACE --html page.html                    all sentences, to search, sort and step through
spec-dec-trace TRACE --html page.html --sentence 3 17    these sentences
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from fairseq_plugins.decoding.recording.trace import TracedSentence, read_trace, stream_trace
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.pages.trace_page import EDITS, how_many_fit, page, sample_evenly, sampling_note
from fairseq_plugins.shared.cli import CommandParser, positive, run_command
from fairseq_plugins.shared.files import write_atomically


def write_page(args: argparse.Namespace) -> None:
    """Write the page, with as many sentences as a browser can show."""
    sentences: Iterable[TracedSentence]
    if args.sentence:
        trace = read_trace(args.trace)
        sentences = _chosen(trace.sentences, args)[: args.limit]
        total = len(sentences)
    else:
        total, shown = how_many_fit(args.trace, args.limit)
        wanted = sample_evenly(total, shown)
        trace, sentences = stream_trace(args.trace, wanted.__contains__)
    path = Path(args.html)
    text, basis = page(Path(args.trace).name, trace, sentences, total, args.edit_ratio)
    write_atomically(path, text, "--html")
    if args.edit_ratio != "auto" and basis is None:
        reason = {"source": "source and output have different dictionaries", "reference": "it has no references"}
        print(f"no edit ratio against the {args.edit_ratio}: {reason[args.edit_ratio]}", file=sys.stderr)
    note = "" if args.sentence else sampling_note(shown, total)
    if note:
        print(f"{note}{'' if args.limit else ': a browser takes no more'}", file=sys.stderr)
    print(f"{path}: written; open it in a browser")


def _chosen(sentences: list[TracedSentence], args: argparse.Namespace) -> list[TracedSentence]:
    by_id = {sentence.id: sentence for sentence in sentences}
    missing = [number for number in args.sentence if number not in by_id]
    if missing:
        content = f"has {len(by_id)} sentences, from {min(by_id)} to {max(by_id)}" if by_id else "has no sentences"
        raise ConfigurationError("--sentence", missing[0], f"is not in {args.trace}, which {content}")
    return [by_id[number] for number in args.sentence]


def get_parser() -> CommandParser:
    """Return the command's parser."""
    example = "spec-dec-trace trace.jsonl --html trace.html"
    description = "Show the drafts of a decoding run and which tokens were accepted, as a page for the browser."
    parser = CommandParser("spec-dec-trace", description, example)
    add = parser.add_argument
    add("trace", metavar="TRACE", help="file that fairseq-generate wrote with --trace-file")
    add("--html", metavar="FILE", required=True, help="write the page to this file")
    numbers = "show only these sentences, numbered as in fairseq-generate's H- lines"
    add("--sentence", metavar="ID", type=int, nargs="+", help=numbers)
    limit = "show at most N sentences, an evenly spaced sample (default: as many as browsers can handle)"
    add("--limit", metavar="N", type=positive, help=limit)
    ratio = "show the edit ratio of outputs to sources or to references (default: auto, sources if the task rewrites "
    add("--edit-ratio", choices=["auto", *EDITS], default="auto", help=ratio + "its input)")
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse and write the page."""
    write_page(get_parser().parse_args(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-trace`: 0, or 2 after a one-line error."""
    return run_command("spec-dec-trace", run, argv)


if __name__ == "__main__":
    sys.exit(main())

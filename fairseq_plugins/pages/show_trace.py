"""Make a page for the browser of a trace, the file of fairseq-generate's `--trace-file`.

spec-dec-trace TRACE --html page.html                    all sentences, to search, sort and step through
spec-dec-trace TRACE --html page.html --sentence 3 17    these sentences
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from fairseq_plugins.decoding.recording.trace import TracedSentence, stream_trace
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.pages.trace_page import page
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.cli import CommandParser, run_command
from fairseq_plugins.shared.files import check_no_input, destination, write_atomically


def write_page(args: argparse.Namespace) -> None:
    """Write the page, with as many sentences as a browser can show."""
    destination(args.html, "--html")
    check_no_input(args.html, "--html", [args.trace])
    trace, sentences = stream_trace(args.trace)
    if args.sentence:
        sentences = _chosen(list(sentences), args)
    path = Path(args.html)
    text, note = page(Path(args.trace).name, trace, sentences)
    write_atomically(path, text, "--html")
    if note:
        say(note)
    say(f"{path}: written; open it in a browser")


def _chosen(sentences: list[TracedSentence], args: argparse.Namespace) -> Iterator[TracedSentence]:
    by_id = {sentence.id: sentence for sentence in sentences}
    missing = [number for number in args.sentence if number not in by_id]
    if missing:
        content = f"has {len(by_id)} sentences, from {min(by_id)} to {max(by_id)}" if by_id else "has no sentences"
        raise ConfigurationError("--sentence", missing[0], f"is not in {args.trace}, which {content}")
    return (by_id[number] for number in args.sentence)


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
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse and write the page."""
    write_page(get_parser().parse_args(argv))


main = partial(run_command, "spec-dec-trace", run)


if __name__ == "__main__":
    sys.exit(main())

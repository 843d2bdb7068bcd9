"""Show a trace: in the terminal as in the papers' case study, or as a page for the browser.

    spec-dec-trace TRACE                       the first sentences, in the terminal
    spec-dec-trace TRACE --sentence 3 17       these sentences
    spec-dec-trace TRACE --html page.html      all sentences, to search, sort and step through

A trace is a file of fairseq-generate's `--trace-file`.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairseq_plugins.decoding.recording.trace import Iteration, Trace, TracedSentence, read_trace, stream_trace
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.pages.trace_page import (
    EDITS,
    describe,
    edit_basis,
    edit_ratios,
    how_many_fit,
    page,
    sample_evenly,
    sampling_note,
)
from fairseq_plugins.shared.cli import CommandParser, positive, run_command
from fairseq_plugins.shared.files import write_atomically

# Colour-blind-safe colours of Okabe and Ito.
STYLES = {
    "earlier": "dim",
    "accepted": "#009e73",
    "relaxed": "underline #56b4e9",
    "own": "bold #e69f00",
    "bifurcation": "bold reverse #d55e00",
    "rejected": "strike #d55e00",
}
# Marks for output without colours. Rejected tokens need none: they follow the bifurcation.
MARKS = {"relaxed": "~{}~", "bifurcation": "[{}]"}

DEFAULT_LIMIT = 10
# Sentences that decide whether the task rewrites its input.
_BASIS_SAMPLE = 200

Piece = tuple[str, str]  # a token's text, and its kind: a key of STYLES


def plain_text(tokens: Sequence[int], symbols: Sequence[str], eos: str = "</s>") -> str:
    """Return tokens without EOS as text, with pieces of sentencepiece or subword-nmt joined."""
    words = [printable(symbols[token]) for token in tokens if symbols[token] != eos]
    if any("\u2581" in word for word in words):
        return "".join(words).replace("\u2581", " ").strip()
    return f"{' '.join(words)} ".replace("@@ ", "").strip()


def printable(symbol: str) -> str:
    """Return a symbol without control characters for the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in symbol)


def draft_line(note: Iteration, word: Callable[[int], str], eos: int) -> list[Piece]:
    """Return the drafted tokens, each with its kind, up to the first EOS."""
    kinds = ["relaxed" if relaxed else "accepted" for relaxed in note.relaxed[: note.accepted]]
    if note.bifurcation is not None:
        kinds += ["bifurcation"] + ["rejected"] * (len(note.draft) - note.accepted - 1)
    return [(word(token), kind) for token, kind in _until(eos, zip(note.draft, kinds, strict=False))]


def verifier_line(note: Iteration, word: Callable[[int], str], eos: int) -> list[Piece]:
    """Return the result of verification: accepted tokens, the verifier's own token, and discarded ones."""
    pieces = [
        (drafted, "relaxed" if relaxed else "accepted")
        for drafted, relaxed in zip(note.draft[: note.accepted], note.relaxed, strict=False)
    ]
    if note.accepted < len(note.why):
        pieces.append((note.verifier[note.accepted], "own" if note.bifurcation is None else "bifurcation"))
        pieces += [(token, "rejected") for token in note.verifier[note.accepted + 1 :]]
    return [(word(token), kind) for token, kind in _until(eos, pieces)]


def _until(eos: int, tokens: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    shown = []
    for token, kind in tokens:
        shown.append((token, kind))
        if token == eos:
            break
    return shown


class TerminalView:
    """Print sentences, with marks instead of colours where the console has none.

    `basis` is the kind of edit ratio to print, "source" or "reference"; None for none.
    """

    def __init__(self, console: Console, trace: Trace, basis: str | None = None) -> None:
        self.console = console
        self.trace = trace
        self.basis = basis
        self.has_colours = console.is_terminal and not console.no_color and console.color_system is not None

    def head(self) -> None:
        """Print decoder, settings and legend."""
        self._print(Text(describe(self.trace), style="bold"))
        legend = Text("D drafter, V verifier:")
        for kind, meaning in (
            ("earlier", "earlier iterations"),
            ("accepted", "accepted"),
            ("relaxed", "accepted, not the verifier's best"),
            ("bifurcation", "bifurcation"),
            ("rejected", "discarded"),
            ("own", "the verifier's own"),
        ):
            if self.has_colours:
                legend.append(" ").append(f" {meaning} ", style=STYLES[kind])
            elif kind in MARKS:
                legend.append(f" {MARKS[kind].format(meaning)}")
        if not self.has_colours:
            legend.append(", | ends earlier iterations, what follows [ ] is discarded")
        self._print(legend)

    def sentence(self, sentence: TracedSentence) -> None:
        """Print one sentence."""
        figures = (
            f"{len(sentence.output)} tokens in {len(sentence.iterations)} iterations, speed-up "
            f"{sentence.speed_up:.2f} tokens per iteration"
        )
        if self.basis is not None:
            figures += f", edit ratio ({EDITS[self.basis]}) {edit_ratios(sentence, joined=True)[self.basis]:.2f}"
        self._print(Text())
        self._print(Text(f"Sentence {sentence.id}: ", style="bold").append(figures, style="not bold"))
        symbols = self.trace.target_symbols
        lines = [("SOURCE", Text(plain_text(sentence.source, self.trace.source_symbols)))]
        lines += self._iterations(sentence)
        if sentence.target is not None:
            lines.append(("TARGET", Text(plain_text(sentence.target, symbols))))
        lines.append(("RESULT", Text(plain_text(sentence.output, symbols), style="bold")))
        if self.console.is_terminal:
            grid = Table.grid(padding=(0, 1))
            for label, text in lines:
                grid.add_row(label, text)
            self.console.print(grid)
        else:
            for label, text in lines:
                self._print(Text(f"{label:6} ").append_text(text))

    def _iterations(self, sentence: TracedSentence) -> list[tuple[str, Text]]:
        def word(token: int) -> str:
            return printable(self.trace.target_symbols[token])

        lines: list[tuple[str, Text]] = []
        done = 0
        for note in sentence.iterations:
            earlier = [(word(token), "earlier") for token in sentence.output[:done]]
            for label, line in (("D", draft_line), ("V", verifier_line)):
                lines.append((label, self._text(earlier, line(note, word, sentence.output[-1]))))
            done += len(note.why)
        return lines

    def _text(self, earlier: list[Piece], new: list[Piece]) -> Text:
        if self.has_colours:
            parts = [(word, STYLES[kind]) for word, kind in earlier + new]
        else:
            bar = [("|", "")] if earlier else []
            parts = [*earlier, *bar, *((MARKS.get(kind, "{}").format(word), "") for word, kind in new)]
        return Text(" ").join(Text(word, style=style) for word, style in parts)

    def _print(self, text: Text) -> None:
        # Lines of a pipe are not wrapped, for grep.
        self.console.print(text, soft_wrap=not self.console.is_terminal, highlight=False)


def show_in_terminal(args: argparse.Namespace) -> None:
    """Print the wanted sentences."""
    limit = DEFAULT_LIMIT if args.limit is None else args.limit
    trace = read_trace(args.trace)
    chosen = _chosen(trace.sentences, args)
    shown = chosen if args.sentence and args.limit is None else chosen[:limit]
    joined = trace.source_symbols == trace.target_symbols
    ratios = [edit_ratios(sentence, joined) for sentence in trace.sentences[:_BASIS_SAMPLE]]
    basis = edit_basis(trace.decoder, ratios, args.edit_ratio)
    _warn_without_ratio(args.edit_ratio, basis)
    view = TerminalView(Console(), trace, basis)
    view.head()
    for sentence in shown:
        view.sentence(sentence)
    if len(shown) < len(chosen):
        sys.stdout.flush()
        print(
            f"\n{len(shown)} of {len(chosen)} sentences shown; for more add --limit N, --sentence ID or --html FILE",
            file=sys.stderr,
        )


def write_page(args: argparse.Namespace) -> None:
    """Write the page, with as many sentences as a browser can show."""
    sentences: Iterable[TracedSentence]
    if args.sentence:
        trace = read_trace(args.trace)
        chosen = _chosen(trace.sentences, args)[: args.limit]
        sentences, total = chosen, len(chosen)
    else:
        total, shown = how_many_fit(args.trace, args.limit)
        wanted = sample_evenly(total, shown)
        trace, sentences = stream_trace(args.trace, wanted.__contains__)
    path = Path(args.html)
    text, basis = page(Path(args.trace).name, trace, sentences, total, args.edit_ratio)
    write_atomically(path, text, "--html")
    _warn_without_ratio(args.edit_ratio, basis)
    note = "" if args.sentence else sampling_note(shown, total)
    if note:
        print(f"{note}{'' if args.limit else ': a browser takes no more'}", file=sys.stderr)
    print(f"{path}: written; open it in a browser")


def _chosen(sentences: list[TracedSentence], args: argparse.Namespace) -> list[TracedSentence]:
    if not args.sentence:
        return sentences
    by_id = {sentence.id: sentence for sentence in sentences}
    missing = [number for number in args.sentence if number not in by_id]
    if missing:
        content = f"has {len(by_id)} sentences, from {min(by_id)} to {max(by_id)}" if by_id else "has no sentences"
        raise ConfigurationError("--sentence", missing[0], f"is not in {args.trace}, which {content}")
    return [by_id[number] for number in args.sentence]


def _warn_without_ratio(wanted: str, basis: str | None) -> None:
    if wanted != "auto" and basis is None:
        reason = {"source": "source and output have different dictionaries", "reference": "it has no references"}
        print(f"no edit ratio against the {wanted}: {reason[wanted]}", file=sys.stderr)


def get_parser() -> CommandParser:
    """Return the command's parser."""
    example = "spec-dec-trace trace.jsonl --html trace.html"
    description = "Show the drafts of a decoding run and which tokens were accepted, in the terminal or as a page."
    parser = CommandParser("spec-dec-trace", description, example)
    add = parser.add_argument
    add("trace", metavar="TRACE", help="file that fairseq-generate wrote with --trace-file")
    numbers = "show only these sentences, numbered as in fairseq-generate's H- lines"
    add("--sentence", metavar="ID", type=int, nargs="+", help=numbers)
    add("--html", metavar="FILE", help="write a page for the browser instead")
    limit = f"show at most N sentences (default: {DEFAULT_LIMIT} in the terminal; on a page an evenly spaced sample of "
    add("--limit", metavar="N", type=positive, help=limit + "the size that browsers can handle)")
    ratio = "show the edit ratio of outputs to sources or to references (default: auto, sources if the task rewrites "
    add("--edit-ratio", choices=["auto", *EDITS], default="auto", help=ratio + "its input)")
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse and show."""
    args = get_parser().parse_args(argv)
    if args.html is not None:
        write_page(args)
    else:
        show_in_terminal(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-trace`: 0, or 2 after a one-line error."""
    return run_command("spec-dec-trace", run, argv)


if __name__ == "__main__":
    sys.exit(main())

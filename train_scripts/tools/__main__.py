"""The command line: one subcommand a tool. Errors are one line."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from train_scripts.tools import alter, recombine, subwords, text
from train_scripts.tools.short_table import short_table


def file_pairs(files: Sequence[Path]) -> list[tuple[Path, Path]]:
    """IN OUT IN OUT ... as pairs.

    Raises:
        ConfigurationError: when an OUT is missing.
    """
    if len(files) % 2:
        text.refuse(f"{files[-1]}: has no file to write to after it; give IN OUT [IN OUT ...]")
    return list(zip(files[::2], files[1::2], strict=True))


def numbers(listed: str) -> list[int]:
    """Whole numbers with commas between, for argparse."""
    return [int(number) for number in listed.split(",")]


def _clean_lines(args: argparse.Namespace) -> None:
    for source, target in file_pairs(args.files):
        text.clean_lines(source, target)


def _example_text(args: argparse.Namespace) -> None:
    text.example_text(args.out, {"train": args.train, "valid": args.valid, "test": args.test})


def _clean_pairs(args: argparse.Namespace) -> None:
    sources, targets, *outs = (Path(f"{side}.{end}") for side in (args.prefix, args.out) for end in args.languages)
    kept, total = text.clean_pairs(sources, targets, (outs[0], outs[1]), args.max_length, args.max_ratio)
    print(f"       {kept} of {total} training pairs kept")


def _count_updates(args: argparse.Namespace) -> None:
    from train_scripts.tools.models import count_updates

    print(count_updates(args.data, *args.languages, args.epochs, args.tokens))


def _keep_decoder_layers(args: argparse.Namespace) -> None:
    from train_scripts.tools.models import keep_decoder_layers

    keep_decoder_layers(args.source, args.layers, args.target)


def _split_verifier(args: argparse.Namespace) -> None:
    from train_scripts.tools.models import split_verifier

    split_verifier(args.tuned, args.before, args.verifier, args.drafter)


def _measure_survival(args: argparse.Namespace) -> None:
    from train_scripts.tools.survival import measure

    tokens = measure(args.data, args.verifier, args.drafter, args.subset)
    print(f"{args.drafter}: {tokens:.2f} tokens per iteration on {args.subset}; survival counts are kept in it")


def _size_options(args: argparse.Namespace) -> None:
    from train_scripts.tools.models import size_options

    print("\n".join(size_options(args.model)))


def _model_card(args: argparse.Namespace) -> None:
    from train_scripts.tools.model_card import write

    write(args.name, *args.languages, args.subwords, args.licence, args.recipe)


def _drafter_table(args: argparse.Namespace) -> None:
    from train_scripts.tools.drafter_table import write

    write(args.out, args.cells, args.models, args.drafters, args.seeds, args.block_sizes, args.timed, args.note)


def get_parser() -> argparse.ArgumentParser:
    """All tools and their options."""
    parser = argparse.ArgumentParser(prog="python -m train_scripts.tools", description="What the recipes do in Python.")
    tools = parser.add_subparsers(metavar="TOOL", required=True)

    def tool(name: str, run: Callable[[argparse.Namespace], None], what: str) -> Callable[..., argparse.Action]:
        sub = tools.add_parser(name, help=what, description=what)
        sub.set_defaults(run=run)
        return sub.add_argument

    add = tool("clean-lines", _clean_lines, "copy text with every kind of white space as one blank")
    add("files", nargs="+", type=Path, metavar="IN OUT", help="text (.gz, .xz: compressed), and where it goes")

    add = tool("example-text", _example_text, "write the first sentences of examples/cldr.en-de")
    add("out", type=Path, help="folder for the sets")
    for name, size in (("train", 24000), ("valid", 500), ("test", 500)):
        add(f"--{name}", type=int, default=size, metavar="N", help="number of pairs (default: %(default)s)")

    add = tool("clean-pairs", _clean_pairs, "leave out pairs with an empty or too long side, or of unlike lengths")
    add("prefix", help="of the two files")
    add("out", help="prefix of what is kept")
    add("--languages", nargs=2, required=True, help="suffixes of the files")
    add("--max-length", type=int, default=0, help="tokens of a side (0: any)")
    add("--max-ratio", type=float, default=0, help="of the longer to the shorter side (0: any)")

    add = tool("hold-out", lambda a: text.hold_out(a.prefix, *a.languages, a.one_in, a.valid, a.train),
               "divide a text into validation and training")  # fmt: skip
    add("prefix", type=Path, help="of the two files")
    add("valid", type=Path, help="prefix of the validation set")
    add("train", type=Path, help="prefix of the training set")
    add("--languages", nargs=2, required=True, help="suffixes of the files")
    add("--one-in", type=int, required=True, metavar="N", help="one source sentence in N is held out")

    add = tool("ted-talks", lambda a: text.ted_talks(a.folder, a.out), "fairseq's sets of IWSLT 2014, de-en")
    add("folder", type=Path, help="the unpacked archive")
    add("out", type=Path, help="folder for the sets")

    add = tool("learn-subwords", lambda a: subwords.learn(a.model, a.files, a.kind, a.size),
               "learn a sentencepiece model")  # fmt: skip
    add("model", type=Path, help="where it goes")
    add("files", nargs="+", type=Path, help="raw text")
    add("--kind", required=True, choices=("bpe", "unigram"))
    add("--size", required=True, type=int, help="number of subwords")

    add = tool("apply-subwords", lambda a: subwords.apply(a.model, file_pairs(a.files)), "cut text into subwords")
    add("model", type=Path, help="of learn-subwords")
    add("files", nargs="+", type=Path, metavar="IN OUT", help="text, and where its subwords go")

    add = tool("recombine", lambda a: recombine.write(a.source, a.target, a.count, a.context, a.seed),
               "make new sentences out of the n-grams of a text")  # fmt: skip
    add("source", type=Path, help="the text")
    add("target", type=Path, help="where the new sentences go")
    add("--count", type=int, required=True, help="how many")
    add("--context", type=int, default=2, help="words that the next one is drawn after (default: 2)")
    add("--seed", type=int, default=1)

    add = tool("alter", lambda a: alter.write(a.source, a.target, a.how),
               "make a text a little unlike what models were trained on")  # fmt: skip
    add("source", type=Path, help="the text")
    add("target", type=Path, help="where the altered sentences go")
    add(
        "--how",
        required=True,
        choices=alter.WAYS,
        help="cut: the first half of every sentence; lower: in lower case; joined: every two sentences as one",
    )

    add = tool("apply-gpt2-bpe", lambda a: subwords.apply_gpt2(a.folder, file_pairs(a.files)),
               "cut text as GPT-2 and BART do")  # fmt: skip
    add("folder", type=Path, help="holds encoder.json and vocab.bpe")
    add("files", nargs="+", type=Path, metavar="IN OUT", help="text, and where its subwords go")

    add = tool("keep-decoder-layers", _keep_decoder_layers, "make a checkpoint with fewer decoder layers")
    add("source", type=Path, help="the checkpoint")
    add("target", type=Path, help="where the new one goes")
    add("--layers", required=True, type=numbers, metavar="N,N", help="which to keep, counted from 0")

    add = tool("split-verifier", _split_verifier, "part verifier and drafter that were trained with --tune-verifier")
    add("tuned", type=Path, help="the checkpoint of both")
    add("before", type=Path, help="the verifier that it began with")
    add("verifier", type=Path, help="where the new verifier goes")
    add("drafter", type=Path, help="where its drafter goes")

    add = tool("measure-survival", _measure_survival, "count on the validation set how many drafted tokens survive")
    add("data", type=Path, help="binarised data")
    add("verifier", type=Path)
    add("drafter", type=Path, help="rewritten with the counts, which --decoder gad begins with")
    add("--subset", default="valid", help="name of the set (default: %(default)s)")

    add = tool("size-options", _size_options, "print the options of fairseq-train for a model of the same shape")
    add("model", type=Path)

    add = tool("count-updates", _count_updates, "print about how many updates a number of epochs has")
    add("data", type=Path, help="binarised data")
    add("--languages", nargs=2, required=True, help="source and target language")
    add("--epochs", required=True, type=float)
    add("--tokens", required=True, type=int, help="in an update")

    add = tool("short-table", lambda a: print(short_table(a.file)), "print a table of decoders in few columns")
    add("file", type=Path, help="table.md")

    add = tool("model-card", _model_card, "write checkpoints/NAME/README.md")
    add("name", help="of the results")
    add("--languages", nargs=2, required=True, help="source and target language")
    add("--subwords", required=True, choices=("unigram", "bpe", "moses", "gpt2"))
    add("--licence", required=True, help="of the data")
    add("--recipe", required=True, help="the command that made the models")

    add = tool("drafter-table", _drafter_table, "write the table of drafter_table.sh")
    add("out", type=Path, help="the table")
    add("--cells", required=True, type=Path, help="folder of what was measured")
    add("--models", required=True, type=Path, help="folder of the trained drafters")
    add("--drafters", required=True, nargs="+")
    add("--seeds", required=True, nargs="+")
    add("--block-sizes", required=True, nargs="+", metavar="K")
    add("--timed", required=True, metavar="K", help="block size of the timings")
    add("--note", required=True, help="how long they were trained")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a tool: 0, or 2 after a line about a file that cannot be read or written."""
    args = get_parser().parse_args(argv)
    try:
        args.run(args)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

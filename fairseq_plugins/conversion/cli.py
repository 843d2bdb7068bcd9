"""Convert a model in Hugging Face's format to fairseq's: Marian, M2M100, NLLB, mBART-50, BART.

spec-dec-convert FOLDER OUT
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from fairseq_plugins.commands.cli import CommandParser, run_command
from fairseq_plugins.conversion.convert import convert


def get_parser() -> CommandParser:
    """Return the parser of `spec-dec-convert`."""
    example = "spec-dec-convert opus-mt-en-de converted"
    parser = CommandParser("spec-dec-convert", (__doc__ or "").split("\n")[0], example)
    folder = "folder of the model, with config.json, model.safetensors and a tokenizer"
    parser.add_argument("folder", metavar="FOLDER", help=folder)
    parser.add_argument("out", metavar="OUT", help="new folder for verifier.pt, dictionaries and subwords")
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse and convert."""
    args = get_parser().parse_args(argv)
    convert(Path(args.folder), Path(args.out))
    print(f"{args.out}: written")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-convert`."""
    return run_command("spec-dec-convert", run, argv)


if __name__ == "__main__":
    sys.exit(main())

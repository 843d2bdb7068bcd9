"""Convert a model in Hugging Face's format to fairseq's: Marian, M2M100, NLLB, mBART-50, BART.

spec-dec-convert FOLDER OUT
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_plugins.commands.cli import CommandParser, run_command
from fairseq_plugins.conversion.convert import convert
from fairseq_plugins.conversion.settings import Settings


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
    out = Path(args.out)
    convert(Path(args.folder), out)
    print(f"{out}: written; translate with spec-dec-translate {out}{_languages(Settings.read(out).languages)}")


def _languages(known: Mapping[str, str]) -> str:
    """Return the options that a multilingual model needs."""
    if not known:
        return ""
    return f" --source-lang NAME --target-lang NAME ({len(known)} languages: {', '.join([*known][:8])} ...)"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `spec-dec-convert`."""
    return run_command("spec-dec-convert", run, argv)


if __name__ == "__main__":
    sys.exit(main())

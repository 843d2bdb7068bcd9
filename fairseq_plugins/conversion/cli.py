"""Convert a model in Hugging Face's format to fairseq's, or any model to int8.

spec-dec-convert FOLDER OUT [--int8]
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fairseq_plugins.conversion.convert import convert
from fairseq_plugins.conversion.int8 import write_int8
from fairseq_plugins.conversion.settings import LoadSettings
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.cli import CommandParser, run_command
from fairseq_plugins.shared.files import check_folder, is_hugging_face, missing_folder
from fairseq_plugins.shared.languages import find_languages


def get_parser() -> CommandParser:
    """Return the parser of `spec-dec-convert`."""
    description = (
        "Convert a Marian, M2M100, NLLB, mBART-50 or BART model of Hugging Face to fairseq's format. With --int8,\n"
        "also any folder that fairseq_plugins.load reads."
    )
    parser = CommandParser("spec-dec-convert", description, "spec-dec-convert opus-mt-en-de converted --int8")
    folder = "folder of the model: config.json, model.safetensors or pytorch_model.bin, and a tokenizer; "
    folder += "with --int8 also one with verifier.pt"
    parser.add_argument("folder", metavar="FOLDER", help=folder)
    parser.add_argument("out", metavar="OUT", help="new folder for verifier.pt, dictionaries and subwords")
    int8 = "round weights to int8, a quarter of the size of fp32; the output is that of --int8 in decoding"
    parser.add_argument("--int8", action="store_true", help=int8)
    for side in ("source", "target"):
        language = f"{side} language, for --int8, if the names of files do not tell it"
        parser.add_argument(f"--{side}-lang", metavar="NAME", help=language)
    ignore = "go on without this setting of generation_config.json, which `load` cannot honour; may be repeated"
    parser.add_argument("--ignore", action="append", default=[], metavar="SETTING", help=ignore)
    return parser


def run(argv: Sequence[str]) -> None:
    """Parse and convert."""
    args = get_parser().parse_args(argv)
    source, target = Path(args.folder), Path(args.out)
    if not source.is_dir():
        raise missing_folder(None, source, "that of a model")
    if os.path.lexists(target):
        raise ConfigurationError(None, target, "exists already", "give another folder")
    check_folder(target, "OUT")
    if args.ignore and not is_hugging_face(source):
        problem = f"{source} has no settings of Hugging Face"
        raise ConfigurationError("--ignore", args.ignore[0], problem, "leave it out")
    is_pair = args.int8 and not is_hugging_face(source) and not LoadSettings.read(source).languages
    for option, language in (("--source-lang", args.source_lang), ("--target-lang", args.target_lang)):
        if language is not None and not is_pair:
            problem = "is for {--int8} and a folder of fairseq's with one pair of languages"
            raise ConfigurationError(option, language, problem, "leave it out")
    if not args.int8:
        convert(source, target, args.ignore)
    elif is_hugging_face(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.fp32.", dir=target.parent) as fp32:
            convert(source, Path(fp32, "model"), args.ignore)
            _to_int8(Path(fp32, "model"), target, (None, None))
    else:
        _to_int8(source, target, (args.source_lang, args.target_lang))
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{args.out}: written, {size / 1e6:.1f} MB")


def _to_int8(source: Path, target: Path, languages: tuple[str | None, str | None]) -> None:
    settings = LoadSettings.read(source)
    if settings.options.get("int8"):
        raise ConfigurationError(None, source, "its weights are in int8 already")
    is_named = "source_lang" in settings.options and not any(languages)
    pair = None if settings.languages or is_named else find_languages(source, languages)
    write_int8(source, target, pair)


main = partial(run_command, "spec-dec-convert", run)


if __name__ == "__main__":
    sys.exit(main())

"""Run a tool from the command line: one subcommand per tool, with the parameters of its function."""

import argparse
import inspect
import logging
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from train_scripts.runner.stages import full_disk

# Module and function of each tool, imported only when called, because torch takes seconds.
TOOLS = {
    "apply-gpt2-bpe": "subwords.apply_gpt2",
    "apply-subwords": "subwords.apply",
    "clean-lines": "text.clean_lines",
    "clean-pairs": "text.clean_pairs",
    "count-updates": "models.count_updates",
    "example-text": "text.example_text",
    "hold-out": "text.hold_out",
    "keep-decoder-layers": "models.keep_decoder_layers",
    "learn-subwords": "subwords.learn",
    "measure-survival": "survival.measure",
    "model-card": "model_card.write",
    "recombine": "recombine.write",
    "short-table": "tables.short",
    "split-verifier": "models.split_verifier",
    "ted-talks": "text.ted_talks",
}


def parser_of(name: str, function: Callable[..., object]) -> argparse.ArgumentParser:
    """Return a parser for the parameters of a function, with help from its docstring; keyword-only ones are options."""
    text = inspect.getdoc(function) or ""
    described = re.findall(r"^    ([\w, ]+): (.+)", text, re.MULTILINE)
    help_of = {argument: words for arguments, words in described for argument in arguments.split(", ")}
    parser = argparse.ArgumentParser(prog=f"python -m train_scripts.tools {name}", description=text.split("\n")[0])
    for parameter in inspect.signature(function).parameters.values():
        is_option, annotation = parameter.kind is parameter.KEYWORD_ONLY, parameter.annotation
        if get_origin(annotation) is UnionType:  # of a type and None
            annotation = get_args(annotation)[0]
        options: dict[str, Any] = {"type": annotation, "help": help_of.get(parameter.name)}
        values, kind = get_args(annotation), get_origin(annotation)
        if kind is Literal:
            options |= {"type": str, "choices": values}
        elif kind is not None:  # a sequence, or a tuple of two
            options |= {"type": values[0], "nargs": len(values) if kind is tuple else "+"}
        if is_option and parameter.default is parameter.empty:
            options["required"] = True
        elif is_option:
            options["default"] = parameter.default
        parser.add_argument(f"--{parameter.name.replace('_', '-')}" if is_option else parameter.name, **options)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a tool and print its result; return 0, 2 after a one-line error about a file, or 130 after Ctrl-C."""
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
    parser = argparse.ArgumentParser(prog="python -m train_scripts.tools", description="Tools that the recipes call.")
    parser.add_argument("tool", choices=TOOLS, help="TOOL --help has its options")
    module, _, function = TOOLS[parser.parse_args([name]).tool].partition(".")
    try:
        tool = getattr(import_module(f"train_scripts.tools.{module}"), function)
        logging.getLogger().setLevel(logging.WARNING)  # importing fairseq sets a more verbose level
        result = tool(**vars(parser_of(name, tool).parse_args(arguments)))
    except OSError as error:
        said = full_disk(error) or f"{error.filename or 'a file'}: {error.strerror or error}"
        print(f"error: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # the recipe prints a message
        return 128 + signal.SIGINT
    if result is not None:
        print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write fairseq_plugins/help_texts, --help and arguments of each spec-dec-* command: `python -m tests.help_texts`."""

import contextlib
import io
import json
import os
import re
import sys
from importlib import import_module
from unittest import mock

from fairseq_plugins.help_texts import FOLDER
from fairseq_plugins.shared.arguments import FILE, described
from fairseq_plugins.shared.cli import CommandParser
from fairseq_plugins.shared.parsing import decoding_options
from tests.command_server import own_commands

SUBCOMMANDS = {"spec-dec-distill": ("decode", "status", "merge")}


def printed(target: str, command: str, arguments: list[str]) -> str:
    """Return what a command's parser prints for --help."""
    module, function = target.split(":")
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [command, *arguments, "--help"]),
        mock.patch.dict(os.environ, {"COLUMNS": "110"}),
        # The rows of spec-dec-bench depend on it.
        mock.patch("torch.cuda.is_available", return_value=False),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        getattr(import_module(module), function)()
    return out.getvalue()


def parsers() -> dict[str, CommandParser]:
    """Return command, with its subcommand -> its parser, for those that have one."""
    found = {}
    for command, target in own_commands().items():
        for more in ([], *([name] for name in SUBCOMMANDS.get(command, ()))):
            with mock.patch.object(CommandParser, "format_help", autospec=True, return_value="") as format_help:
                printed(target, command, more)
            if format_help.called:
                found[" ".join([command, *more])] = format_help.call_args[0][0]
    return found


def arguments() -> str:
    """Return what arguments.json holds, an argument a line."""
    own = {name: described(parser, decoding_options()) for name, parser in parsers().items()}
    return re.sub(r', (?="extends|"spec-dec|{"names)', ",\n", json.dumps(own)) + "\n"


def texts() -> dict[str, str]:
    """Return file name -> help, for all commands and subcommands."""
    by_file = {}
    for command, target in own_commands().items():
        for more in ([], *([name] for name in SUBCOMMANDS.get(command, ()))):
            by_file["-".join([command, *more]) + ".txt"] = printed(target, command, more)
    return by_file


if __name__ == "__main__":
    for file, text in texts().items():
        (FOLDER / file).write_text(text, encoding="utf-8")
    FILE.write_text(arguments(), encoding="utf-8")

"""Write fairseq_plugins/help_texts, --help of each spec-dec-* command: `python -m tests.help_texts`."""

import contextlib
import io
import os
import sys
from importlib import import_module
from unittest import mock

from fairseq_plugins.help_texts import FOLDER
from tests.command_server import own_commands

SUBCOMMANDS = {"spec-dec-distill": ("decode", "merge")}


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

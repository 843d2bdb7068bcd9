"""Write fairseq_plugins/help_texts, the --help of each spec-dec-* command: `python -m tests.help_texts`."""

import ast
import contextlib
import io
import os
import sys
from importlib import import_module
from unittest import mock

from fairseq_plugins.help_texts import FOLDER
from tests.support import REPOSITORY

SUBCOMMANDS = {"spec-dec-distill": ("decode", "status", "merge")}


def commands() -> dict[str, str]:
    """Return command -> module:function, from setup.py."""
    tree = ast.parse((REPOSITORY / "setup.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    scripts = assigned["CONSOLE_SCRIPTS"]
    return {name.strip(): target.strip() for name, target in (line.split("=") for line in ast.literal_eval(scripts))}


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
    for command, target in commands().items():
        for more in ([], *([name] for name in SUBCOMMANDS.get(command, ()))):
            by_file["-".join([command, *more]) + ".txt"] = printed(target, command, more)
    return by_file


if __name__ == "__main__":
    for file, text in texts().items():
        (FOLDER / file).write_text(text, encoding="utf-8")

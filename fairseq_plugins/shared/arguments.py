"""Refuse wrong arguments of the spec-dec-* commands before the slow imports of torch and fairseq.

help_texts/arguments.json describes the commands' parsers; `python -m tests.help_texts` writes it.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from fairseq_plugins.errors import ConfigurationError, on_command_line
from fairseq_plugins.help_texts import FOLDER
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.cli import CommandParser, not_negative, positive, positive_list

FILE = FOLDER / "arguments.json"

# Types of other modules are checked by the command itself.
_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (int, float, positive, not_negative, positive_list)}
_ACTIONS = {
    argparse._StoreAction: "store",
    argparse._StoreTrueAction: "store_true",
    argparse._AppendAction: "append",
}


def described(parser: CommandParser, decoding: argparse._ArgumentGroup) -> dict[str, Any]:
    """Return a command's own arguments as JSON values.

    Args:
        parser: of the command.
        decoding: options of decoding, which commands that extend fairseq-generate have, too.
    """
    groups = [*parser.own_groups, *([decoding] if parser.extends_fairseq else [])]
    actions = [action for group in groups for action in group._group_actions]
    arguments = [_described(action) for action in actions if not isinstance(action, argparse._HelpAction)]
    return {"extends_fairseq": parser.extends_fairseq, "arguments": arguments}


def _described(action: argparse.Action) -> dict[str, Any]:
    described: dict[str, Any] = {"names": action.option_strings or [action.dest], "action": _ACTIONS[type(action)]}
    if action.option_strings and action.required:
        described["required"] = True
    if not action.option_strings:
        described["metavar"] = action.metavar
    if described["action"] != "store_true":
        kind = getattr(action.type, "__name__", None)
        more = {"nargs": action.nargs, "type": kind if kind in _TYPES else None}
        more["choices"] = None if action.choices is None else [str(choice) for choice in action.choices]
        described |= {name: value for name, value in more.items() if value is not None}
    return described


def refuse_wrong_arguments() -> None:
    """Print one line and end with status 2, if this is a spec-dec-* command with wrong arguments."""
    program = Path(sys.argv[0] if sys.argv else "").name
    if not program.startswith("spec-dec-") or {"-h", "--help", "--help-all", "--version"} & {*sys.argv}:
        return
    commands, argv = json.loads(FILE.read_text(encoding="utf-8")), sys.argv[1:]
    name = program
    if argv and f"{program} {argv[0]}" in commands:
        name, argv = f"{program} {argv[0]}", argv[1:]
    if name not in commands:
        return
    parser = CommandParser(name, None, "")
    parser.allow_abbrev = not commands[name]["extends_fairseq"]
    for argument in commands[name]["arguments"]:
        named = {key: value for key, value in argument.items() if key != "names"}
        kind = named.pop("type", None)
        parser.add_argument(*argument["names"], **({"type": _TYPES[kind]} if kind else {}), **named)
    try:
        if commands[name]["extends_fairseq"]:
            parser.parse_known_args(argv)  # the rest is fairseq's
        else:
            parser.parse_args(argv)
    except ConfigurationError as error:
        say(f"{program}: error: {error.spelled(on_command_line)}")
        sys.exit(2)

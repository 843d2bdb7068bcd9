"""Shared by the console commands: layout of --help, one-line errors, exit status, log levels."""

import argparse
import logging
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from fairseq_plugins.errors import (
    ConfigurationError,
    did_you_mean,
    explain,
    on_command_line,
    spell_as,
    spelled,
    unknown_value,
)
from fairseq_plugins.help_texts import version
from fairseq_plugins.process.output import (
    PARENT,
    READER_IS_GONE,
    abandon_output,
    is_output_failure,
    is_tool,
    say,
    say_interrupted,
    say_output_failure,
    watch_output,
)
from fairseq_plugins.shared.fairseq_errors import wrong_option


def positive(text: str) -> int:
    """Parse an integer of at least 1, for argparse."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def not_negative(text: str) -> float:
    """Parse a number of at least 0, for argparse."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of at least 0")
    return value


def positive_list(text: str) -> list[int]:
    """Parse a comma-separated list of integers of at least 1, for argparse."""
    return [positive(part) for part in text.split(",")]


def named_values(items: Sequence[str]) -> dict[str, str]:
    """Return name -> value of `--set NAME=VALUE`, names with underscores; raise ConfigurationError for others."""
    values = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ConfigurationError("--set", item, remedy="give NAME=VALUE, such as {--set lenpen=0.6}")
        values[name.replace("-", "_")] = value
    return values


class CommandParser(argparse.ArgumentParser):
    """Show in --help: usage, description, example, required options, then the command's other options.

    `inherited` is fairseq's parser, whose options are accepted too and shown by --help-all; those that are always
    needed are `required`.
    """

    def __init__(
        self,
        prog: str,
        description: str | None,
        example: str,
        inherited: argparse.ArgumentParser | None = None,
        required: Sequence[argparse.Action] = (),
    ) -> None:
        alone = inherited is None
        parents = [] if inherited is None else [inherited]
        super().__init__(prog, description=description, parents=parents, add_help=alone, allow_abbrev=alone)
        self._example, self._required = example, list(required)
        self._inherited = 0 if alone else len(self._action_groups)

    def format_help(self) -> str:
        """Return what --help prints."""
        text = self._format_groups(self._action_groups[self._inherited :])
        if self._inherited:
            text += "\nAlso: options of decoding (--decoder, --drafter-path, --block-size) and of fairseq-generate "
            text += "(--gen-subset,\n--batch-size, --cpu); see --help-all, or docs/options.md.\n"
        return text

    def format_full_help(self, decoding: argparse._ArgumentGroup) -> str:
        """Return what --help-all prints: the options of decoding after the command's, then fairseq's."""
        own, fairseqs = self._action_groups[self._inherited :], self._action_groups[: self._inherited]
        return self._format_groups([*own, decoding, *fairseqs])

    def error(self, message: str) -> NoReturn:
        """Raise a one-line error instead of printing the usage."""
        error = advised(message, self)
        error.remedy = f"{error.remedy} (see {self.prog} --help)" if error.remedy else f"see {self.prog} --help"
        raise error

    def _format_groups(self, groups: Sequence[argparse._ArgumentGroup]) -> str:
        needed = self._required + [action for action in self._actions if action.required]
        optional = [action for action in self._actions if not (action.option_strings or action.required)]
        formatter = argparse.RawDescriptionHelpFormatter(self.prog, width=110)
        formatter.add_usage(None, [*needed, *([] if self._inherited else optional)], [])
        formatter.add_text(self.description)
        formatter.start_section("example")
        formatter.add_text(self._example)
        formatter.end_section()
        sections = [("required", needed)]
        sections += [(group.title or "", [a for a in group._group_actions if a not in needed]) for group in groups]
        for title, actions in sections:
            formatter.start_section(title)
            formatter.add_arguments(actions)
            formatter.end_section()
        return formatter.format_help().replace("\n\n", " [OPTION ...]\n\n", 1)


NO_SUCH_OPTION = "no such option"


def advised(message: str, parser: argparse.ArgumentParser) -> ConfigurationError:
    """Return an error of argparse with the nearest option or value that exists, in place of a list of all."""
    unknown = re.match(r"unrecognized arguments: .*?(--[^\s=]+)", message)
    if unknown is not None:
        if unknown[1] in parser._option_string_actions:
            return ConfigurationError(None, unknown[1], "stands after --, where options end", "give it before --")
        remedy = did_you_mean(unknown[1], parser._option_string_actions)
        if "--set" in parser._option_string_actions and "}" not in unknown[1]:
            other = spelled(f"{{{unknown[1]} VALUE}}")
            remedy = remedy if other == f"{unknown[1]} VALUE" else f"give {other}"
        return ConfigurationError(None, unknown[1], NO_SUCH_OPTION, remedy)
    argument = re.match(r"argument ([^:]+): (.*)", message, re.DOTALL)
    if argument is None:
        return ConfigurationError(None, None, message)
    option = argument[1].split("/")[-1]
    wrong = re.match(r"invalid choice: '(.*)' \(choose from (.*)\)", argument[2])
    if wrong is not None:
        return unknown_value(option, wrong[1], re.findall(r"[^',\s]+", wrong[2]))
    return ConfigurationError(option, None, argument[2])


class TimeIsUp(KeyboardInterrupt):
    """SIGUSR1, which Slurm sends before a time limit."""


def _time_is_up(*_: Any) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise TimeIsUp


def _raise_again(dropped: Any) -> None:
    """Raise again an interruption that Python has dropped; replaces `sys.unraisablehook`.

    Python drops exceptions in destructors and in callbacks of weak references, where signals often arrive after a long
    call of compiled code.
    """
    if not issubclass(dropped.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    interruption = dropped.exc_type

    def interrupt(*_: Any) -> NoReturn:
        raise interruption

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.01)


def requeue() -> None:
    """Requeue this Slurm job if the variable REQUEUE is neither empty nor 0; of an array only this task."""
    job = os.environ.get("SLURM_JOB_ID")
    if os.environ.get("REQUEUE", "0") not in ("", "0") and job:
        if array := os.environ.get("SLURM_ARRAY_JOB_ID"):  # one of its tasks has the number of the whole array
            job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        sys.stdout.flush()
        subprocess.run(["scontrol", "requeue", job])


def run_command(name: str, run: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run a console command; return its exit status.

    Errors name options as on a command line, unless `run` has set another spelling with `spell_as`.

    0, or 2 after a one-line error that the user can mend, 130 after Ctrl-C, 138 after SIGUSR1, or 141, without a
    message, after the reader of the output has ended (`| head`).
    """
    before = spell_as(on_command_line)
    try:
        return _run_command(name, run, sys.argv[1:] if argv is None else list(argv))
    finally:
        spell_as(before)


def _run_command(name: str, run: Callable[[Sequence[str]], None], arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(version())
        return 0
    # force: modules of fairseq configure logging at import, with a lower level.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s", force=True)
    if is_tool():
        watch_output()
        signal.signal(signal.SIGUSR1, _time_is_up)
        sys.unraisablehook = _raise_again
    try:
        run(arguments)
        sys.stdout.flush()
    except TimeIsUp:
        if PARENT not in os.environ:  # else the process that started this one does both
            say(f"{name}: stopped by SIGUSR1; what is finished is kept")
            requeue()
        return 128 + signal.SIGUSR1
    except KeyboardInterrupt:
        say_interrupted(f"{name}: ")
        return 130
    except Exception as error:
        if is_output_failure(error):
            say_output_failure(error, f"{name}: ")
            abandon_output()
            return READER_IS_GONE if isinstance(error, BrokenPipeError) else 2
        explained = explain(error) or wrong_option(error, {})
        if explained is None:
            raise
        say(f"{name}: error: {explained}")
        return 2
    return 0

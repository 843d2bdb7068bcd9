"""What the console commands of `reports` share: one-line errors, and silence of the libraries."""

import logging
import sys
from collections.abc import Callable, Sequence

from fairseq_plugins.errors import explain
from fairseq_plugins.help_texts import version
from fairseq_plugins.output import (
    abandon_output,
    is_output_failure,
    is_tool,
    say,
    say_output_failure,
    watch_output,
)


def run_command(name: str, run: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run a console command; return its exit status.

    Args:
        name: of the command, for errors.
        run: the command, called with its arguments.
        argv: arguments (default: the process's own).

    Returns:
        0, or 2 after a one-line error for what the user can mend, or 130 after Ctrl-C, or 1, without a word, where
        nobody reads the output any more (`| head`).
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["--version"]:
        print(version())
        return 0
    # By force: modules of fairseq have set up their own, more talkative, at import.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s", force=True)
    if is_tool():
        watch_output()
    try:
        run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        say(f"{name}: interrupted")
        return 130
    except Exception as error:
        if is_output_failure(error):
            say_output_failure(error, f"{name}: ")
            abandon_output()
            return 1 if isinstance(error, BrokenPipeError) else 2
        message = explain(error, error.__traceback__)
        if message is None:
            raise
        say(f"{name}: error: {message}")
        return 2
    return 0

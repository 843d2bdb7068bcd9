"""What the console commands of `reports` share: one-line errors, and silence of the libraries."""

import logging
import sys
from collections.abc import Callable, Sequence

from fairseq_plugins.errors import explain


def run_command(name: str, run: Callable[[Sequence[str]], None], argv: Sequence[str] | None = None) -> int:
    """Run a console command; return its exit status.

    Args:
        name: of the command, for errors.
        run: the command, called with its arguments.
        argv: arguments (default: the process's own).

    Returns:
        0, or 2 after a one-line error for what the user can mend, or 130 after Ctrl-C.
    """
    # By force: modules of fairseq have set up their own, more talkative, at import.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s", force=True)
    try:
        run(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        message = explain(error, error.__traceback__)
        if message is None:
            raise
        print(f"{name}: error: {message}", file=sys.stderr)
        return 2
    return 0

"""Read invalid UTF-8 of fairseq-interactive's input as U+FFFD, with one line on standard error, and continue."""

import fileinput
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from fairseq_plugins.output import say

_KEPT = "surrogateescape"
# The characters of that handler for bytes that are not UTF-8.
_INVALID = re.compile("[\udc80-\udcff]+")


def read_invalid_text() -> None:
    """Let fairseq-interactive read on at bytes that are not UTF-8, and keep them recognisable for `mend_lines`.

    Lines end in a newline: a carriage return by itself ends none, so numbers of lines stay those of other programs.

    It opens --input with `fileinput.hook_encoded`, for which it names no error handler, and there is no other hook:
    the line cannot be read otherwise, nor what comes after it.
    """
    if os.path.basename(sys.argv[0]) not in ("fairseq-interactive", "interactive.py"):
        return
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors=_KEPT, newline="\n")
    fileinput.hook_encoded = _open_kept


def _open_kept(encoding: str, errors: str | None = None) -> Callable[..., IO[Any]]:
    """Stand in for `fileinput.hook_encoded`."""
    return lambda file, mode: open(file, encoding=encoding, errors=_KEPT, newline="\n")


def mend_lines(lines: Sequence[str], before: int) -> list[str]:
    """Return the lines with U+FFFD for bytes that are not UTF-8; name each such line on standard error.

    `before` is the number of lines read before them.
    """
    mended = []
    for number, line in enumerate(lines, before + 1):
        mended.append(_INVALID.sub("\ufffd", line))
        if mended[-1] != line:
            say(f"input, line {number}: is not UTF-8; what is wrong was read as U+FFFD")
    return mended

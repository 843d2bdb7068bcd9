"""Input of fairseq-interactive that is not UTF-8: read as U+FFFD, said in one line, and the rest goes on."""

import fileinput
import functools
import os
import re
import sys
from collections.abc import Sequence

from fairseq_plugins.output import say

_KEPT = "surrogateescape"
# What that handler makes of bytes that are not UTF-8.
_INVALID = re.compile("[\udc80-\udcff]+")


def read_invalid_text() -> None:
    """Let fairseq-interactive read on at bytes that are not UTF-8, and keep them recognisable for `mend_lines`.

    It opens --input with `fileinput.hook_encoded`, for which it names no error handler, and there is no other hook:
    the line cannot be read otherwise, nor what comes after it.
    """
    if os.path.basename(sys.argv[0]) not in ("fairseq-interactive", "interactive.py"):
        return
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors=_KEPT)
    if not isinstance(fileinput.hook_encoded, functools.partial):
        fileinput.hook_encoded = functools.partial(fileinput.hook_encoded, errors=_KEPT)


def mend_lines(lines: Sequence[str], before: int) -> list[str]:
    """The lines with U+FFFD for bytes that are not UTF-8; each such line is named on standard error.

    Args:
        lines: as they were read.
        before: how many lines were read before them.
    """
    mended = []
    for number, line in enumerate(lines, before + 1):
        mended.append(_INVALID.sub("\ufffd", line))
        if mended[-1] != line:
            say(f"input, line {number}: is not UTF-8; what is wrong was read as U+FFFD")
    return mended

"""Replace invalid UTF-8 in fairseq-interactive's input by U+FFFD and report it, instead of ending the run."""

import fileinput
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.process.output import say

ENCODING = "utf-8-sig"
"""Encoding of users' texts: some programs of Windows begin them with a byte order mark, which is no word."""

_HANDLER = "surrogateescape"
# Characters that this error handler makes of invalid bytes.
_INVALID = re.compile("[\udc80-\udcff]+")


def read_invalid_text() -> None:
    """Let fairseq-interactive escape invalid bytes in its input, so that `InvalidLines` finds them.

    A byte order mark at its beginning is skipped. Only a newline ends a line, not a carriage return alone, so that line
    numbers are those of other programs.

    fairseq-interactive opens --input with `fileinput.hook_encoded("utf-8")` without an error handler: an invalid byte
    would end the run. This function is the only one that can be replaced to add the handler.
    """
    if os.path.basename(sys.argv[0]) not in ("fairseq-interactive", "interactive.py"):
        return
    if hasattr(sys.stdin, "reconfigure"):
        encoding = ENCODING if sys.stdin.encoding.lower() == "utf-8" else sys.stdin.encoding
        sys.stdin.reconfigure(encoding=encoding, errors=_HANDLER, newline="\n")
    fileinput.hook_encoded = _hook_escaped


def _hook_escaped(encoding: str, errors: str | None = None) -> Callable[..., IO[Any]]:
    """Replace `fileinput.hook_encoded`."""
    return lambda file, mode: open(file, encoding=ENCODING, errors=_HANDLER, newline="\n")


def refuse_utf16(beginning: str) -> None:
    """Raise ConfigurationError for text in UTF-16, whose mark was read as two escaped bytes: all of it would be mended.

    Files without a mark are not noticed.
    """
    if beginning.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        raise ConfigurationError("input", None, "is UTF-16", "convert it with iconv -f UTF-16 -t UTF-8")


def mend(line: str) -> str:
    """Return a line with U+FFFD in place of escaped bytes."""
    return _INVALID.sub("\ufffd", line)


class InvalidLines:
    """Lines of one input that are not UTF-8, of which a binary file has thousands."""

    _SHOWN = 5

    def __init__(self) -> None:
        self._count = 0

    def mend(self, lines: Sequence[str], before: int) -> list[str]:
        """Return lines with U+FFFD in place of escaped bytes, and report the first such lines on standard error.

        `before` is the number of the file's earlier lines. Raises ConfigurationError for UTF-16.
        """
        if lines and not before:
            refuse_utf16(lines[0])
        mended = []
        for number, line in enumerate(lines, before + 1):
            mended.append(mend(line))
            if mended[-1] != line:
                self._count += 1
                if self._count <= self._SHOWN:
                    say(f"input, line {number}: is not UTF-8; what is wrong was read as U+FFFD")
        return mended

    def report(self) -> None:
        """Report, at the end, the number of lines if there were more than those reported."""
        if self._count > self._SHOWN:
            say(f"input: {self._count} lines are not UTF-8, of which the first {self._SHOWN} are named above")

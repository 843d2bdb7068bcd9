"""A text file that gets its name only when the run succeeds."""

import os
import sys
from typing import IO

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.process.ending import fail
from fairseq_plugins.process.output import say
from fairseq_plugins.shared.files import destination, standard_stream, unwritable


def was_interrupted() -> bool:
    """Return whether the interpreter is exiting because of an exception, Ctrl-C included."""
    return getattr(sys, "last_type", None) is not None


class PartialFile:
    """Write text under a name that ends in `.partial`; `close` renames the file unless the run was interrupted.

    Devices, FIFOs and /dev/stdout are written directly. Raises ConfigurationError when the file cannot be opened; the
    `option` that named it is for errors. A write error during the run does not stop it: the error is printed in one
    line, and the exit status is non-zero.
    """

    def __init__(self, path: str, option: str) -> None:
        self._given = path
        self._option = option
        self._target = destination(path, option)
        self._has_failed = False
        self._before = self._version()
        # Reuses the open standard output: a second file object would mix up the lines.
        stream = standard_stream(path) if self._target.is_direct else None
        self._is_ours = stream is None
        self._partial = self._target.path
        try:
            # Line buffering: a killed run keeps its lines, and a full disk is noticed early.
            if self._target.is_direct:
                self._file: IO[str] = stream or open(self._target.path, "a", buffering=1, encoding="utf-8")
            else:
                self._file, self._partial = self._target.open_partial("x", buffering=1, encoding="utf-8")
        except OSError as error:
            raise unwritable(path, option, error) from error

    def write(self, text: str) -> None:
        """Append whole lines of text."""
        if not self._has_failed:
            try:
                self._file.write(text)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file and rename it if the run succeeded; later calls do nothing."""
        if self._file.closed or not self._is_ours:
            return
        try:
            self._file.close()
            if self._target.is_direct:
                return
            if was_interrupted():
                say(f"{self._option} {self._given}: not finished; the lines so far are in {self._partial}")
            elif self._version() != self._before:
                problem = f"was written by another process meanwhile; the lines of this one are in {self._partial}"
                fail(str(ConfigurationError(self._option, self._given, problem, "give each process a file of its own")))
            elif not self._has_failed:
                os.replace(self._partial, self._target.path)
        except OSError as error:
            self._give_up(error)

    def _version(self) -> tuple[int, int] | None:
        """Return what tells a file of the final name from one that replaces it; None if there is none."""
        try:
            found = os.stat(self._target.path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _give_up(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            message: ConfigurationError | str = unwritable(self._given, self._option, error)
            fail(str(message) if self._target.is_direct else f"{message}; the lines so far are in {self._partial}")

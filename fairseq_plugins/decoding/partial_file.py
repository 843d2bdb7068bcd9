"""A text file that gets its name only when the run has ended well."""

import os
import sys

from fairseq_plugins.commands.files import destination, standard_stream, unwritable
from fairseq_plugins.ending import fail
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.output import say


def broke_off() -> bool:
    """Whether the interpreter is ending because of an exception, Ctrl-C included."""
    return getattr(sys, "last_type", None) is not None


class PartialFile:
    """Write text under a name that ends in `.partial`; `close` gives the file its own name unless the run broke off.

    Devices, FIFOs and /dev/stdout are written to as they are. What cannot be written while the run goes on does not
    stop it: it is said in one line, and the exit status tells of it.

    Args:
        path: the name it gets in the end.
        option: the option that named it, for errors.

    Raises:
        ConfigurationError: when the file cannot be written, as far as that is known before.
    """

    def __init__(self, path: str, option: str) -> None:
        self._given = path
        self._option = option
        self._target = destination(path, option)
        self._has_failed = False
        # Standard output itself, not the same file opened again: so lines stay whole and in order.
        stream = standard_stream(path) if self._target.is_direct else None
        self._is_ours = stream is None
        name, mode = (self._target.path, "a") if self._target.is_direct else (self._target.partial, "w")
        try:
            # Every line at once: a killed run leaves what it had, and a full disk is noticed early.
            self._file = stream or open(name, mode, buffering=1, encoding="utf-8")
        except OSError as error:
            raise unwritable(path, option, error) from error

    def write(self, text: str) -> None:
        """Append text, of whole lines."""
        if not self._has_failed:
            try:
                self._file.write(text)
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Close the file, once, and rename it if all went well."""
        if self._file.closed or not self._is_ours:
            return
        try:
            self._file.close()
            if not (self._target.is_direct or self._has_failed or broke_off()):
                os.replace(self._target.partial, self._target.path)
            elif broke_off() and not self._target.is_direct:
                say(f"{self._option} {self._given}: not finished; what there is is in {self._target.partial}")
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not self._has_failed:
            self._has_failed = True
            message: ConfigurationError | str = unwritable(self._given, self._option, error)
            fail(str(message) if self._target.is_direct else f"{message}; what there is is in {self._target.partial}")

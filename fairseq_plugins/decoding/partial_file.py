"""A text file that gets its name only when the run has ended well."""

import os
import sys
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError


def broke_off() -> bool:
    """Whether the interpreter is ending because of an exception, Ctrl-C included."""
    return getattr(sys, "last_type", None) is not None


class PartialFile:
    """Write text under a name that ends in `.partial`; `close` gives the file its own name unless the run broke off.

    Args:
        path: the name it gets in the end.
        option: the option that named it, for errors.

    Raises:
        ConfigurationError: when the file cannot be written.
    """

    def __init__(self, path: str, option: str) -> None:
        self._path = Path(path)
        try:
            self._file = open(f"{path}.partial", "w", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"{option} {path}: cannot be written ({error.strerror}); give a path in a writable folder"
            ) from error

    def write(self, text: str) -> None:
        """Append text."""
        self._file.write(text)

    def close(self) -> None:
        """Close the file, once, and rename it if all went well."""
        if self._file.closed:
            return
        self._file.close()
        if not broke_off():
            os.replace(f"{self._path}.partial", self._path)

"""Read JSON as values of declared types, checked by msgspec."""

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from fairseq_plugins.errors import ConfigurationError

T = TypeVar("T")


def parse_json(content: bytes | str, kind: type[T] | Any = Any) -> T:
    """Return the value of a JSON text.

    Args:
        content: the text; bytes are UTF-8.
        kind: its type, such as a TypedDict, whose other keys are kept out; any type by default.

    Raises:
        ValueError: in one line, for text that is no JSON (NaN and lone surrogates included), that is nested too
            deeply, or that has values of other types.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(file: Path, kind: type[T] | Any = Any, remedy: str = "copy it again") -> T:
    """Return the value of a JSON file, as `parse_json`; errors end with the remedy.

    Raises:
        ConfigurationError: for a file that cannot be read or has other values.
    """
    try:
        return parse_json(file.read_bytes(), kind)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read ({error.strerror}); {remedy}") from error
    except ValueError as error:
        raise ConfigurationError(f"{file}: cannot be read as JSON ({error}); {remedy}") from error


def checked(values: Any, kind: type[T] | Any) -> T:
    """Return values with the types of `kind`, which is as for `parse_json`.

    Raises:
        ValueError: in one line, for values of other types.
    """
    return msgspec.convert(values, kind)

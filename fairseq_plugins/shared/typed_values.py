"""Check the types and ranges of JSON and of arguments, by declared types (msgspec)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import read_file

T = TypeVar("T")


def parse_json(content: bytes | str, kind: type[T] | Any = Any) -> T:
    """Return the value of a JSON text; bytes are UTF-8.

    `kind` is its type, such as a TypedDict, whose other keys are kept out; any type by default. Raises ValueError, in
    one line, for text that is no JSON (NaN and lone surrogates included), that is nested too deeply, or that has values
    of other types.
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(file: Path, kind: type[T] | Any = Any, remedy: str = "copy it again") -> T:
    """Return the value of a JSON file, as `parse_json`; raise ConfigurationError with this remedy for other content."""
    content = read_file(file, remedy)
    try:
        return parse_json(content, kind)
    except ValueError as error:
        raise ConfigurationError(None, file, f"cannot be read as JSON ({error})", remedy) from error


def checked(values: Any, kind: type[T] | Any) -> T:
    """Return values with the types of `kind`, as for `parse_json`; raise WrongValue for values of other types.

    numpy's and torch's numbers are numbers.
    """
    if isinstance(values, Mapping):
        values = {name: _plain(value) for name, value in values.items()}
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise WrongValue(str(error), kind) from error


class WrongValue(ValueError):
    """A value of another type than declared.

    `name` is its name in a mapping, and `remedy` what to give, as "give a whole number of at least 1".
    """

    def __init__(self, reason: str, kind: Any) -> None:
        super().__init__(reason)
        expected, _, place = reason.partition(" - at `$.")
        self.name = place.rstrip("`").partition("[")[0]
        if expected.startswith("Invalid enum value"):
            expected = " or ".join(map(str, get_args(get_type_hints(kind)[self.name])))
        for found, said in _WORDS:
            expected = re.sub(found, said, expected)
        self.remedy = f"give {expected}"


# msgspec's messages, such as "Expected `int | null` >= 1, got `str`", in our words.
_WORDS = (
    (r"^Expected ", ""),
    (r", got `(\w+\.)*(\w+)`", r", not \2"),
    (r"\bobject\b", "a dict"),
    (r"\barray\b", "a list"),
    (r"(?<!not )\bint\b", "a whole number"),
    (r"(?<!not )\bfloat\b", "a number"),
    (r"(?<!not )\bstr\b", "text"),
    (r"(?<!not )\bbool\b", "True or False"),
    (r"\bnull\b", "None"),
    (r" \| ", " or "),
    ("`", ""),
    (">= (\\S+?)(\\.0)?(?=,|$)", r"of at least \1"),
    ("<= (\\S+?)(\\.0)?(?=,|$)", r"of at most \1"),
    ("> (\\S+?)(\\.0)?(?=,|$)", r"above \1"),
)


def _plain(value: Any) -> Any:
    """Return the number of a numpy scalar or a tensor without dimensions, else the value."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value

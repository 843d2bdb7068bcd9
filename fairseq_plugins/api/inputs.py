"""Check the texts and subwords of a call, in one line that names the argument."""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

from fairseq_plugins.data.sentences import has_line_breaks
from fairseq_plugins.errors import ConfigurationError, flag

OnError = Literal["raise", "skip"]
Split = Literal["sentences"]

T = TypeVar("T")
Result = TypeVar("Result")


def texts_of(text: Any, argument: str = "text") -> list[str]:
    """Return the strings of an argument: a string itself, or those of an iterable; raise TypeError for others."""
    if isinstance(text, str):
        return [text]
    if isinstance(text, (bytes, bytearray)) or not isinstance(text, Iterable):
        raise TypeError(f"{argument}: is {type(text).__name__}; give a string, or a list of strings")
    texts = list(text)
    for number, one in enumerate(texts):
        check_string(one, f"{argument}[{number}]")
    return texts


def whole_texts_of(text: Any, argument: str) -> list[str]:
    """Return the strings of an argument, as `texts_of`; raise ConfigurationError for one with half of a character."""
    texts = texts_of(text, argument)
    for number, one in enumerate(texts):
        check_characters(one, argument if isinstance(text, str) else f"{argument}[{number}]")
    return texts


def check_string(text: Any, argument: str) -> None:
    """Raise TypeError for an argument that is no string."""
    if not isinstance(text, str):
        raise TypeError(f"{argument}: is {type(text).__name__}; give a string")


def check_tokens(tokens: Any) -> None:
    """Raise TypeError for anything but sequences of subwords."""
    _check_sequence(tokens, "tokens")
    for number, words in enumerate(tokens):
        check_words(words, f"tokens[{number}]")


def check_words(words: Any, argument: str) -> None:
    """Raise TypeError for anything but a sequence of strings."""
    _check_sequence(words, argument)
    for number, word in enumerate(words):
        check_string(word, f"{argument}[{number}]")


def _check_sequence(tokens: Any, argument: str) -> None:
    if isinstance(tokens, (str, bytes)) or not isinstance(tokens, Sequence):
        raise TypeError(f"{argument}: is {type(tokens).__name__}; give lists of subwords, or use translate for text")


def check_characters(text: str, argument: str) -> None:
    """Raise ConfigurationError for a lone surrogate, which is half of a character and cannot be written."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            problem = f"has {text[error.start]!a} at {error.start}, which is half of a character"
            raise ConfigurationError(argument, None, problem, 'decode its bytes with errors="replace"') from error


def check_choice(value: Any, argument: str, *choices: Any) -> None:
    """Raise ConfigurationError for a value that is not among the choices."""
    if value not in choices:
        known = " or ".join(f'"{choice}"' if isinstance(choice, str) else repr(choice) for choice in choices)
        raise ConfigurationError(flag(argument), value, remedy=f"give {known}")


def warn_of_lines(text: str, argument: str) -> None:
    """Warn of a text with several lines, which a model reads as one sentence; the warning names the caller's line."""
    if not has_line_breaks(text):
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("fairseq_plugins."):
        level, frame = level + 1, frame.f_back
    message = "its lines are read as one sentence, and models lose content of several; give"
    warnings.warn(f'{argument}: {message} split="sentences"', stacklevel=level)


def attempted(items: Iterable[T], read: Callable[[T, int], Result], on_error: OnError) -> list[Result | None]:
    """Return `read(item, number)` of each item; with "skip" None in place of a ConfigurationError."""
    results: list[Result | None] = []
    for number, item in enumerate(items):
        try:
            results.append(read(item, number))
        except ConfigurationError as error:
            if on_error == "raise":
                remedy = ", or ".join(filter(None, (error.remedy, 'leave it out with on_error="skip"')))
                raise ConfigurationError(error.option, error.value, error.problem, remedy) from None
            results.append(None)
    return results


def in_place(readings: Sequence[object], results: Iterable[T]) -> list[T | None]:
    """Return the results of what `attempted` has read, in their places; None for what is left out."""
    left = iter(results)
    return [None if reading is None else next(left) for reading in readings]

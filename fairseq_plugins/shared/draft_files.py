"""Read files of drafts: text, or jsonl that spec-dec-translate wrote."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.invalid_text import ENCODING
from fairseq_plugins.shared.typed_values import parse_json

Cut = Callable[[str], list[str]]
# Lines whose tokens tell whether a file is in the target's language.
_SAMPLE = 256


def read_drafts(path: str, sentences: int | None = None, of: str = "") -> list[str | list[str]]:
    """Return the text of every line; of jsonl its tokens.

    Raises ConfigurationError for a missing or unreadable file, or if it has not as many lines as `of` has `sentences`.
    """
    if Path(path).is_dir():
        raise ConfigurationError("--drafts", path, "is a folder", "give files, and other arguments before the option")
    try:
        lines = Path(path).read_bytes().decode(ENCODING).removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise ConfigurationError("--drafts", path, "no such file", "give a draft a line") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError("--drafts", path, f"is not text in UTF-8 ({error.reason})", "convert it") from error
    if sentences is not None and len(lines) != sentences:
        problem = f"has {len(lines)} lines, and {of} has {sentences}"
        raise ConfigurationError("--drafts", path, problem, "give a draft a line, an empty line for none")
    if not path.endswith(".jsonl"):
        return [*lines]
    return [_tokens(path, number, line) for number, line in enumerate(lines, 1)]


class _Line(TypedDict, total=False):
    tokens: list[str]
    error: str


def _tokens(path: str, number: int, line: str) -> list[str]:
    """Return the tokens of a line of jsonl; none if the sentence was too long."""
    try:
        values: _Line = parse_json(line, _Line)
    except ValueError:
        values = {}
    if not {"tokens", "error"} & values.keys():
        remedy = "give text, or the jsonl of spec-dec-translate --output-format jsonl"
        raise ConfigurationError("--drafts", path, f"line {number} has no tokens", remedy)
    return values.get("tokens", [])


class DraftFiles:
    """Files of drafts, each with a line for each sentence; arguments and errors are those of `read_drafts`."""

    def __init__(self, paths: Sequence[str], sentences: int | None = None, of: str = "") -> None:
        self._files = {path: read_drafts(path, sentences, of) for path in paths}

    def tokens(self, number: int, cut: Cut) -> list[list[str]]:
        """Return the drafts of a sentence, cut into subwords; raise ConfigurationError for a file without its line."""
        for path, lines in self._files.items():
            if number >= len(lines):
                problem = f"has {len(lines)} lines, and there is a sentence {number + 1}"
                raise ConfigurationError("--drafts", path, problem, "give a draft a line, an empty line for none")
        return [_subwords(lines[number], cut) for lines in self._files.values()]

    def check(self, cut: Cut, knows: Callable[[str], bool]) -> None:
        """Raise ConfigurationError if at least half of the tokens are unknown: another language, or other subwords.

        `knows` tells whether the target's dictionary has a token.
        """
        for path, lines in self._files.items():
            tokens = [token for line in lines[:_SAMPLE] for token in _subwords(line, cut)]
            missing = sum(not knows(token) for token in tokens)
            # sentencepiece splits an unknown word of another script into two tokens, the first of them known.
            if missing > 0 and 2 * missing >= len(tokens):
                problem = f"{missing} of {len(tokens)} tokens are not in the target's dictionary"
                remedy = "give text in the target's language, cut as the target is"
                raise ConfigurationError("--drafts", path, problem, remedy)


def _subwords(line: str | list[str], cut: Cut) -> list[str]:
    return cut(line) if isinstance(line, str) else line

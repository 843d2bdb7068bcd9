"""The drafts of a file of text, in files beside it."""

from collections.abc import Sequence

from fairseq_plugins.api import Model
from fairseq_plugins.commands.draft_files import check_known, read_drafts

# Lines whose tokens tell whether a file is in the target's language.
_SAMPLE = 256


def count_lines(path: str) -> int:
    """Return the number of lines of a file, the last one counted without its end as well."""
    with open(path, "rb") as file:
        return sum(1 for _ in file)


class DraftLines:
    """The drafts of every line of a file.

    Args:
        paths: of `--drafts`.
        source: the file that is translated.

    Raises:
        ConfigurationError: for files that do not fit it.
    """

    def __init__(self, paths: Sequence[str], source: str) -> None:
        sentences = count_lines(source)
        self._files = {path: read_drafts(path, sentences, f"--input {source}") for path in paths}

    def tokens(self, number: int, model: Model) -> list[list[str]]:
        """Return the drafts of a line, counted from 0, each as subwords of the target."""
        return [_cut(lines[number], model) for lines in self._files.values()]

    def check(self, model: Model) -> None:
        """Refuse a file in another language.

        Raises:
            ConfigurationError: naming it.
        """
        for path, lines in self._files.items():
            check_known(path, (_cut(line, model) for line in lines[:_SAMPLE]), model.knows)


def _cut(line: str | list[str], model: Model) -> list[str]:
    return model.tokenize(line) if isinstance(line, str) else line

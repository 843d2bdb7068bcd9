"""The drafts of lines of text: in files beside it, or in a memory of earlier outputs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_plugins.api import Memory, Model
from fairseq_plugins.api.memory import FILE as MEMORY_FILE
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.draft_files import DraftFiles


def count_lines(path: str) -> int:
    """Return the number of lines of a file, the last one counted without its end as well."""
    with open(path, "rb") as file:
        return sum(1 for _ in file)


def draft_sources(args: argparse.Namespace) -> "DraftSources | None":
    """Return the sources of drafts of `--drafts` and `--memory`, None without both.

    Raises ConfigurationError for contradicting options, and files that do not fit.
    """
    if args.memory is None and args.memory_add:
        raise ConfigurationError("--memory-add", None, "adds to a memory", "give {--memory FOLDER}")
    if args.drafts is None and args.memory is None:
        return None
    if args.decoder not in (None, "reuse"):
        option = "--memory" if args.drafts is None else "--drafts"
        problem = f"is for {{--decoder reuse}}, not {args.decoder}"
        raise ConfigurationError(option, None, problem, "leave one of them out")
    if args.memory is not None and not args.memory_add and not Path(args.memory, MEMORY_FILE).is_file():
        remedy = "name the folder of a memory, or begin one with {--memory-add}"
        raise ConfigurationError("--memory", args.memory, f"has no {MEMORY_FILE}", remedy)
    if args.drafts is not None and args.input is None:
        raise ConfigurationError("--drafts", None, "have a line for each line of a file", "give {--input}")
    return DraftSources(args.drafts or [], args.input, args.memory, args.memory_add)


class DraftSources:
    """The drafts of every line: from files beside it, and from a memory of similar lines.

    `paths` are those of `--drafts`, `source` is the translated file, and `memory` the folder of `--memory`. Raises
    ConfigurationError for files that do not fit.
    """

    def __init__(self, paths: Sequence[str], source: str | None, memory: str | None, adds: bool) -> None:
        sentences = count_lines(source) if source is not None and paths else 0
        self._files = DraftFiles(paths, sentences, f"--input {source}")
        self._memory = None if memory is None else Memory(memory)
        self._adds = adds

    def tokens(self, lines: Sequence[tuple[int, str]], model: Model) -> list[list[list[str]]]:
        """Return the drafts of lines, or of the sentences in them; each draft as subwords of the target.

        A line is its number from 0 and its text.
        """
        drafts_of_lines = [self._files.tokens(number, model.tokenize_target) for number, _ in lines]
        remembered = [] if self._memory is None else self._memory.drafts([text for _, text in lines])
        for drafts_of_line, more in zip(drafts_of_lines, remembered, strict=False):
            drafts_of_line += map(model.tokenize_target, more)
        return drafts_of_lines

    def remember(self, lines: Sequence[str], outputs: Sequence[str]) -> None:
        """Add outputs to the memory with `--memory-add`; raises ConfigurationError if it cannot be written."""
        if self._memory is not None and self._adds:
            self._memory.add(lines, outputs)

    def check(self, model: Model) -> None:
        """Raise ConfigurationError for a file in another language."""
        self._files.check(model.tokenize_target, model.knows)

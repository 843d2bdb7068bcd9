"""Numbers of the sentences of fairseq-generate and fairseq-interactive, and their `--drafts`."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.draft_files import DraftFiles


class LineNumbers:
    """Numbers the lines of fairseq-interactive, whose batches have no numbers."""

    def __init__(self) -> None:
        self._lines = 0
        self._numbers: deque[list[int]] = deque()  # sentences of batches that are to come

    def number(self, dataset: Any) -> None:
        """Number the lines of a block."""
        first, collater = self._lines, dataset.collater
        self._lines += len(dataset)

        def numbered(samples: Any) -> Any:
            batch = collater(samples)
            self._numbers.append([first + number for number in batch["id"].tolist()])
            return batch

        dataset.collater = numbered

    def add_to(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a batch with the numbers of its sentences, `id`.

        Batches come in the order of collation. A program's own batches, of no dataset, are numbered in their order.
        """
        if "id" in sample:
            return sample
        if self._numbers:
            numbers = self._numbers.popleft()
        else:
            numbers = [self._lines + row for row in range(len(sample["net_input"]["src_tokens"]))]
            self._lines += len(numbers)
        return {**sample, "id": torch.tensor(numbers)}


class TaskDrafts:
    """The drafts of the sentences of a task's subset, or of the numbered lines of fairseq-interactive.

    Files `paths`, separated by colons, are read with the first batch, since fairseq makes --tokenizer and --bpe after
    the generator.
    """

    def __init__(self, paths: str | None, task: Any, is_one_run: bool) -> None:
        if paths is None:
            raise ConfigurationError("--decoder", "reuse", "has no drafts", "add {--drafts FILE}, a line a sentence")
        if not is_one_run and not task.datasets:
            raise ConfigurationError("--drafts", paths, "is for fairseq's commands", "give translate(drafts=...)")
        self._paths, self._task = paths.split(":"), task
        # fairseq-generate adds words of outputs to the dictionary, with --remove-bpe.
        self._indices = dict(task.target_dictionary.indices)
        self._files: DraftFiles | None = None

    def __call__(self, sample: Mapping[str, Any]) -> list[list[list[int]]]:
        """Return the token ids of each sentence's drafts; raise ConfigurationError for a file that does not fit."""
        if self._files is None:
            sentences, of = None, ""
            for subset, dataset in self._task.datasets.items():  # none in fairseq-interactive
                sentences, of = len(dataset), f"--gen-subset {subset}"
            self._files = DraftFiles(self._paths, sentences, of)
            self._files.check(self._cut, self._indices.__contains__)
        drafts = [self._files.tokens(number, self._cut) for number in sample["id"].tolist()]
        unknown = self._task.target_dictionary.unk()
        return [[[self._indices.get(token, unknown) for token in draft] for draft in of_line] for of_line in drafts]

    def _cut(self, line: str) -> list[str]:
        for tool in getattr(self._task, "text_tools", ()):
            line = line if tool is None else tool.encode(line)
        return line.split()

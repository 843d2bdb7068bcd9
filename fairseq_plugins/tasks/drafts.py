"""Drafts of `--drafts` for the sentences of a subset."""

from typing import Any

from fairseq_plugins.commands.draft_files import check_known, read_drafts
from fairseq_plugins.errors import ConfigurationError


def drafts_of_subset(paths: str, task: Any) -> list[list[list[int]]]:
    """Return of every sentence of the subset that is loaded its drafts, as token ids.

    Args:
        paths: of `--drafts`, with colons between them.
        task: with dictionaries and the subset.

    Raises:
        ConfigurationError: where there is no subset, or a file does not fit it.
    """
    if len(task.datasets) != 1:
        raise ConfigurationError(
            f"--drafts {paths}: is for fairseq-generate; give spec-dec-translate --drafts, or "
            "model.translate(drafts=...)"
        )
    ((subset, dataset),) = task.datasets.items()
    dictionary, columns = task.target_dictionary, []
    for path in paths.split(":"):
        lines = read_drafts(path, len(dataset), f"--gen-subset {subset}")
        drafts = [line.split() if isinstance(line, str) else line for line in lines]
        check_known(path, drafts, dictionary.__contains__)
        columns.append([[dictionary.index(token) for token in draft] for draft in drafts])
    return [list(of_sentence) for of_sentence in zip(*columns, strict=True)]

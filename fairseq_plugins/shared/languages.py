"""Source and target language of a folder, from the names of its files."""

import re
from itertools import permutations
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError


def find_languages(folder: Path, given: tuple[str | None, str | None] = (None, None)) -> tuple[str, str]:
    """Return source and target language of a folder of dictionaries.

    In this order: as `given`; as in the folder's name (`mytext.en-de`) or in those of its binarised files
    (`test.en-de.en.bin`); `src` and `tgt`. Raises ConfigurationError if dictionaries are missing or no files, or if no
    name tells source from target.
    """
    dictionaries = sorted(folder.glob("dict.*.txt"))
    for file in dictionaries:
        if not file.is_file():  # reading a pipe would wait forever
            raise ConfigurationError(None, file, "is not a file", "copy it again, or remove it")
    known = [file.name.split(".")[1] for file in dictionaries]
    if not known:
        remedy = "give a folder with dict.LANGUAGE.txt of both languages"
        raise ConfigurationError(None, folder, "has no dictionaries", remedy)
    source, target = given
    if source is not None or target is not None:
        for language in (source, target):
            if language is not None and language not in known:
                remedy = f"it has those of {', '.join(known)}"
                if {"src", "tgt"} <= set(known):
                    remedy += "; leave out {--source-lang} and {--target-lang}"
                raise ConfigurationError(None, folder, f"has no dict.{language}.txt", remedy)
        others = [language for language in known if language not in given]
        if source is not None and target is not None:
            return source, target
        if len(others) == 1:
            return (source or others[0]), (target or others[0])
    names = [folder.resolve().name, *(file.name.split(".")[1] for file in folder.glob("*.*-*.*.bin"))]
    for name in names:
        for pair in permutations(known, 2):  # not split at "-", which languages have, too: en-pt-BR
            if re.search(rf"(?:^|\.){re.escape('-'.join(pair))}$", name):
                return pair
    if {"src", "tgt"} <= set(known):
        return "src", "tgt"
    problem = f"does not say which of {', '.join(known)} is the source"
    remedy = "give {--source-lang} and {--target-lang}, or name it NAME.SOURCE-TARGET"
    raise ConfigurationError(None, folder, problem, remedy)


def split_pair(pair: str, folder: Path) -> tuple[str, str] | None:
    """Return the two languages of `en-de` or `en:de`; None if they cannot be told apart.

    With several hyphens, as in `pt-BR-en`, they are the two that have dictionaries in `folder`.
    """
    separator = ":" if ":" in pair else "-"
    parts = pair.split(separator)
    joined = ((separator.join(parts[:cut]), separator.join(parts[cut:])) for cut in range(1, len(parts)))
    pairs = [both for both in joined if all(both)]
    if len(pairs) > 1:
        pairs = [both for both in pairs if all((folder / f"dict.{language}.txt").exists() for language in both)]
    return pairs[0] if len(pairs) == 1 else None

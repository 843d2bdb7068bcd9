"""Which files make a model: verifier, drafter, dictionaries and subwords, found in a folder or named one by one."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_plugins.conversion.settings import LoadSettings
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import CHECKPOINTS, cache_folder, first_of, is_hugging_face, missing_folder
from fairseq_plugins.shared.languages import find_languages

GPT2_FILES = ("encoder.json", "vocab.bpe")
"""Vocabulary and merges of GPT-2's byte-level subwords, as fairseq names them."""
# Number of the converter's output, raised when that changes.
_CONVERTER = 7


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        verifier: checkpoint; several for an ensemble, with colons between them.
        drafter: checkpoint, None where there is none.
        data: folder of the dictionaries, `dict.LANGUAGE.txt`.
        source_lang, target_lang: the languages, as the dictionaries have them; empty where none are given to a task
            that finds its dictionaries by itself.
        subwords: of sentencepiece (`*.model`), GPT-2's bytes (a folder of encoder.json and vocab.bpe), subword-nmt or
            fastBPE (other names); None for text that is cut already.
        target_subwords: model of sentencepiece for target text; None if `subwords` cut it, too.
        languages: names of source and target for users: of a multilingual model those that were given.
        options: of `load`, which the folder asks for.
    """

    verifier: str
    drafter: str | None
    data: str
    source_lang: str
    target_lang: str
    subwords: str | None
    target_subwords: str | None
    languages: tuple[str, str]
    options: dict[str, Any]


def find_files(
    folder: str | Path | None,
    verifier: str | Path | None,
    drafter: str | Path | None,
    data: str | Path | None,
    languages: tuple[str | None, str | None],
    subwords: str | Path | None,
    heads: bool = False,
    finds_dictionaries: bool = True,
) -> ModelFiles:
    """Find the files of a model.

    Args:
        folder: of a recipe, of a released model, or in Hugging Face's format, which is converted.
        verifier, drafter, data, subwords: take precedence over the files of `folder`; None for those.
        languages: source and target, None to find them by the names of files.
        heads: use the verifier with heads for blockwise decoding (`blockwise.pt`).
        finds_dictionaries: whether languages are found by the names `dict.LANGUAGE.txt`; some tasks of fairseq have
            their own convention.

    Raises:
        ConfigurationError: for a missing file or argument.
    """
    home = None if folder is None else _home(Path(folder), converts=verifier is None)
    if verifier is None:
        verifier = _verifier_in(home, heads)
    if drafter is None and home is not None:
        drafter = first_of(home, "drafter.pt")
    if data is None:
        data = home
    if data is None:
        raise ConfigurationError("--data", None, "is missing", "give the folder of the dictionaries, dict.LANGUAGE.txt")
    where = Path(data)
    (source, target), named, options = _languages(where, languages, finds_dictionaries)
    found = find_subwords(where, subwords)
    of_target = None if subwords is not None else first_of(where, "subwords.target.model")
    return ModelFiles(
        verifier=str(verifier),
        drafter=None if drafter is None else str(drafter),
        data=str(data),
        source_lang=source,
        target_lang=target,
        # Read at the first sentence, when the program may be in another directory.
        subwords=None if found is None else os.path.abspath(found),
        target_subwords=None if of_target is None else os.path.abspath(of_target),
        languages=named,
        options=options,
    )


def _home(folder: Path, converts: bool) -> Path:
    """Return the folder of a model, or with `converts` that of the conversion of one in Hugging Face's format."""
    if folder.is_file():
        remedy = f"give its folder {folder.parent}, or {{--path {folder}}} with the {{--data}} of its dictionaries"
        raise ConfigurationError("folder", folder, "is a file", remedy)
    if not folder.is_dir():
        raise missing_folder("folder", folder, "one with verifier.pt and dictionaries")
    return _converted(folder) if converts and is_hugging_face(folder) else folder


def _verifier_in(home: Path | None, heads: bool) -> Path:
    if home is None:
        raise ConfigurationError(None, None, "no model is named", "give a folder, or {--path} and {--data}")
    names = ["blockwise.pt"] if heads else CHECKPOINTS
    verifier = first_of(home, *names)
    if verifier is None:
        raise ConfigurationError(None, home / names[0], "no such file", "give {--path}, or a folder that has it")
    return verifier


def _languages(
    where: Path, given: tuple[str | None, str | None], finds_dictionaries: bool
) -> tuple[tuple[str, str], tuple[str, str], dict[str, Any]]:
    """Return the languages of the dictionaries, their names for users, and the options that the folder asks for."""
    settings = LoadSettings.read(where)
    options = dict(settings.options)
    saved = options.pop("source_lang", None), options.pop("target_lang", None)
    # A converted Marian model has dictionaries of src and tgt: its languages are names, by whose rules text is split.
    are_names = not any(given) and all(saved) and Path(where, "dict.src.txt").is_file()
    source, target = given if any(given) else saved
    if not finds_dictionaries:
        pair = source or "", target or ""
        return pair, pair, options
    if settings.languages:
        options |= settings.first_tokens(source, target)
        return find_languages(where), (str(source), str(target)), options
    pair = find_languages(where, (None, None) if are_names else (source, target))
    return pair, (str(source), str(target)) if are_names else pair, options


def find_subwords(folder: Path, given: str | Path | None = None) -> Path | None:
    """Return the file of subwords, or the folder of GPT-2's; None if none is `given` and `folder` has none.

    Raises ConfigurationError for a missing file.
    """
    if given is None:
        found = first_of(folder, "subwords.model", "bpe.codes", "vocab.bpe")
    else:
        found = Path(given)
    if found is None:
        return None
    # Without encoder.json, vocab.bpe could be codes of subword-nmt.
    if found.is_dir() or found.name in GPT2_FILES:
        pair = found if found.is_dir() else found.parent
        for name in GPT2_FILES:
            if not (pair / name).is_file():
                remedy = f"GPT-2's subwords are {' and '.join(GPT2_FILES)} in a folder"
                raise ConfigurationError("--subwords", found, f"{pair} has no {name}", remedy)
        return pair
    if not found.is_file():
        raise ConfigurationError("--subwords", found, "no such file", "give a sentencepiece model, or codes")
    return found


def _converted(folder: Path) -> Path:
    """Return the folder of the converted model, cached in $XDG_CACHE_HOME/fairseq-spec-dec (default: ~/.cache)."""
    # A changed file has another size or time, so its model is converted again.
    files = [(file.name, file.stat()) for file in sorted(folder.iterdir()) if file.exists()]
    stamp = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    key = hashlib.sha256(repr((_CONVERTER, folder.resolve(), stamp)).encode()).hexdigest()[:16]
    target = cache_folder() / f"{folder.resolve().name}.{key}"
    from fairseq_plugins.conversion.convert import convert  # which most programs need not import

    try:
        if not target.is_dir():
            convert(folder, target)
    except ConfigurationError:
        if not target.is_dir():  # else another process has converted it meanwhile
            raise
    return target

"""Merge shards into training data: check, filter, and binarise with the same dictionaries."""

import contextlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq import options
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq_cli import preprocess

from fairseq_plugins.checkpoint.session import load_subset
from fairseq_plugins.distillation.decode import source_files
from fairseq_plugins.distillation.shards import TOO_LONG, TeacherSentence, read_sentences, shards_of
from fairseq_plugins.errors import ConfigurationError, unknown_value
from fairseq_plugins.process.output import counted
from fairseq_plugins.shared.files import new_folder, sha256, write_atomically
from fairseq_plugins.shared.shards import check_origin, read_origin

PREFIXES = {"train": "--trainpref", "valid": "--validpref", "test": "--testpref"}
"""fairseq-preprocess's option for each subset."""


@dataclass
class MergeCounts:
    """Numbers of sentences of a subset."""

    sentences: int  # decoded
    kept: int = 0  # written
    empty: int = 0  # left out: source or translation has no token
    too_long: int = 0  # left out: the teacher has no positions for the source
    ratio: int = 0  # left out: lengths differ by more than --max-length-ratio
    raw: int = 0  # pairs of the original data added by --keep-raw

    def __str__(self) -> str:
        parts = [f"{self.kept} of {self.sentences} kept", f"{self.empty} empty", f"{self.too_long} too long"]
        parts.append(f"{self.ratio} of unlike lengths")
        return ", ".join(parts) + (f"; {self.raw} raw pairs added" if self.raw else "")


def check_subset(subset: str) -> None:
    """Raise ConfigurationError for a subset that fairseq-preprocess has no option for."""
    if subset not in PREFIXES:
        raise unknown_value("--gen-subset", subset, PREFIXES)


def open_task(data: str, source: str | None, target: str | None) -> TranslationTask:
    """Return fairseq's translation task on a folder; raises ConfigurationError without binarised data."""
    try:
        cfg = TranslationConfig(data=data, source_lang=source, target_lang=target)
        # Their defaults are references into fairseq's whole configuration.
        cfg.dataset_impl, cfg.required_seq_len_multiple = None, 1
        return TranslationTask.setup_task(cfg)
    except Exception as error:  # fairseq has no one class for missing files
        problem = f"no binarised data ({error})"
        raise ConfigurationError(None, data, problem, "give a folder that fairseq-preprocess wrote") from error


def read_all(folder: Path, subset: str, data: str, count: int) -> tuple[dict[str, Any], list[TeacherSentence]]:
    """Return the origin of a subset's translations, and the translations in order.

    Raises ConfigurationError for missing or corrupt shards, and shards of another origin or number of sentences.
    """
    shards = shards_of(folder, subset)
    number = shards.count()
    if number is None:
        problem = f"has no shards of {subset}"
        raise ConfigurationError("--shards", folder, problem, "run `spec-dec-distill decode` first")
    files = [shards.path(shard, number) for shard in range(number)]
    for file in files:
        if not file.is_file():
            raise ConfigurationError(None, file, "not finished", "run the same `spec-dec-distill decode` again")
    made_from = read_origin(files[0])
    for file in files:
        check_origin(file, made_from)
    if made_from["data"] != data:
        problem = "made from other data or dictionaries"
        raise ConfigurationError("--shards", folder, problem, "give the folder that was decoded")
    sentences = sorted(chain.from_iterable(map(read_sentences, files)), key=lambda sentence: sentence.number)
    if [sentence.number for sentence in sentences] != list(range(count)):
        problem = f"has not one translation for each of the {counted(count, 'sentence')} of the data"
        raise ConfigurationError(None, folder, problem, "remove the shards and decode the same data again")
    return made_from, sentences


def filter_pairs(
    sources: Iterable[str], sentences: Iterable[TeacherSentence], max_ratio: float | None
) -> tuple[list[tuple[str, str]], MergeCounts]:
    """Return the pairs to train on, and counts of those left out.

    The longer side may have `max_ratio` times the tokens of the shorter; None for no limit.
    """
    pairs, counts = [], MergeCounts(0)
    for source, sentence in zip(sources, sentences, strict=True):
        counts.sentences += 1
        lengths = len(source.split()), len(sentence.text.split())
        if sentence.score == TOO_LONG:
            counts.too_long += 1
        elif min(lengths) == 0:
            counts.empty += 1
        elif max_ratio is not None and max(lengths) > max_ratio * min(lengths):
            counts.ratio += 1
        else:
            counts.kept += 1
            pairs.append((source, sentence.text))
    return pairs, counts


def _text(dataset: Any, dictionary: Dictionary) -> Iterable[str]:
    # Unknown words come back as <unk>, which binarises to the same id.
    return (dictionary.string(dataset[number]) for number in range(len(dataset)))


def merge(
    data: str,
    folder: Path,
    subsets: list[str],
    destination: Path,
    languages: tuple[str | None, str | None] = (None, None),
    max_ratio: float | None = None,
    keep_raw: bool = False,
    workers: int = 1,
) -> dict[str, MergeCounts]:
    """Merge the shards of subsets into binarised data, written atomically; return counts by subset.

    Args:
        data: binarised data that was decoded.
        folder: folder of the shards.
        subsets: of "train", "valid", "test".
        destination: new folder.
        languages: source and target (default: the data's only pair).
        max_ratio: see `filter_pairs`; for "train" only.
        keep_raw: add the original pairs of "train" after the distilled ones.
        workers: processes that binarise.

    Raises ConfigurationError for shards that are missing or do not fit the data, and a folder that cannot be written.
    """
    if destination.exists():
        raise ConfigurationError("--destdir", destination, "is there already", "remove it or give another folder")
    for subset in subsets:
        check_subset(subset)
    task = open_task(data, *languages)
    source, target = task.cfg.source_lang, task.cfg.target_lang
    counts, origins = {}, {}
    with new_folder(destination, "--destdir") as partial:
        text = partial.with_name(partial.name + ".text")
        text.mkdir()
        for subset in subsets:
            dataset, is_training = load_subset(task, subset), subset == "train"
            files = source_files(data, subset, source, target)
            origins[subset], sentences = read_all(folder, subset, sha256(files), len(dataset))
            pairs, counts[subset] = filter_pairs(
                _text(dataset.src, task.source_dictionary), sentences, max_ratio if is_training else None
            )
            if not pairs:
                raise ConfigurationError(None, folder, f"no sentence of {subset} is left ({counts[subset]})")
            if keep_raw and is_training:
                pairs += _raw_pairs(task, dataset)
                counts[subset].raw = len(dataset)
            for language, side in ((source, 0), (target, 1)):
                with open(text / f"{subset}.{language}", "w", encoding="utf-8", newline="\n") as file:
                    file.writelines(pair[side] + "\n" for pair in pairs)
        _binarise(data, text, partial, source, target, subsets, workers)
        record: dict[str, Any] = {"counts": {name: asdict(value) for name, value in counts.items()}}
        record["made_from"] = origins
        record |= {"max_ratio": max_ratio, "keep_raw": keep_raw}
        write_atomically(partial / "distilled.json", json.dumps(record, indent=2) + "\n", "--destdir")
    return counts


def _raw_pairs(task: Any, dataset: Any) -> Iterable[tuple[str, str]]:
    """Return the pairs of the training data; raise ConfigurationError if it has no target side."""
    if dataset.tgt is None:
        raise ConfigurationError("--keep-raw", None, f"{task.cfg.data} has no target side of train")
    raw = _text(dataset.src, task.source_dictionary), _text(dataset.tgt, task.target_dictionary)
    return zip(*raw, strict=True)


def _binarise(
    data: str, text: Path, destination: Path, source: str, target: str, subsets: list[str], workers: int
) -> None:
    """Run fairseq-preprocess with the dictionaries of `data`."""
    arguments = ["--source-lang", source, "--target-lang", target, "--destdir", str(destination)]
    for option, language in (("--srcdict", source), ("--tgtdict", target)):
        arguments += [option, str(Path(data) / f"dict.{language}.txt")]
    for subset in subsets:
        arguments += [PREFIXES[subset], str(text / subset)]
    arguments += ["--workers", str(workers)]
    with contextlib.redirect_stdout(io.StringIO()):
        preprocess.main(options.get_preprocessing_parser().parse_args(arguments))

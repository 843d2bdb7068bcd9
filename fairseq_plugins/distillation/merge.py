"""Merge shards into training data: check, filter, and binarise with the same dictionaries."""

import argparse
import contextlib
import io
import json
import os
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
from fairseq_plugins.shared.binarised import infer_languages
from fairseq_plugins.shared.files import new_folder, sha256, write_atomically
from fairseq_plugins.shared.shards import check_origin, read_origin

PREFIXES = {"train": "--trainpref", "valid": "--validpref", "test": "--testpref"}
"""fairseq-preprocess's option for each subset."""
_RECORD = "distilled.json"


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
        if source is None or target is None:
            source, target = infer_languages(data)
        cfg = TranslationConfig(data=data, source_lang=source, target_lang=target)
        # Their defaults are references into fairseq's whole configuration.
        cfg.dataset_impl, cfg.required_seq_len_multiple = None, 1
        return TranslationTask.setup_task(cfg)
    except Exception as error:  # fairseq has no one class for missing files
        problem = f"no binarised data ({error})"
        remedy = "give a folder that fairseq-preprocess wrote, and its {--source-lang} and {--target-lang}"
        raise ConfigurationError(None, data, problem, remedy) from error


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
    for file in files[1:]:
        check_origin(file, made_from)
    if made_from.get("data") != data:
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


def merge(args: argparse.Namespace) -> dict[str, MergeCounts]:
    """Merge shards into binarised data, as the options of `spec-dec-distill merge` ask; return counts by subset.

    Raises ConfigurationError for shards that are missing or do not fit the data, and a folder that cannot be written.
    """
    destination, subsets = Path(args.destdir), args.gen_subset.split(",")
    if os.path.lexists(destination):
        raise ConfigurationError("--destdir", destination, "is there already", "remove it or give another folder")
    for subset in subsets:
        check_subset(subset)
    task = open_task(args.data, args.source_lang, args.target_lang)
    counts, origins = {}, {}
    with new_folder(destination, "--destdir") as partial:
        text = partial.with_name(partial.name + ".text")
        text.mkdir()
        for subset in subsets:
            origins[subset], counts[subset] = _write_text(args, task, subset, text)
        _binarise(args, task, text, partial)
        record = {
            "counts": {name: asdict(value) for name, value in counts.items()},
            "made_from": origins,
            "max_ratio": args.max_length_ratio,
            "keep_raw": args.keep_raw,
        }
        write_atomically(partial / _RECORD, json.dumps(record, indent=2) + "\n", "--destdir")
    return counts


def check_first_token(folder: Path, subset: str, first: str | None) -> None:
    """Raise ConfigurationError if a subset was merged from a decoding with another `--forced-first-token`.

    Folders that `merge` did not write are not checked.
    """
    record = folder / _RECORD
    made_from = json.loads(record.read_text(encoding="utf-8"))["made_from"] if record.is_file() else {}
    if subset in made_from and (decoded := made_from[subset].get("forced_first_token")) != first:
        how, remedy = f"with {decoded}", f"give {{--forced-first-token {decoded}}}"
        if decoded is None:
            how, remedy = "without it", "leave it out"
        problem = f"the translations in {folder} were decoded {how}"
        raise ConfigurationError("--forced-first-token", first or "missing", problem, remedy)


def _write_text(
    args: argparse.Namespace, task: TranslationTask, subset: str, text: Path
) -> tuple[dict[str, Any], MergeCounts]:
    """Write the pairs of a subset as subwords to a folder; return the origin of the translations, and counts."""
    dataset, is_training = load_subset(task, subset), subset == "train"
    files = source_files(args.data, subset, task.cfg.source_lang, task.cfg.target_lang)
    made_from, sentences = read_all(Path(args.shards), subset, sha256(files), len(dataset))
    sources = _text(dataset.src, task.source_dictionary)
    pairs, counts = filter_pairs(sources, sentences, args.max_length_ratio if is_training else None)
    if not pairs:
        raise ConfigurationError(None, args.shards, f"no sentence of {subset} is left ({counts})")
    first = made_from.get("forced_first_token")
    if first is not None:  # which translations leave out, and the model reads before each of them
        pairs = [(source, f"{first} {translation}") for source, translation in pairs]
    if args.keep_raw and is_training:
        if dataset.tgt is None:
            raise ConfigurationError("--keep-raw", None, f"{args.data} has no target side of train")
        raw = _text(dataset.src, task.source_dictionary), _text(dataset.tgt, task.target_dictionary)
        pairs += zip(*raw, strict=True)
        counts.raw = len(dataset)
    for language, side in zip((task.cfg.source_lang, task.cfg.target_lang), zip(*pairs, strict=True), strict=True):
        with open(text / f"{subset}.{language}", "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{line}\n" for line in side)
    return made_from, counts


def _binarise(args: argparse.Namespace, task: TranslationTask, text: Path, destination: Path) -> None:
    """Run fairseq-preprocess with the dictionaries of the data."""
    source, target = task.cfg.source_lang, task.cfg.target_lang
    arguments = ["--source-lang", source, "--srcdict", f"{args.data}/dict.{source}.txt"]
    arguments += ["--target-lang", target, "--tgtdict", f"{args.data}/dict.{target}.txt"]
    arguments += ["--destdir", str(destination), "--workers", str(args.workers)]
    for subset in args.gen_subset.split(","):
        arguments += [PREFIXES[subset], str(text / subset)]
    with contextlib.redirect_stdout(io.StringIO()):
        preprocess.main(options.get_preprocessing_parser().parse_args(arguments))

"""Decode shards of a subset with a teacher, or an ensemble of them, in large batches of similar length."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.tasks.translation import TranslationConfig
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.checkpoint.session import TaskSession, precision
from fairseq_plugins.decoding import methods
from fairseq_plugins.distillation.shards import TOO_LONG, TeacherSentence, read_sentences, shards_of
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.process.output import counted
from fairseq_plugins.shared.binarised import infer_languages
from fairseq_plugins.shared.display import progress_bar
from fairseq_plugins.shared.files import sha256
from fairseq_plugins.shared.shards import ShardWriter, check_origin
from fairseq_plugins.shared.workers import Worker, take_shards

DEFAULT_MAX_TOKENS = 12000
"""Padded source tokens of a batch without --max-tokens and --batch-size, as in fairseq-generate."""

# Options that only affect speed and printing.
_IRRELEVANT = {"print_alignment", "print_step", "iter_decode_with_external_reranker", "nbest", "no_beamable_mm"}

# Options of the task that change translations, besides those of the method. Shards record those that are given.
_TASK_OPTIONS = ["suppress_tokens", "begin_suppress_tokens", "forced_first_token"]
_TASK_OPTIONS += ["truncate_source", "max_source_positions", "max_target_positions"]


class Teacher:
    """The teacher models, on the device, and the data that they decode.

    `cfg` is fairseq's whole configuration. Raises ConfigurationError if checkpoints and data do not fit.
    """

    def __init__(self, cfg: DictConfig, device: int) -> None:
        self.cfg = cfg
        self.session = TaskSession(cfg, device)
        for path in utils.split_paths(cfg.common_eval.path):
            _check_dictionaries(path, self.session.task)
        self.generator = self.session.generator()
        self.max_source: int = self.session.max_positions[0]

    def decode(self, dataset: Any, numbers: Sequence[int]) -> list[TeacherSentence]:
        """Return translations of a batch of sentences, with fairseq's scores (natural logarithms)."""
        sample = self.session.batch(dataset, numbers)
        hypotheses = self.session.decode(self.generator, sample)
        strip = getattr(self.generator, "symbols_to_strip_from_output", {self.generator.eos})
        return [
            TeacherSentence(
                number,
                f"{float(best['score']):.4f}",
                self.session.task.target_dictionary.string(best["tokens"].cpu(), extra_symbols_to_ignore=strip),
            )
            for number, (best, *_) in zip(sample["id"].tolist(), hypotheses, strict=True)
        ]


def _check_dictionaries(path: str, task: Any) -> None:
    """Compare with the dictionaries that the teacher was trained with, if their files still exist.

    A dictionary of the same size in another order would fit the weights, but give wrong translations.
    """
    state, _ = read_checkpoint(path, "--path")
    recorded = (state.get("cfg") or {}).get("task") or {}
    folder = str(recorded.get("data") or "").split(":")[0]
    for language, dictionary in (
        (task.cfg.source_lang, task.source_dictionary),
        (task.cfg.target_lang, task.target_dictionary),
    ):
        file = Path(folder) / f"dict.{language}.txt"
        if folder and file.is_file() and Dictionary.load(str(file)).symbols != dictionary.symbols:
            problem = f"dict.{language}.txt is not the one that {path} was trained with, {file}"
            remedy = "give data binarised with that (fairseq-preprocess --srcdict, --tgtdict)"
            raise ConfigurationError(None, task.cfg.data, problem, remedy)


def source_files(data: str, subset: str, source: str, target: str) -> list[Path]:
    """Return the files of the source side of a subset, and the dictionaries."""
    for pair in (f"{source}-{target}", f"{target}-{source}"):
        files = [Path(data) / f"{subset}.{pair}.{source}.{kind}" for kind in ("idx", "bin")]
        if all(file.is_file() for file in files):
            dictionaries = [Path(data) / f"dict.{language}.txt" for language in (source, target)]
            for dictionary in dictionaries:
                if not dictionary.is_file():
                    remedy = "copy that of the model there"
                    raise ConfigurationError(None, dictionary, "no such dictionary", remedy)
            return [*files, *dictionaries]
    problem = f"no such subset of {source}-{target} in {data}"
    remedy = "name one that fairseq-preprocess wrote there, and its {--source-lang} and {--target-lang}"
    raise ConfigurationError("--gen-subset", subset, problem, remedy)


def origin(cfg: DictConfig, subset: str) -> dict[str, Any]:
    """Return all that the translations of a subset depend on."""
    task = cfg.task
    source, target = task.source_lang, task.target_lang
    if source is None or target is None:
        source, target = infer_languages(task.data)
    generation = OmegaConf.to_container(cfg.generation)
    assert isinstance(generation, dict)
    depends_on: dict[str, Any] = {
        "subset": subset,
        "data": sha256(source_files(task.data, subset, source, target)),
        "checkpoints": [sha256([Path(path)]) for path in utils.split_paths(cfg.common_eval.path)],
        "decoder": str(task.decoding_method),
        "precision": precision(cfg),
        "model_overrides": cfg.common_eval.model_overrides,
        **{str(name): value for name, value in generation.items() if name not in _IRRELEVANT},
    }
    for name in _TASK_OPTIONS:
        if (value := task.get(name)) != getattr(TranslationConfig, name, None):
            depends_on[name] = value
    if cfg.generation.prefix_size:  # of the target side
        depends_on["prefixes"] = sha256(sorted(Path(task.data).glob(f"{subset}.*.{target}.*")))
    if task.int8:
        depends_on["int8"] = True
    if cfg.generation.sampling:
        depends_on |= {"seed": cfg.common.seed, "nbest": cfg.generation.nbest}
    spec, options = methods.chosen(task)
    if not spec.is_lossless:
        depends_on["drafting"] = asdict(options)
        depends_on["drafter"] = sha256([Path(task.drafter_path)]) if task.drafter_path else None
    return depends_on


def repetitions(dataset: Any, numbers: Sequence[int], cfg: DictConfig) -> dict[int, list[int]]:
    """Return the first of the sentences with the same source, and all of them: a text may have several translations.

    Samples and prefixes of the target side differ, also for the same source.
    """
    if cfg.generation.sampling or cfg.generation.prefix_size:
        return {number: [number] for number in numbers}
    by_source: dict[bytes, list[int]] = {}
    for number in numbers:
        by_source.setdefault(dataset.src[number].numpy().tobytes(), []).append(number)
    return {same[0]: same for same in by_source.values()}


def batches(dataset: Any, numbers: Sequence[int], cfg: DictConfig) -> Iterator[list[int]]:
    """Yield batches of similar length, longest first, so that a batch that exceeds memory fails at the start.

    Raises ConfigurationError for a sentence longer than a batch may be.
    """
    max_tokens, max_sentences = cfg.dataset.max_tokens, cfg.dataset.batch_size
    if max_tokens is None and max_sentences is None:
        max_tokens = DEFAULT_MAX_TOKENS
    indices = numpy.array(sorted(numbers, key=lambda number: int(dataset.num_tokens(number))), dtype=numpy.int64)
    longest = int(dataset.num_tokens(int(indices[-1])))
    if max_tokens is not None and longest > max_tokens:
        raise ConfigurationError("--max-tokens", max_tokens, f"a sentence has {longest}", "give at least as many")
    by_length = dataset.batch_by_size(indices, max_tokens=max_tokens, max_sentences=max_sentences)
    for batch in reversed(list(by_length)):
        yield [int(number) for number in batch]


def decode_shards(cfg: DictConfig, subset: str, shard: int | None, count: int, folder: Path, worker: Worker) -> None:
    """Decode one shard, or (None) this process's share of the unfinished ones.

    Shard i of `count` holds sentences i, i + count, i + 2 * count ... Raises ConfigurationError for shards made from
    other data or options, and for batches too large for the GPU.
    """
    made_from, shards = origin(cfg, subset), shards_of(folder, subset)
    files = [shards.path(number, count) for number in range(count)]
    for number in range(count) if shard is None else [shard]:
        if files[number].is_file():
            check_origin(files[number], made_from)
            read_sentences(files[number])
            print(f"{files[number]}: finished before", flush=True)

    @cache
    def loaded() -> tuple[Teacher, Any]:
        teacher = Teacher(cfg, worker.device)
        return teacher, teacher.session.load(subset)

    def begin(number: int) -> tuple[int, ShardWriter]:
        return number, ShardWriter(files[number], made_from)

    if shard is not None:
        begun = iter(() if files[shard].is_file() else [begin(shard)])
    else:
        begun = take_shards(worker, count, lambda number: files[number].is_file(), begin)
    for number, writer in begun:
        with writer:
            teacher, dataset = loaded()
            numbers = range(number, len(dataset), count)
            _decode_shard(teacher, dataset, numbers, writer, f"{subset} {number + 1}/{count}")
            writer.finish()
        print(f"{files[number]}: {counted(len(numbers), 'sentence')}", flush=True)


def _decode_shard(teacher: Teacher, dataset: Any, numbers: Sequence[int], writer: ShardWriter, name: str) -> None:
    """Decode those of these sentences that the shard does not have."""
    done = {sentence.number for sentence in read_sentences(writer.file)}
    left = []
    for number in numbers:
        if number in done:
            continue
        if dataset.src_sizes[number] > teacher.max_source:
            writer.write(str(TeacherSentence(number, TOO_LONG, "")))
        else:
            left.append(number)
    if not left:
        return
    same = repetitions(dataset, left, teacher.cfg)
    with progress_bar(len(numbers), initial=len(numbers) - len(left), desc=name) as bar:
        for batch in batches(dataset, list(same), teacher.cfg):
            try:
                sentences = teacher.decode(dataset, batch)
            except torch.cuda.OutOfMemoryError as error:
                longest = max(dataset.src_sizes[batch])
                problem = f"out of GPU memory with {len(batch)} sentences of at most {longest} tokens"
                remedy = "lower {--max-tokens} or {--batch-size} and run the same command again: what is finished "
                remedy += "is kept"
                raise ConfigurationError(None, None, problem, remedy) from error
            lines = [str(replace(found, number=number)) for found in sentences for number in same[found.number]]
            writer.write("".join(lines))
            bar.update(len(lines))

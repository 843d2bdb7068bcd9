"""Load models, data and task of a comparison once, and decode with any contender."""

import gc
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from fairseq import utils
from omegaconf import DictConfig
from tqdm import tqdm

from fairseq_plugins.benchmarks import ctranslate
from fairseq_plugins.benchmarks.contenders import BLOCKWISE, CTRANSLATE2, DRAFTER, Contender, heads_are_lossless
from fairseq_plugins.checkpoint.loading import build_model, read_checkpoint
from fairseq_plugins.checkpoint.session import TaskSession, options_of, precision, set_options
from fairseq_plugins.decoding import methods
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.metrics.bleu import sacre_bleu
from fairseq_plugins.metrics.texts import read_lines
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer
from fairseq_plugins.process.output import say

Tokens = tuple[int, ...]  # ids of one output sentence
References = dict[int, tuple[str, ...]]  # of each sentence

_DEFAULT_BATCH_SIZE = 32


class Bench:
    """Decode sentences with any contender; models are loaded on first use.

    `blockwise_path` is a checkpoint for the blockwise rows, `conversions` a folder for models in CTranslate2's format,
    `sentences` the number of sentences to use, the first ones of the subset; None for all.
    Raises ConfigurationError for a missing or unsuitable subset.
    """

    scorer: sacrebleu.BLEU  # of raw text in the target language; `references` makes it

    def __init__(
        self,
        cfg: DictConfig,
        blockwise_path: str | None = None,
        conversions: Path | None = None,
        sentences: int | None = None,
    ) -> None:
        self.cfg = cfg
        self.sentences = sentences
        self.blockwise_path = blockwise_path
        self.conversions = conversions
        self.session = TaskSession(cfg)
        self.cuda, self.task = self.session.cuda, self.session.task
        self.subset = cfg.dataset.gen_subset
        self.dataset = self.session.load(self.subset)
        self.session.join_subwords()  # fails before decoding if text tools are missing

    @property
    def models(self) -> list[torch.nn.Module]:
        """The verifiers."""
        return self.session.models

    @cached_property
    def blockwise(self) -> BlockwiseTransformer:
        """The model of --blockwise-path."""
        path = str(self.blockwise_path)
        model = build_model(*read_checkpoint(path, BLOCKWISE), path, self.task, BLOCKWISE, BlockwiseTransformer)
        prepared = self.session.prepared(model)
        assert isinstance(prepared, BlockwiseTransformer)
        return prepared

    @property
    def batch_size(self) -> int:
        """The value of --batch-size."""
        return self.cfg.dataset.batch_size or _DEFAULT_BATCH_SIZE

    @cached_property
    def order(self) -> list[int]:
        """The first `sentences` that the models can read, sorted by length; ConfigurationError without any."""
        order = self.session.usable(self.dataset)
        if not order:
            raise ConfigurationError("--gen-subset", self.subset, "has no sentences", "choose another")
        return _first(order, self.sentences)

    def first(self, count: int) -> list[int]:
        """Return the ids of the `count` sentences that come first in the file, shortest sentence first."""
        return _first(self.order, count)

    def generator(self, contender: Contender) -> Any:
        """Return a new generator of the task for `contender`; all generation options apply."""
        if contender.decoder == CTRANSLATE2:
            return self._ctranslate2(contender)
        if self.cuda:
            # omegaconf keeps the frames that built the one before, and these its gigabytes on the GPU.
            gc.collect()
        options = {"decoding_method": contender.decoder, **contender.task_options}
        before = set_options(options_of(self.task), **options)
        try:
            models = [self.blockwise] if contender.needs == BLOCKWISE else self.models
            return self.session.generator(models, beam=contender.beam, nbest=1)
        finally:
            set_options(options_of(self.task), **before)

    def _ctranslate2(self, contender: Contender) -> ctranslate.CTranslate2Generator:
        assert contender.compute_type is not None
        generation = self.session.generation(beam=contender.beam, nbest=1)
        source, target = self.task.source_dictionary, self.task.target_dictionary
        return ctranslate.CTranslate2Generator(
            self.converted(), source, target, generation, contender.compute_type, self.cuda
        )

    def converted(self) -> Path:
        """Return the folder of the verifier converted for CTranslate2."""
        assert self.conversions is not None
        return ctranslate.convert(self.cfg.common_eval.path, options_of(self.task), self.conversions)

    def cannot_run(self, contender: Contender) -> str | None:
        """Return why a contender cannot run, or None if it can."""
        if contender.int8 and contender.decoder != CTRANSLATE2 and (self.cuda or precision(self.cfg) != "fp32"):
            return "--int8 is for the CPU, in fp32"
        if contender.needs == DRAFTER and self.cfg.task.drafter_path is None:
            return f"without {DRAFTER}"
        if contender.needs == BLOCKWISE and self.blockwise_path is None:
            return f"without {BLOCKWISE}"
        if contender.decoder == CTRANSLATE2:
            verifiers = len(utils.split_paths(self.cfg.common_eval.path))
            # CTranslate2 reports a missing library, model type or precision only when it decodes.
            return ctranslate.requirements(self.cfg.generation, verifiers) or self._fails(contender, self.order[:1])
        spec = methods.find(contender.decoder)
        if spec.copies_source(spec.options()) and self.task.source_dictionary != self.task.target_dictionary:
            return "dictionaries of source and target differ"
        if spec.runs_verifier:
            return None
        if self.cfg.generation.prefix_size > 0:
            return f"--prefix-size {self.cfg.generation.prefix_size}"
        # A drafter that reads the verifier's states cannot decode alone.
        return self._fails(contender)

    def _fails(self, contender: Contender, numbers: Sequence[int] = ()) -> str | None:
        """Build the generator and decode sentences; return the error, or None."""
        try:
            self.decode(self.generator(contender), numbers, 1)
        except (RuntimeError, ValueError) as error:
            return str(error).split(";")[0]
        return None

    def runnable(self, contenders: Sequence[Contender]) -> list[Contender]:
        """Return the contenders that can run, and print why others cannot."""
        reasons: dict[str, list[str]] = {}
        chosen = []
        for contender in contenders:
            reason = self.cannot_run(contender)
            if reason is not None:
                reasons.setdefault(reason, []).append(contender.name)
            elif contender.needs == BLOCKWISE:
                chosen.append(replace(contender, lossless=heads_are_lossless(self.blockwise, self.models)))
            else:
                chosen.append(contender)
        for reason, names in reasons.items():
            say(f"{reason}: left out {', '.join(names)}")
        return chosen

    def decode(
        self, generator: Any, numbers: Sequence[int], batch_size: int, bar: tqdm | None = None
    ) -> tuple[dict[int, Tokens], float]:
        """Decode sentences `numbers`; return their token ids, and the seconds spent in `generate`."""
        outputs, seconds = self.decode_timed(generator, numbers, batch_size, bar)
        return outputs, sum(seconds)

    def decode_timed(
        self, generator: Any, numbers: Sequence[int], batch_size: int, bar: tqdm | None = None
    ) -> tuple[dict[int, Tokens], list[float]]:
        """Decode as `decode` does; return the seconds of every batch."""
        outputs: dict[int, Tokens] = {}
        seconds = []
        for sample in self.session.batches(self.dataset, numbers, batch_size):
            self._synchronise()
            start = time.perf_counter()
            hypotheses = self.session.decode(generator, sample)
            self._synchronise()
            seconds.append(time.perf_counter() - start)
            for number, sentence in zip(sample["id"].tolist(), hypotheses, strict=True):
                outputs[number] = tuple(sentence[0]["tokens"].tolist())
            if bar is not None:
                bar.update(len(hypotheses))
        return outputs, seconds

    def _synchronise(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def references(self, files: Sequence[str] | None) -> References | None:
        """Return the references of each sentence: from raw text files, else from the target side, if any.

        Raises ConfigurationError as `read_references`, and for a target language whose tokenizer is missing.
        """
        if files is not None:
            by_file = (read_references(file, len(self.dataset)) for file in files)
            found = dict(enumerate(zip(*by_file, strict=True)))
        else:
            targets = {number: self.dataset[number].get("target") for number in self.order}
            if any(target is None for target in targets.values()):
                return None
            found = {number: (self.session.text(target.tolist()),) for number, target in targets.items()}
        self.scorer = sacre_bleu(getattr(options_of(self.task), "target_lang", None) or "", option="--target-lang")
        return found


def _first(numbers: Sequence[int], count: int | None) -> list[int]:
    chosen = set(sorted(numbers)[:count])
    return [number for number in numbers if number in chosen]


def read_references(file: str, sentences: int) -> list[str]:
    """Return the lines of a raw text file, which must have `sentences` lines."""
    lines = read_lines(file, "--reference")
    if len(lines) != sentences:
        problem = f"{len(lines)} lines, but the decoded subset has {sentences}"
        raise ConfigurationError("--reference", file, problem, "give the file that was binarised")
    return lines

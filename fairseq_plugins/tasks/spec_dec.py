"""The task `spec_dec`: trains drafters and translates (or rewrites) with them."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask
from torch import Tensor

from fairseq_plugins.checkpoint.session import subset_errors
from fairseq_plugins.distillation.merge import check_first_token
from fairseq_plugins.errors import ConfigurationError, flag
from fairseq_plugins.process.ending import close_with, fail
from fairseq_plugins.shared.binarised import infer_languages
from fairseq_plugins.shared.invalid_text import InvalidLines, read_invalid_text
from fairseq_plugins.tasks.drafter_training import TrainsDrafters
from fairseq_plugins.tasks.options import SpecDecConfig


class CheckedTranslation(TranslationTask):
    """fairseq's translation task with one-line errors; it leaves out no sentence."""

    _lines_read = 0

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Set the task up; raise ConfigurationError for a data folder that fairseq-preprocess did not write."""
        read_invalid_text()
        data = utils.split_paths(cfg.data)[0]
        if not os.path.isdir(data):
            raise ConfigurationError(None, data, "no such folder", "give one that fairseq-preprocess wrote")
        if cfg.source_lang is None or cfg.target_lang is None:
            cfg.source_lang, cfg.target_lang = infer_languages(data)
        try:
            return super().setup_task(cfg, **kwargs)
        except FileNotFoundError as error:
            problem = f"has no {os.path.basename(error.filename or str(error))}"
            remedy = "give a folder that fairseq-preprocess wrote, and its {--source-lang} and {--target-lang}"
            raise ConfigurationError(None, data, problem, remedy) from error
        except Exception as error:
            if "Could not infer language pair" not in str(error):
                raise
            problem = "holds no training or test data by which to tell the languages"
            remedy = "give a folder that fairseq-preprocess wrote, or {--source-lang} and {--target-lang}"
            raise ConfigurationError(None, data, problem, remedy) from error

    def build_dataset_for_inference(self, src_tokens: Sequence[Tensor], src_lengths: Any, **more: Any) -> Any:
        """Make a dataset of raw text, each source with `--source-first-token` before it."""
        first = self._first_token("source_first_token", self.source_dictionary)
        if first is not None:
            src_tokens = [torch.cat([tokens.new_tensor([first]), tokens]) for tokens in src_tokens]
            src_lengths = [len(tokens) for tokens in src_tokens]
        return super().build_dataset_for_inference(src_tokens, src_lengths, **more)

    def build_generator(self, *args: Any, **named: Any) -> Any:
        """Build fairseq's generator, which leaves `--forced-first-token` out of the text."""
        first = self._first_token("forced_first_token", self.target_dictionary)
        if first is not None:
            named["extra_gen_cls_kwargs"] = {
                **(named.get("extra_gen_cls_kwargs") or {}),
                "symbols_to_strip_from_output": {first},
            }
        return super().build_generator(*args, **named)

    def inference_step(
        self, generator: Any, models: Any, sample: dict[str, Any], prefix_tokens: Tensor | None = None, **more: Any
    ) -> Any:
        """Decode a batch; every output begins with `--forced-first-token`, which excludes other prefixes."""
        first = self._first_token("forced_first_token", self.target_dictionary)
        if first is not None:
            if prefix_tokens is not None:
                problem = "contradicts {--prefix-size}, whose targets begin with it"
                remedy = "leave one of them out"
                raise ConfigurationError("--forced-first-token", self.cfg.forced_first_token, problem, remedy)
            prefix_tokens = sample["net_input"]["src_tokens"].new_full(
                (sample["net_input"]["src_lengths"].numel(), 1), first
            )
        return super().inference_step(generator, models, sample, prefix_tokens=prefix_tokens, **more)

    def _first_token(self, name: str, dictionary: Any) -> int | None:
        """Return the id of the token that an option names; raise ConfigurationError if the dictionary lacks it."""
        token = getattr(self.cfg, name)
        if token is not None and token not in dictionary:
            problem = "is not in the dictionary"
            raise ConfigurationError(flag(name), token, problem, "give a token of dict.LANGUAGE.txt")
        return None if token is None else dictionary.index(token)

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> None:
        """Load a subset; raise ConfigurationError when it is missing, empty or misaligned."""
        option = "--train-subset" if split == self.cfg.train_subset else "--valid-subset"
        with subset_errors(split, self.cfg.data, option if "epoch" in kwargs else "--gen-subset"):
            super().load_dataset(split, *args, **kwargs)

    def get_interactive_tokens_and_lengths(self, lines: list[str], encode_fn: Any) -> tuple[list[Any], list[Any]]:
        """Return tokens of the lines of `fairseq-interactive`, with U+FFFD for bytes that are not UTF-8."""
        mended = self._invalid_lines.mend(lines, self._lines_read)
        self._lines_read += len(lines)
        return super().get_interactive_tokens_and_lengths(mended, encode_fn)

    @cached_property
    def _invalid_lines(self) -> InvalidLines:
        lines = InvalidLines()
        close_with(self, lines.report)
        return lines

    def get_batch_iterator(
        self,
        dataset: Any,
        *args: Any,
        required_batch_size_multiple: int = 1,
        seed: int = 1,
        epoch: int = 1,
        **kwargs: Any,
    ) -> Any:
        """Return batches of any size; those made once for all epochs are those of the first one.

        fairseq 0.12 makes them at its start, in an order that depends on the epoch: a training that resumed in its
        second epoch then had other batches than one that was not stopped. With `--update-epoch-batch-itr`, and for data
        in several folders, each epoch has its own.

        fairseq 0.12 drops a last batch whose size is not a multiple of `--required-batch-size-multiple`, 8 by default.
        Lines of `fairseq-interactive` that are too long are named and left out, and the exit status is 1; in fairseq
        the first one ends the run, without `--skip-invalid-size-inputs-valid-test`.
        """
        if self._lines_read and not kwargs.get("ignore_invalid_inputs"):
            limits, before = kwargs["max_positions"], self._lines_read - len(dataset)
            for index in dataset.filter_indices_by_size(dataset.ordered_indices(), limits)[1]:
                fail(f"line {before + index + 1}: has {dataset.src_sizes[index]} tokens, and the model reads at most "
                     f"{limits[0]}; it has no translation; split it")  # fmt: skip
            kwargs["ignore_invalid_inputs"] = True
        made_once = not kwargs.get("update_epoch_batch_itr") and not self.has_sharded_data("train")
        first = seed + 1 - epoch if made_once else seed
        batches = super().get_batch_iterator(
            dataset, *args, required_batch_size_multiple=1, seed=first, epoch=epoch, **kwargs
        )
        batches.seed = seed
        return batches


@register_task("spec_dec", dataclass=SpecDecConfig)
class SpecDecTask(TrainsDrafters, CheckedTranslation):
    """Translation task that trains drafters and decodes with them; see `SpecDecConfig` for its options."""

    cfg: SpecDecConfig

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> None:
        """Load a subset.

        Raises ConfigurationError where a drafter's validation would decode into another language, or without targets.
        """
        trains = "epoch" in kwargs and self._loss is not None
        if trains and split != self.cfg.train_subset:
            check_first_token(Path(utils.split_paths(self.cfg.data)[0]), split, self.cfg.forced_first_token)
        super().load_dataset(split, *args, **kwargs)
        if trains and self.datasets[split].tgt is None:
            problem = f"has no target side of {split}"
            raise ConfigurationError(None, self.cfg.data, problem, "give the folder of `spec-dec-distill merge`")

"""Train drafters: blocks of masks, glancing, and accepted tokens in validation."""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.dataclass.utils import merge_with_parent
from fairseq.file_io import PathManager
from fairseq.logging import metrics
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask
from omegaconf import DictConfig
from torch import distributed, nn

from fairseq_plugins.checkpoint.loading import build_model, check_task, read_checkpoint, unwrap
from fairseq_plugins.checkpoint.session import options_of
from fairseq_plugins.checkpoint.settings import model_name
from fairseq_plugins.criterions.logged_sums import counted_positions
from fairseq_plugins.data.block_masking import sample_blocks
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.backends import choose_backend
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import MethodContext
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.recording.stats import DecodingStats
from fairseq_plugins.decoding.reference.arithmetic import without_cudnn_attention
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.trained_drafter import drafter_in, store_survival
from fairseq_plugins.errors import ConfigurationError, flag, unknown_value
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer
from fairseq_plugins.shared.parsing import arguments_of_fairseqs_tool
from fairseq_plugins.shared.workers import check_trains_together, find_worker
from fairseq_plugins.tasks.decoding import native_weights
from fairseq_plugins.tasks.own_generator import generator_like
from fairseq_plugins.tasks.with_drafts import DecodesWithDrafts

_DEFAULT_BLOCK_SIZE = 25
_LAST = "checkpoint_last.pt"  # fairseq's default of --restore-file, in --save-dir if it is there
_LOSSES: dict[type[nn.Module], str] = {BlockNat: "glat_loss", BlockwiseTransformer: "blockwise_loss"}
# What they log in validation, by whether more is better.
_METRICS = {
    False: r"((nll|verifier_nll)_)?loss|ppl",
    True: r"tokens_per_iteration|bleu|accuracy(_(at_)?\d+)?",
}


class TrainsDrafters(DecodesWithDrafts):
    """Mixin of tasks whose options have those of `DrafterTrainingOptions` and `DecodingOptions`."""

    _seeded = -1, 0, 0  # an update, fairseq's seed of it, and how many batches it had in this process
    _loss: str | None = None  # of the model that was built last
    _verifier: FairseqEncoderDecoderModel | None = None
    _validation: DraftVerifyGenerator | None = None
    _has_survival = False  # whether the drafter has the counts of this validation

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Check the options and the task, then set the task up."""
        if issubclass(cls, MultilingualTranslationTask):
            problem = "trains a model for each pair of languages, and a drafter is one"
            remedy = "decode with {--decoder greedy}, fast-beam, jacobi or iad, which need no drafter"
            raise ConfigurationError("--task", "multilingual_translation", problem, remedy)
        if issubclass(cls, TranslationMultiSimpleEpochTask) and None in (cfg.source_lang, cfg.target_lang):
            remedy = "add its {--source-lang} and {--target-lang}, and train a drafter for each pair"
            raise ConfigurationError("--lang-pairs", None, "validation decodes one pair of languages", remedy)
        for name in ("glancing_start", "glancing_end"):
            value = getattr(cfg, name)
            if not 0 <= value <= 1:
                raise ConfigurationError(flag(name), value, "a share of the predictions", "give a number from 0 to 1")
        if cfg.blocks_per_sentence < 1:
            raise ConfigurationError("--blocks-per-sentence", cfg.blocks_per_sentence, remedy="give at least 1")
        return super().setup_task(cfg, **kwargs)

    @property
    def _options(self) -> Any:
        return options_of(self)

    def training_verifier(self) -> FairseqEncoderDecoderModel | None:
        """Return the model of `--verifier-path`, loaded once; None without the option."""
        if self._verifier is None and self._options.verifier_path is not None:
            state, cfg = read_checkpoint(self._options.verifier_path, "--verifier-path")
            check_task(cfg, self, "--verifier-path")
            if _is_drafter(cfg):
                remedy = "give an autoregressive model"
                raise ConfigurationError("--verifier-path", self._options.verifier_path, "is a drafter", remedy)
            verifier = build_model(state, cfg, self._options.verifier_path, self, "--verifier-path")
            self._verifier = verifier.requires_grad_(False)
        return self._verifier

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        self.loading_checkpoint = from_checkpoint
        if from_checkpoint and _is_drafter(cfg) and _needs_verifier(cfg) and self._options.verifier_path is None:
            problem = "is a drafter (block_nat), which reads the states of its verifier"
            remedy = "give the verifier as {--path} and the drafter as {--drafter-path}, with {--decoder gad} (in "
            remedy += "fairseq-validate: add --verifier-path)"
            raise ConfigurationError("--path", None, problem, remedy)
        if self._options.block_size is None and not from_checkpoint and _is_drafter(cfg):
            self._options.block_size = _DEFAULT_BLOCK_SIZE
        if _is_drafter(cfg) and self.source_dictionary is None:
            remedy = "decode with {--decoder greedy}, fast-beam or jacobi"
            raise ConfigurationError("--arch", "block_nat", "drafts where the source is tokens", remedy)
        if _is_drafter(cfg) and getattr(self._options, "left_pad_target", False):
            raise ConfigurationError("--left-pad-target", None, "is not for {--arch block_nat}", "leave it out")
        if from_checkpoint:
            check_task(cfg, self, "--path")
        else:
            if isinstance(cfg, DictConfig) and ARCH_MODEL_REGISTRY.get(model_name(cfg)) in _LOSSES:
                problem = "fairseq-hydra-train sets none of its options"
                raise ConfigurationError("--arch", model_name(cfg), problem, "train it with fairseq-train")
            check_trains_together(find_worker())
            self._check_tool(cfg)
        model = super().build_model(cfg, from_checkpoint)
        self._loss = next((loss for kind, loss in _LOSSES.items() if isinstance(model, kind)), None)
        if isinstance(model, BlockNat):
            attention, count = model.decoder.drafter_attention, self._options.blocks_per_sentence
            if attention == "full" and count > 1:
                problem = "with {--drafter-attention full} a pass has one prefix"
                remedy = "use 1 block or {--drafter-attention prefix-causal}"
                raise ConfigurationError("--blocks-per-sentence", count, problem, remedy)
            if not from_checkpoint:
                self.glancing_ratio(0)  # refuses options before the data is read
        return model

    def build_criterion(self, cfg: Any, *args: Any, **kwargs: Any) -> Any:
        """Build the loss; raise ConfigurationError for that of another model. Users' own losses are for any."""
        name = getattr(cfg, "_name", None) or getattr(cfg, "criterion", None)
        of = getattr(CRITERION_REGISTRY.get(name), "__module__", "")
        is_own = not of.startswith(("fairseq.", "fairseq_plugins."))
        if not is_own and self._loss != name and (self._loss is not None or name in _LOSSES.values()):
            remedy = "choose another" if self._loss is None else f"add {{--criterion {self._loss}}}"
            raise ConfigurationError("--criterion", name, "does not train this {--arch}", remedy)
        if isinstance(cfg, DictConfig) and name in _LOSSES.values():
            # fairseq-validate has the settings of a checkpoint: those of an earlier version may be gone.
            cfg = merge_with_parent(CRITERION_DATACLASS_REGISTRY[name](), cfg, remove_missing=True)
        return super().build_criterion(cfg, *args, **kwargs)

    def _check_tool(self, cfg: Any) -> None:
        """Raise ConfigurationError for options of fairseq-train with which this training would fail later."""
        given = arguments_of_fairseqs_tool()
        metric = None if given.get("disable_validation") else given.get("best_checkpoint_metric")
        restored = given.get("restore_file", _LAST)
        # fairseq would begin anew, which is right for the first run of a job that names its own checkpoint.
        is_own = Path(restored).parent.resolve() == Path(given.get("save_dir", "checkpoints")).resolve()
        if restored != _LAST and not is_own and not PathManager.exists(restored):
            raise ConfigurationError("--restore-file", restored, "no such file", "give a checkpoint, or leave it out")
        if _is_drafter(cfg) and given.get("store_ema"):  # which cannot average integers
            remedy = "leave it out, and average its checkpoints with `spec-dec-average`"
            raise ConfigurationError("--store-ema", None, "is not for {--arch block_nat}", remedy)
        if metric == "tokens_per_iteration" and _is_drafter(cfg) and self._options.verifier_path is None:
            remedy = "add {--verifier-path VERIFIER.pt}"
            raise ConfigurationError("--best-checkpoint-metric", metric, "is measured with the verifier", remedy)
        if metric == "bleu" and getattr(self._options, "eval_bleu", None) is False:
            raise ConfigurationError("--best-checkpoint-metric", metric, "is not measured", "add {--eval-bleu}")
        if metric is None:
            return
        kinds = [kind for kind, names in _METRICS.items() if re.fullmatch(names, metric)]
        known = ["tokens_per_iteration", "accuracy", "loss", "nll_loss", "ppl", "bleu"]
        if _is_drafter(cfg):
            known += [f"accuracy_at_{number}" for number in counted_positions(self._options.block_size)]
        is_other = given["criterion"] == "glat_loss" and metric.startswith("accuracy") and metric not in known
        if is_other or (not kinds and given["criterion"] in _LOSSES.values()):
            raise unknown_value("--best-checkpoint-metric", metric, known)
        if kinds and kinds[0] != given["maximize_best_checkpoint_metric"]:
            remedy = f"{'add' if kinds[0] else 'leave out'} {{--maximize-best-checkpoint-metric}}"
            raise ConfigurationError("--best-checkpoint-metric", metric, "the worst checkpoint would be kept", remedy)

    def glancing_ratio(self, update: int) -> float:
        """Return the share of wrong predictions to reveal at an update, which changes linearly."""
        start, end = self._options.glancing_start, self._options.glancing_end
        if start == end:
            return start
        updates = self._options.glancing_updates or self._options.max_update
        if updates < 1:
            problem = "not set, and {--max-update} gives no end of training to fall towards"
            raise ConfigurationError("--glancing-updates", None, problem, "give {--glancing-updates N}")
        return start + min(update / updates, 1.0) * (end - start)

    def train_step(
        self,
        sample: dict[str, Any],
        model: nn.Module,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Any, ...]:
        self._seed_batch(update_num)
        self._add_blocks(sample, model, self.glancing_ratio(update_num) if drafter_in(model) is not None else 0.0)
        if self._options.cpu_bf16:
            criterion = _in_bf16(criterion)
        with without_cudnn_attention():
            return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def _seed_batch(self, update: int) -> None:
        """Seed random numbers by the batch's number in the update, so that several processes draw those of one.

        fairseq seeds all processes alike at every update, and deals batches out in turns. The first batch of all
        processes keeps fairseq's seed.
        """
        last, seed, batches = self._seeded
        if update != last:
            seed, batches = torch.initial_seed(), 0
        self._seeded = update, seed, batches + 1
        is_alone = not distributed.is_initialized()
        rank, world = (0, 1) if is_alone else (distributed.get_rank(), distributed.get_world_size())
        number = batches * world + rank
        if number > 0:
            torch.manual_seed(seed + 1_000_003 * number)

    def max_positions(self) -> Any:
        """Return the lengths that verifier and data may have; fairseq leaves out longer sentences."""
        verifier, longest = self.training_verifier(), super().max_positions()
        return longest if verifier is None else utils.resolve_max_positions(longest, verifier.max_positions())

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        super().begin_valid_epoch(epoch, model)
        self._validation, self._has_survival = None, False  # of the weights before

    def valid_step(self, sample: dict[str, Any], model: nn.Module, criterion: Any) -> tuple[Any, ...]:
        self._add_blocks(sample, model, 0.0, is_validation=True)
        with without_cudnn_attention():
            loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if self._validation is None:
            self._validation = self._acceptance_generator(model)
        if self._validation is not None:
            before = self._validation.stats.tokens, self._validation.stats.iterations
            # Gives language tokens and the like as in decoding.
            self.inference_step(self._validation, [self._verifier], sample)
            logging_output["_tokens"] = self._validation.stats.tokens - before[0]
            logging_output["_iterations"] = self._validation.stats.iterations - before[1]
        return loss, sample_size, logging_output

    def post_validate(self, model: nn.Module, stats: dict[str, Any], agg: Any) -> None:
        """Store a validation's counts in the drafter; fairseq-train calls this after each subset.

        The counts are those of the first subset, by which fairseq chooses the best checkpoint.
        """
        drafter, policy = drafter_in(model), self._survival_policy()
        if drafter is not None and policy is not None and not self._has_survival:
            self._has_survival = True
            store_survival(policy, drafter)
            if distributed.is_initialized():  # each process has decoded its share of the sentences
                distributed.all_reduce(drafter.decoder.survival_counts)

    def _survival_policy(self) -> Any:
        """Return the policy that counted in this validation; None if the compiled kernels did not draft."""
        backend = None if self._validation is None else self._validation.backend
        return backend.method.policy if isinstance(backend, NativeBackend) else None

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        iterations = sum(log.get("_iterations", 0) for log in logging_outputs)
        if iterations > 0:
            tokens = sum(log.get("_tokens", 0) for log in logging_outputs)
            metrics.log_scalar("tokens_per_iteration", tokens / iterations, iterations, round=3)

    def _add_blocks(
        self, sample: dict[str, Any], model: nn.Module, glancing_ratio: float, is_validation: bool = False
    ) -> None:
        """Draw the blocks of a batch; in validation a batch always has the same ones."""
        drafter = drafter_in(model)
        if drafter is None or not sample:
            return
        target = sample["target"]
        generator = torch.Generator(target.device).manual_seed(int(sample["id"][0])) if is_validation else None
        sample["blocks"] = sample_blocks(
            target,
            sample["net_input"]["prev_output_tokens"],
            # The trained block size; `trained_block_size` would have to be read from the device.
            drafter.decoder.survival_counts.size(1),
            self._options.blocks_per_sentence,
            drafter.decoder.drafter_attention,
            pad=self.target_dictionary.pad(),
            mask=drafter.decoder.mask_id,
            generator=generator,
        )
        sample["glancing_ratio"] = glancing_ratio

    def _acceptance_generator(self, model: nn.Module) -> DraftVerifyGenerator | None:
        """Return a generator that counts accepted tokens in validation; None if the trained model does not draft."""
        drafter, verifier, name = drafter_in(model), self.training_verifier(), "gad"
        if isinstance(unwrap(model), BlockwiseTransformer):
            verifier, name = unwrap(model), "blockwise"
        elif drafter is None or verifier is None:
            return None
        else:
            parameter = drafter.decoder.mask_vector
            verifier.to(device=parameter.device, dtype=parameter.dtype)
        spec = methods.find(name)
        context = MethodContext(
            [verifier],
            drafter,
            self.source_dictionary,
            self.target_dictionary,
            Engine(),
            native_weights(self._options),
            counts_survival=True,
        )
        own = self.own_generator([verifier], Namespace(beam=1))
        chosen = spec.options()
        generator = generator_like(
            own,
            context,
            spec,
            lambda: choose_backend(spec, chosen, context),
            DecodingStats(spec.name),
        )
        generator.weights_are_fixed = True  # until the next validation; fairseq's modules change what they cache
        return generator


def _in_bf16(criterion: Any) -> Any:
    """Return the criterion in autocast to bfloat16 on the CPU.

    Without autocast's cache: weights that a pass without gradients (glancing) has cast would have no gradients later.
    """

    def forward(model: nn.Module, sample: dict[str, Any]) -> Any:
        if sample["target"].device.type != "cpu":
            raise ConfigurationError("--cpu-bf16", None, "trains on a GPU", "use {--bf16} there, or add {--cpu}")
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return criterion(model, sample)

    return forward


def _needs_verifier(cfg: Any) -> bool:
    return getattr(cfg, "share_encoder", False) or getattr(cfg, "drafter_context", None) == "features"


def _is_drafter(cfg: Any) -> bool:
    name = getattr(cfg, "arch", None) or getattr(cfg, "_name", None) or ""
    return str(name).startswith("block_nat")

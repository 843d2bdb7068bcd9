"""The task `spec_dec`: translation (or any rewriting) with a drafter; trains drafters, decodes with them."""

import logging
import os
from argparse import Namespace
from dataclasses import asdict, dataclass, field
from typing import Any, Optional
from weakref import WeakKeyDictionary

import torch
from fairseq import utils
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import II
from torch import nn

from fairseq_plugins import tensorboard
from fairseq_plugins.commands.files import destination
from fairseq_plugins.commands.invalid_text import mend_lines, read_invalid_text
from fairseq_plugins.commands.session import subset_errors
from fairseq_plugins.criterions.block_reliability import logged_reliability
from fairseq_plugins.data.block_masking import sample_blocks
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.checks import check_fit, check_task_options
from fairseq_plugins.decoding.constraints import refuse_search_options
from fairseq_plugins.decoding.engine.engine import Engine, make_engine
from fairseq_plugins.decoding.engine.graph_capture import Graphs
from fairseq_plugins.decoding.engine.native.kernels import Packing
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.half_precision import HALVES, computed, precision_of
from fairseq_plugins.decoding.method import MethodOptions, MethodSpec, Parts
from fairseq_plugins.decoding.profile import Profile
from fairseq_plugins.decoding.stats import DecodingStats
from fairseq_plugins.decoding.trace import TraceWriter, check_traceable
from fairseq_plugins.ending import close_with
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.loading import build_model, load_model, model_name, read_checkpoint, unwrap
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer

logger = logging.getLogger(__name__)

_DEFAULT_BLOCK_SIZE = 25


# fairseq builds its parser from these annotations and knows Optional[X], not X | None.
@dataclass
class _SpecDecConfig(TranslationConfig):
    # Not named `decoder`: fairseq's Transformer takes an option of that name for its own settings.
    decoding_method: ChoiceEnum(methods.DECODERS) = field(  # type: ignore[valid-type]
        default="beam", metadata={"argparse_alias": "--decoder", "help": methods.decoder_help()}
    )
    drafter_path: Optional[str] = field(
        default=None, metadata={"help": "checkpoint of the drafter (model block_nat) for nat, gad and gad++"}
    )
    block_size: Optional[int] = field(
        default=None,
        metadata={
            "help": "tokens per draft, k. In training: masks per block (default: 25, GAD Table 2); in decoding: at "
            "most what the drafter was trained with, which is the default; gs-jacobi, hybrid-jacobi: tokens solved "
            "together, b (default: 5)"
        },
    )
    active_sentences: int = field(
        default=0,
        metadata={
            "help": "decode so many sentences of a batch at a time: where some are finished, others of the batch come "
            "in, so that it does not drain; give a --batch-size several times as large (default: 0, the whole batch). "
            "All decoders but beam; the same output"
        },
    )
    no_compiled_steps: bool = field(
        default=False,
        metadata={"help": "CPU: run on PyTorch's operations instead of the compiled kernels, which are faster"},
    )
    int8: bool = field(
        default=False,
        metadata={
            "help": "CPU: decode with the weights of linear layers rounded to int8, in verifier and drafter alike. "
            "Lossy: the output may differ from that in fp32; with and without drafts it is the same one. The fp32 "
            "weights stay in memory. All decoders but beam"
        },
    )
    packed_weights: bool = field(
        default=False,
        metadata={
            "help": "CPU: hold the weights of all large layers a second time, in the order in which the compiled "
            "kernels read them fastest. Where float16 holds them exactly (models saved in half precision) that is done "
            "without this, for half as much memory again, and of small layers always"
        },
    )
    no_packed_weights: bool = field(
        default=False,
        metadata={"help": "CPU: read the weights of large layers where fairseq has them: slower, with least memory"},
    )
    no_cuda_graphs: bool = field(
        default=False,
        metadata={
            "help": "GPU: launch every operation of a step by itself instead of one CUDA graph of all, to compare or "
            "where capturing fails; without effect on a CPU"
        },
    )
    verbose: bool = field(
        default=False, metadata={"help": "fairseq-generate, fairseq-interactive: log all settings at the start"}
    )
    stats_file: Optional[str] = field(
        default=None,
        metadata={"help": "write iterations, accepted tokens and time of every sentence there, as JSON lines"},
    )
    trace_file: Optional[str] = field(
        default=None,
        metadata={
            "help": "write every draft and what the verifier made of it there, as JSON lines; look at it with "
            "spec-dec-trace"
        },
    )
    verifier_path: Optional[str] = field(
        default=None,
        metadata={
            "help": "drafter training: the verifier, for --share-encoder and for mean_accepted_tokens in validation "
            "(use it with --best-checkpoint-metric mean_accepted_tokens --maximize-best-checkpoint-metric)"
        },
    )
    blocks_per_sentence: int = field(
        default=1,
        metadata={"help": "drafter training: blocks per sentence and pass, more than 1 with prefix-causal attention"},
    )
    glancing_start: float = field(
        default=0.5,
        metadata={"help": "share of wrong predictions revealed at the first update (Qian et al. 2021); 0 with "
                  "--glancing-end 0: no glancing"},
    )
    glancing_end: float = field(default=0.3, metadata={"help": "the same at the last update"})
    glancing_updates: Optional[int] = field(
        default=None, metadata={"help": "updates over which the share falls (default: --max-update)"}
    )
    max_update: int = II("optimization.max_update")
    tensorboard_logdir: Optional[str] = II("common.tensorboard_logdir")
    profile: bool = II("common.profile")
    bf16: bool = II("common.bf16")


# The options of the decoding methods stand with the methods.
SpecDecConfig = methods.with_method_options(_SpecDecConfig)


@register_task("spec_dec", dataclass=SpecDecConfig)
class SpecDecTask(TranslationTask):
    """Translation task that trains drafters and decodes with them; see `SpecDecConfig` for its options."""

    cfg: SpecDecConfig
    # The command-line tools have no hook at the end of a run: the summary comes when the generator goes.
    reports_summary = True

    def __init__(self, cfg: SpecDecConfig, src_dict: Any, tgt_dict: Any) -> None:
        super().__init__(cfg, src_dict, tgt_dict)
        self._verifier: nn.Module | None = None
        # Of models in half precision, what a CPU computes with.
        self._computed: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()
        self._lines_read = 0
        self._validation: DraftVerifyGenerator | None = None

    @classmethod
    def setup_task(cls, cfg: SpecDecConfig, **kwargs: Any) -> "SpecDecTask":
        """Check options before anything is loaded, then set the task up.

        Raises:
            ConfigurationError: naming option, value and remedy.
        """
        check_task_options(cfg, methods.find(cfg.decoding_method))
        methods.check_options(cfg)
        for name in ("glancing_start", "glancing_end"):
            value = getattr(cfg, name)
            if not 0 <= value <= 1:
                flag = "--" + name.replace("_", "-")
                raise ConfigurationError(f"{flag} {value}: a share of the predictions; give a number from 0 to 1")
        if cfg.blocks_per_sentence < 1:
            raise ConfigurationError(f"--blocks-per-sentence {cfg.blocks_per_sentence}: give at least 1")
        for path, option in ((cfg.stats_file, "--stats-file"), (cfg.trace_file, "--trace-file")):
            if path is not None:
                destination(path, option)
        read_invalid_text()
        data = utils.split_paths(cfg.data)[0]
        if not os.path.isdir(data):
            raise ConfigurationError(f"{data}: no such folder; give one that fairseq-preprocess wrote")
        try:
            return super().setup_task(cfg, **kwargs)
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"{data}: has no {os.path.basename(error.filename or str(error))}; give a folder that "
                "fairseq-preprocess wrote, and its --source-lang and --target-lang"
            ) from error
        except Exception as error:
            if "Could not infer language pair" not in str(error):
                raise
            raise ConfigurationError(
                f"{data}: holds no training or test data by which to tell the languages; give a folder that "
                "fairseq-preprocess wrote, or --source-lang and --target-lang"
            ) from error

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> None:
        """Load a subset, as fairseq does.

        Raises:
            ConfigurationError: when it is missing, empty or misaligned.
        """
        with subset_errors(split, self.cfg.data):
            super().load_dataset(split, *args, **kwargs)

    def get_interactive_tokens_and_lengths(self, lines: list[str], encode_fn: Any) -> tuple[list, list]:
        """Tokens of lines of `fairseq-interactive`, with U+FFFD for what is not UTF-8."""
        mended = mend_lines(lines, self._lines_read)
        self._lines_read += len(lines)
        return super().get_interactive_tokens_and_lengths(mended, encode_fn)

    def get_batch_iterator(self, dataset: Any, *args: Any, required_batch_size_multiple: int = 1, **kwargs: Any) -> Any:
        """Batches of any size.

        fairseq 0.12 drops the last batch, and with it sentences of the test set, when its size is not a multiple of
        `--required-batch-size-multiple`, which is 8 by default.
        """
        return super().get_batch_iterator(dataset, *args, required_batch_size_multiple=1, **kwargs)

    # Training

    def training_verifier(self) -> nn.Module | None:
        """The model of `--verifier-path`, loaded once; None without the option."""
        if self._verifier is None and self.cfg.verifier_path is not None:
            verifier = load_model(self.cfg.verifier_path, self, "--verifier-path")
            if isinstance(verifier, BlockNat):
                raise ConfigurationError(
                    f"--verifier-path {self.cfg.verifier_path}: is a drafter; give an autoregressive model"
                )
            self._verifier = verifier.requires_grad_(False)
        return self._verifier

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        self.loading_checkpoint = from_checkpoint
        if from_checkpoint and _is_drafter(cfg) and _needs_verifier(cfg) and self.cfg.verifier_path is None:
            raise ConfigurationError(
                "--path: is a drafter (block_nat), which reads the states of its verifier; give the verifier as --path "
                "and the drafter as --drafter-path, with --decoder gad (in fairseq-validate: add --verifier-path)"
            )
        if self.cfg.block_size is None and not from_checkpoint and _is_drafter(cfg):
            self.cfg.block_size = _DEFAULT_BLOCK_SIZE
        model = super().build_model(cfg, from_checkpoint)
        if isinstance(model, BlockNat):
            attention = model.decoder.drafter_attention
            if attention == "full" and self.cfg.blocks_per_sentence > 1:
                raise ConfigurationError(
                    f"--blocks-per-sentence {self.cfg.blocks_per_sentence}: with --drafter-attention full a pass has "
                    "one prefix; use 1 block or --drafter-attention prefix-causal"
                )
        return model

    def glancing_ratio(self, update: int) -> float:
        """Share of wrong predictions to reveal at an update: falls linearly from start to end."""
        if self.cfg.glancing_start == self.cfg.glancing_end:
            return self.cfg.glancing_start
        updates = self.cfg.glancing_updates or self.cfg.max_update
        if updates < 1:
            raise ConfigurationError(
                "--glancing-updates: not set, and --max-update gives no end of training to fall towards; "
                "give --glancing-updates N"
            )
        share = min(update / updates, 1.0)
        return self.cfg.glancing_start + share * (self.cfg.glancing_end - self.cfg.glancing_start)

    def train_step(
        self, sample: dict, model: nn.Module, criterion: Any, optimizer: Any, update_num: int, ignore_grad: bool = False
    ) -> tuple:
        self._add_blocks(sample, model, self.glancing_ratio(update_num) if _drafter(model) is not None else 0.0)
        return super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)

    def valid_step(self, sample: dict, model: nn.Module, criterion: Any) -> tuple:
        self._add_blocks(sample, model, 0.0, seed=1)
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion)
        if self._validation is None:
            self._validation = self._acceptance_generator(model)
        if self._validation is not None:
            before = self._validation.stats.tokens, self._validation.stats.iterations
            self._validation.generate([], sample)
            logging_output["_tokens"] = self._validation.stats.tokens - before[0]
            logging_output["_iterations"] = self._validation.stats.iterations - before[1]
        return loss, sample_size, logging_output

    def begin_valid_epoch(self, epoch: int, model: nn.Module) -> None:
        self._validation = None
        generator = getattr(self, "sequence_generator", None)
        if isinstance(generator, DraftVerifyGenerator):
            generator.refresh()

    def post_validate(self, model: nn.Module, stats: dict[str, Any], agg: Any) -> None:
        """Called by fairseq-train when a subset is validated."""
        if tensorboard.logdir(self.cfg) is not None:
            tensorboard.log_reliability(self.cfg, logged_reliability(agg), stats["num_updates"])
            generator = self._acceptance_generator(model)
            if generator is not None:
                tensorboard.log_sample(self, generator, stats["num_updates"])

    def reduce_metrics(self, logging_outputs: list[dict], criterion: Any) -> None:
        super().reduce_metrics(logging_outputs, criterion)
        iterations = sum(log.get("_iterations", 0) for log in logging_outputs)
        if iterations > 0:
            tokens = sum(log.get("_tokens", 0) for log in logging_outputs)
            metrics.log_scalar("mean_accepted_tokens", tokens / iterations, iterations, round=3)

    def _add_blocks(self, sample: dict, model: nn.Module, glancing_ratio: float, seed: int | None = None) -> None:
        """Draw the blocks of a batch; with a seed they are the same every time, as validation wants them."""
        drafter = _drafter(model)
        if drafter is None or not sample:
            return
        target = sample["target"]
        generator = None if seed is None else torch.Generator(target.device).manual_seed(seed)
        sample["blocks"] = sample_blocks(
            target,
            sample["net_input"]["prev_output_tokens"],
            int(drafter.decoder.trained_block_size),
            self.cfg.blocks_per_sentence,
            drafter.decoder.drafter_attention,
            pad=self.tgt_dict.pad(),
            mask=drafter.decoder.mask_id,
            generator=generator,
        )
        sample["glancing_ratio"] = glancing_ratio

    def _acceptance_generator(self, model: nn.Module) -> DraftVerifyGenerator | None:
        """Decodes validation batches with what is trained, to count accepted tokens: None where nothing drafts."""
        drafter, verifier, name = _drafter(model), self.training_verifier(), "gad"
        options: dict[str, Any] = {"fixed_width": True}  # the drafter's tokens are counted, not those that paid
        if isinstance(unwrap(model), BlockwiseTransformer):
            verifier, name, options = unwrap(model), "blockwise", {}
        elif drafter is None or verifier is None:
            return None
        else:
            parameter = drafter.decoder.mask_vector
            verifier.to(device=parameter.device, dtype=parameter.dtype)
        spec = methods.find(name)
        engine = make_engine(not self.cfg.no_compiled_steps, _packing(self.cfg))
        parts = Parts([verifier], drafter, self.src_dict, self.tgt_dict, engine)
        return DraftVerifyGenerator(
            [verifier],
            self.tgt_dict,
            build_method=lambda: spec.build(parts, spec.options(**options)),
            stats=DecodingStats(spec.name),
        )

    # Decoding

    def build_generator(
        self,
        models: list[nn.Module],
        args: Any,
        seq_gen_cls: Any = None,
        extra_gen_cls_kwargs: dict[str, Any] | None = None,
        prefix_allowed_tokens_fn: Any = None,
    ) -> Any:
        """Build the decoder named by `--decoder`; `beam` (and `--score-reference`) is fairseq's own.

        Raises:
            ConfigurationError: for checkpoints or options that do not fit the decoder.
        """
        scores_reference = getattr(args, "score_reference", False)
        spec, options = methods.chosen(self.cfg)
        if _drafter(models[0]) is not None and not scores_reference:
            if spec.build is None and self.cfg.eval_bleu:
                # --eval-bleu in training: what a drafter can do alone.
                spec = methods.find("nat")
                options = spec.read(self.cfg)
            elif spec.runs_verifier:
                raise ConfigurationError(
                    f"--path: is a drafter (block_nat), which --decoder {spec.name} cannot verify with; give the "
                    "verifier as --path and the drafter as --drafter-path, or use --decoder nat"
                )
        is_one_run = self.reports_summary and not self.cfg.eval_bleu
        if self.cfg.trace_file is not None:
            check_traceable(self.cfg.trace_file, spec, scores_reference, is_one_run)
        if self.cfg.stats_file is not None and is_one_run and (spec.build is None or scores_reference):
            raise ConfigurationError(
                f"--stats-file {self.cfg.stats_file}: fairseq's own search counts nothing; choose another --decoder, "
                "or leave it out"
            )
        if spec.build is None or scores_reference:
            if self.cfg.profile is True and is_one_run:
                logger.warning("--profile: fairseq's own search is not measured; choose another --decoder")
            return super().build_generator(
                models, args, seq_gen_cls, extra_gen_cls_kwargs, prefix_allowed_tokens_fn
            )
        refuse_search_options(args, prefix_allowed_tokens_fn, spec.name, spec.searches_beams)
        if not spec.searches_beams:
            # fairseq prints the beam in its last line, and 5 is only its default.
            _set_beam(args, 1)
        # Of a task made by hand, without fairseq's command line, fields of fairseq's are unresolved references.
        dtype = precision_of(models, self.cfg.bf16 is True)
        parts = Parts(
            models,
            self._decoding_drafter(models, spec, options),
            self.src_dict,
            self.tgt_dict,
            self._engine(dtype),
            getattr(args, "temperature", 1.0),
            # As fairseq does, which never chooses padding.
            min(getattr(args, "beam", 5), len(self.tgt_dict) - 1) if spec.searches_beams else 1,
            is_traced=self.cfg.trace_file is not None,
        )
        check_fit(spec, options, parts)
        stats = tensorboard.decoding_stats(self.cfg, spec, options, is_one_run)
        if parts.engine.has_graphs(next(models[0].parameters()).device):
            stats.graphs = parts.engine.graphs
        trace = self._trace(spec, options, parts)
        generator = super().build_generator(
            models,
            args,
            seq_gen_cls=DraftVerifyGenerator,
            extra_gen_cls_kwargs={
                **(extra_gen_cls_kwargs or {}),
                "build_method": lambda: spec.build(computed(parts, dtype, self._computed), options),
                "stats": stats,
                "trace": trace,
                "active_sentences": self.cfg.active_sentences,
                "searches_beams": spec.searches_beams,
            },
        )
        if is_one_run:
            close_with(generator, stats.close)
        if trace is not None:
            close_with(generator, trace.close)
        if self.cfg.profile is True and is_one_run:
            profile = Profile()
            profile.attach(generator)
            close_with(generator, profile.close)
        return generator

    def _engine(self, dtype: torch.dtype) -> Engine:
        cfg = self.cfg
        # --eval-bleu: every validation has other weights, for which graphs would be captured anew.
        graphs = None if cfg.eval_bleu else Graphs(enabled=not cfg.no_cuda_graphs)
        return make_engine(not cfg.no_compiled_steps, _packing(cfg), cfg.int8, graphs, steady=dtype in HALVES)

    def _trace(self, spec: MethodSpec, options: MethodOptions, parts: Parts) -> TraceWriter | None:
        if self.cfg.trace_file is None:
            return None
        settings = {**asdict(options), "temperature": parts.temperature, "int8": self.cfg.int8}
        if parts.drafter is not None and settings.get("block_size") is None:
            settings["block_size"] = int(parts.drafter.decoder.trained_block_size)
        return TraceWriter(self.cfg.trace_file, self.src_dict, self.tgt_dict, spec, settings)

    def _decoding_drafter(
        self, models: list[nn.Module], spec: MethodSpec, options: MethodOptions
    ) -> BlockNat | None:
        if not spec.needs_drafter(options):
            return None
        if self.cfg.drafter_path is None:
            own = _drafter(models[0])
            if own is not None:
                return own
            raise ConfigurationError(
                f"--decoder {spec.name}: needs a drafter; add --drafter-path DRAFTER.pt (train one with "
                "fairseq-train --task spec_dec --arch block_nat)"
            )
        if not hasattr(self, "_drafters"):
            self._drafters: dict[str, BlockNat] = {}
        path = self.cfg.drafter_path
        if path not in self._drafters:
            self._drafters[path] = self._load_drafter(path, models[0])
        parameter = next(models[0].parameters())
        return self._drafters[path].to(device=parameter.device, dtype=parameter.dtype)

    def _load_drafter(self, path: str, verifier: nn.Module) -> BlockNat:
        option = "--drafter-path"
        state, cfg = read_checkpoint(path, option)
        if model_name(cfg).startswith("block_nat"):
            if getattr(cfg, "tune_verifier", False):
                raise ConfigurationError(
                    f"{option} {path}: holds a verifier of its own (--tune-verifier); part them with "
                    "python -m train_scripts.tools split-verifier, and decode with both"
                )
            try:
                # Before it is built: its options name layers and widths of its own verifier.
                BlockNat.check_verifier(state["model"], cfg, verifier)
            except ValueError as error:
                raise ConfigurationError(
                    f"{option} {path}: {error} than --path; give the verifier that it was trained with as --path, or "
                    "train a drafter for this one"
                ) from error
        return build_model(state, cfg, path, self, option, required=BlockNat, verifier=verifier)


def _needs_verifier(cfg: Any) -> bool:
    return getattr(cfg, "share_encoder", False) or getattr(cfg, "drafter_context", None) == "features"


def _is_drafter(cfg: Any) -> bool:
    name = getattr(cfg, "arch", None) or getattr(cfg, "_name", None) or ""
    return str(name).startswith("block_nat")


def _drafter(model: nn.Module) -> BlockNat | None:
    """The drafter inside of fairseq's wrappers for distributed training, None for other models."""
    model = unwrap(model)
    return model if isinstance(model, BlockNat) else None


def _packing(cfg: Any) -> Packing:
    """Which large weights are held a second time; AUTO unless an option says otherwise.

    Raises:
        ConfigurationError: where both do.
    """
    if cfg.packed_weights and cfg.no_packed_weights:
        raise ConfigurationError("--packed-weights: contradicts --no-packed-weights; leave one of them out")
    if cfg.packed_weights:
        return Packing.ALWAYS
    return Packing.NEVER if cfg.no_packed_weights else Packing.AUTO


def _set_beam(args: Any, beam: int) -> None:
    if isinstance(args, Namespace) or hasattr(args, "beam"):
        args.beam = beam

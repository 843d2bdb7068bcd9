"""Build the generator of `--decoder` for a task, with the settings of the task's own generator."""

import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any
from weakref import WeakKeyDictionary

from fairseq.search import BeamSearch
from fairseq.search import Sampling as FairseqSampling
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation_from_pretrained_bart import TranslationFromPretrainedBARTTask
from torch import nn

from fairseq_plugins.checkpoint.loading import build_model, read_checkpoint, unwrap
from fairseq_plugins.checkpoint.mapped_weights import TakeWeights
from fairseq_plugins.checkpoint.session import options_of
from fairseq_plugins.checkpoint.settings import check_settings, model_name
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.backends import Backend, choose_backend
from fairseq_plugins.decoding.checks import check_finite, check_fit, check_task_options
from fairseq_plugins.decoding.constraints import refuse_search_options, refuse_unsupported_settings
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.decoding.methods.reuse import ReuseOptions
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.recording.profile import Profile
from fairseq_plugins.decoding.recording.stats import DecodingStats
from fairseq_plugins.decoding.recording.trace_writer import Tracer, TraceWriter, check_traceable
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.half_precision import HALF_DTYPES, precision_of, with_rounded_weights
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search.strategy import OPTIONS, SearchStrategy
from fairseq_plugins.decoding.search_numbers import check_search_numbers
from fairseq_plugins.decoding.weights import Precision
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.process.ending import close_with
from fairseq_plugins.shared.files import destination
from fairseq_plugins.tasks.drafts import LineNumbers, TaskDrafts

logger = logging.getLogger(__name__)


class Decoding:
    """Builds the generators of a task from `DecodingOptions`, or a configuration with the same fields."""

    def __init__(self, options: Any) -> None:
        self.options = options  # read anew for each generator
        self.drafters: dict[str, BlockNat] = {}  # by path
        self.counts_survival = False  # see `MethodContext.counts_survival`
        self.batch_invariant = False  # of the kernels' fp32 products, too: see `NativeWeights`
        self.numbers: LineNumbers | None = None  # of this run's lines
        # fp32 copies of models in half precision, for a CPU.
        self._computed: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()

    def build(
        self, task: Any, models: Sequence[nn.Module], args: Any, build_own: Callable[[], Any], allowed: Any = None
    ) -> Any:
        """Build the generator of `--decoder`; that of `beam` (and `--score-reference`) is the task's own.

        Raises ConfigurationError for checkpoints or options that do not fit the decoder.

        Args:
            task, models, args: as for fairseq's `build_generator`; sets the beam in `args` to 1 for greedy decoders.
            build_own: builds the task's own generator.
            allowed: fairseq's `prefix_allowed_tokens_fn`.
        """
        cfg = self.options
        in_training = getattr(cfg, "eval_bleu", False) is True
        is_one_run = getattr(task, "reports_summary", True) and not in_training
        scores_reference = getattr(args, "score_reference", False)
        spec, options = methods.chosen(cfg)
        if drafter_in(models[0]) is not None and not scores_reference:
            if spec.build is None and in_training:
                # A drafter decodes alone.
                spec = methods.find("nat")
                options = spec.read(cfg)
            elif spec.runs_verifier:
                raise ConfigurationError(
                    "--path",
                    None,
                    f"is a drafter (block_nat), which {{--decoder {spec.name}}} cannot verify with",
                    "give the verifier as {--path} and the drafter as {--drafter-path}, or use {--decoder nat}",
                )
        samples = 0 if spec.build is None or scores_reference else samples_of(args)
        if samples:
            if spec.searches_beams:
                # Sampling keeps no beams.
                spec = methods.find("greedy")
                options = spec.read(cfg)
            if not spec.accepts_exactly(options):
                raise ConfigurationError(
                    "--sampling",
                    None,
                    f"is not for {{--decoder {spec.name}}}, whose output depends on the drafts",
                    "use {--decoder greedy}, or one that accepts exactly",
                )
            args.beam = samples
        check_search_numbers(args)
        if not in_training:
            check_finite(models)
        if cfg.trace_file is not None:
            check_traceable(cfg.trace_file, spec, scores_reference, is_one_run)
            if task.source_dictionary is None:
                raise ConfigurationError("--trace-file", cfg.trace_file, "shows source tokens, and this task has none")
        if cfg.stats_file is not None and is_one_run and (spec.build is None or scores_reference):
            raise ConfigurationError(
                "--stats-file",
                cfg.stats_file,
                "fairseq's own search counts nothing",
                "choose another {--decoder}, or leave it out",
            )
        if spec.build is None or scores_reference:
            if cfg.profile is True and is_one_run:
                logger.warning("--profile: fairseq's own search is not measured; choose another --decoder")
            own = build_own()
            if _repeat_ngram_size(own) and not own.repeat_ngram_blocker.use_extension:
                logger.warning(
                    "--no-repeat-ngram-size: forbids nothing in fairseq 0.12's own search without its CUDA extension; "
                    "use --decoder greedy or fast-beam"
                )
            return own
        refuse_search_options(args, allowed, spec.name, spec.searches_beams)
        if not spec.searches_beams and not samples and (isinstance(args, Namespace) or hasattr(args, "beam")):
            # fairseq prints the beam in its last line, and 5 is only its default.
            args.beam = 1
        own = build_own()
        _check_own(own, task, spec, samples > 0)
        # Without fairseq's command line, fairseq's fields in the configuration are unresolved references.
        bf16, active = cfg.bf16 is True, cfg.active_sentences
        # In training every validation has new weights and would capture new graphs.
        graphs = None if in_training else Graphs(enabled=not cfg.no_cuda_graphs)
        context = MethodContext(
            models,
            self._drafter(task, models, spec, options),
            task.source_dictionary,
            task.target_dictionary,
            Engine(_precision(cfg), graphs),
            native_weights(cfg, self.batch_invariant),
            own.temperature,
            own.beam_size if spec.searches_beams else 1,
            is_traced=cfg.trace_file is not None,
            counts_survival=self.counts_survival,
            no_repeat_ngram_size=_repeat_ngram_size(own),
            sampling=_sampling(own) if samples else None,
            strategy=_strategy(own, samples > 0),
        )
        check_fit(spec, options, context)
        label = f"{spec.name} int8 (lossy: weights rounded)" if cfg.int8 else spec.name
        stats = DecodingStats(label, cfg.stats_file)
        if context.engine.has_graphs(next(models[0].parameters()).device):
            stats.graphs = context.engine.graphs
        trace = None if cfg.trace_file is None else self._trace(spec, options, context)
        generator = generator_like(
            own,
            context,
            spec,
            lambda spec, trace: choose_backend(spec, options, self._in_current_precision(context, bf16), trace, active),
            stats,
            trace=trace,
            active_sentences=active,
            samples=samples,
            seed=cfg.seed if isinstance(cfg.seed, int) else 1,
            extract_alignment=getattr(own, "extract_alignment", None),
        )
        if isinstance(options, ReuseOptions) and (is_one_run or options.drafts is not None):
            generator.drafts = TaskDrafts(options.drafts, task, is_one_run)
        if is_one_run:
            self.numbers = LineNumbers()
            generator.number = self.numbers.add_to
        if is_one_run:
            close_with(generator, stats.close)
        if trace is not None:
            close_with(generator, trace.close)
        if cfg.profile is True and is_one_run:
            profile = Profile()
            profile.attach(generator)
            close_with(generator, profile.close)
        return generator

    def _in_current_precision(self, context: MethodContext, bf16: bool) -> MethodContext:
        """Return the context for the type and device that the models have now."""
        dtype = precision_of(context.models, bf16)
        # Noise makes near ties frequent, so that rounding, too, must not depend on the batch.
        is_invariant, weights = dtype in HALF_DTYPES or context.sampling is not None, context.weights
        if context.drafter is not None:
            parameter = next(context.models[0].parameters())
            context.drafter.to(device=parameter.device, dtype=parameter.dtype)
        current = replace(
            context,
            engine=replace(context.engine, batch_invariant=is_invariant),
            weights=None
            if weights is None
            else replace(weights, batch_invariant=is_invariant or weights.batch_invariant),
        )
        return with_rounded_weights(current, dtype, self._computed)

    def _trace(self, spec: MethodSpec, options: MethodOptions, context: MethodContext) -> TraceWriter:
        settings = {**asdict(options), "temperature": context.temperature, "int8": self.options.int8}
        if context.drafter is not None and settings.get("block_size") is None:
            settings["block_size"] = int(context.drafter.decoder.trained_block_size)
        return TraceWriter(self.options.trace_file, context.source, context.target, spec, settings)

    def _drafter(
        self, task: Any, models: Sequence[nn.Module], spec: MethodSpec, options: MethodOptions
    ) -> BlockNat | None:
        if not spec.needs_drafter(options):
            return None
        path = self.options.drafter_path
        if path is None:
            own = drafter_in(models[0])
            if own is not None:
                return own
            raise ConfigurationError(
                "--decoder",
                spec.name,
                "needs a drafter",
                "add {--drafter-path DRAFTER.pt} (train one with fairseq-train --task spec_dec --arch block_nat)",
            )
        if path not in self.drafters:
            self.drafters[path] = _load_drafter(path, models[0], task)
        return self.drafters[path]


class DecodesWithDrafts(FairseqTask):
    """Mixin of tasks whose options include `DecodingOptions`: `build_generator` builds the decoder of `--decoder`."""

    # fairseq's commands have no hook at the end of a run: the summary is printed when the generator is deleted.
    reports_summary = True
    # Of --tokenizer and --bpe, None for none.
    text_tools: tuple[Any, Any] = (None, None)
    cfg: Any

    @property
    def decoding(self) -> Decoding:
        """The builder of the generators."""
        if "_decoding" not in vars(self):
            self._decoding = Decoding(options_of(self))
        return self._decoding

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Any:
        """Check the options (`check_options`) before anything is loaded, then set the task up."""
        check_options(cfg)
        return with_args(super().setup_task(cfg, **kwargs))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        """Build a model; check the settings of a checkpoint first."""
        if from_checkpoint:
            check_settings(cfg, ("--path", None))
        return super().build_model(cfg, from_checkpoint)

    def build_generator(self, models: Sequence[nn.Module], args: Any, *more: Any, **named: Any) -> Any:
        """Build the decoder named by `--decoder`; see `Decoding.build`."""
        allowed = named.get("prefix_allowed_tokens_fn")
        return self.decoding.build(
            self, models, args, lambda: self.own_generator(models, args, *more, **named), allowed
        )

    def build_dataset_for_inference(self, *args: Any, **kwargs: Any) -> Any:
        """Make a dataset of raw text, whose lines are numbered."""
        dataset = super().build_dataset_for_inference(*args, **kwargs)
        if self.decoding.numbers is not None:
            self.decoding.numbers.number(dataset)
        return dataset

    def build_tokenizer(self, args: Any) -> Any:
        """Build the object of --tokenizer; `text_tools` keeps it."""
        self.text_tools = (super().build_tokenizer(args), None)
        return self.text_tools[0]

    def build_bpe(self, args: Any) -> Any:
        """Build the object of --bpe; `text_tools` keeps it."""
        self.text_tools = (self.text_tools[0], super().build_bpe(args))
        return self.text_tools[1]

    def own_generator(self, *args: Any, **kwargs: Any) -> Any:
        """Build the task's own generator."""
        return super().build_generator(*args, **kwargs)


def check_options(cfg: Any) -> None:
    """Raise ConfigurationError for decoding options that contradict each other, and files that cannot be written."""
    check_task_options(cfg, methods.find(cfg.decoding_method))
    methods.check_options(cfg)
    stats = None if cfg.stats_file is None else destination(cfg.stats_file, "--stats-file")
    trace = None if cfg.trace_file is None else destination(cfg.trace_file, "--trace-file")
    if stats is not None and stats == trace and not stats.is_direct:
        raise ConfigurationError("--trace-file", cfg.trace_file, "is the file of {--stats-file}", "give another one")


def with_args(task: Any) -> Any:
    """Give a task the `args` that fairseq 0.12's translation_from_pretrained_bart reads and never sets."""
    if isinstance(task, TranslationFromPretrainedBARTTask) and not hasattr(task, "args"):
        task.args = task.cfg
    return task


def drafter_in(model: nn.Module) -> BlockNat | None:
    """Return the drafter inside of fairseq's wrappers for distributed training, None for other models."""
    model = unwrap(model)
    return model if isinstance(model, BlockNat) else None


def native_weights(cfg: Any, batch_invariant: bool = False) -> NativeWeights | None:
    """Return the kernels' weight format; None if an option turns them off."""
    if cfg.no_compiled_steps:
        return None
    packed = not cfg.no_packed_weights
    return NativeWeights(packed, precision=_precision(cfg), batch_invariant=batch_invariant)


def _precision(cfg: Any) -> Precision:
    return Precision.INT8 if cfg.int8 else Precision.FP32


def _check_own(own: Any, task: Any, spec: MethodSpec, samples: bool) -> None:
    """Raise ConfigurationError for a task whose own generator is not fairseq's beam search, or its sampling."""
    is_plain = type(own) in (SequenceGenerator, SequenceGeneratorWithAlignment)
    searches = {FairseqSampling} if samples else {BeamSearch, *(OPTIONS if spec.searches_beams else ())}
    if not is_plain or type(own.search) not in searches:
        kind = type(own.search) if is_plain else type(own)
        raise ConfigurationError(
            "--decoder",
            spec.name,
            f"the task {type(task).__name__} decodes with a {kind.__name__}, not with fairseq's beam search",
            "use {--decoder beam}",
        )
    refuse_unsupported_settings(own, spec.searches_beams or samples)
    if _repeat_ngram_size(own) and not spec.runs_verifier:
        raise ConfigurationError(
            "--no-repeat-ngram-size",
            None,
            f"is not for {{--decoder {spec.name}}}",
            "leave it out or use {--decoder gad}",
        )


def samples_of(args: Any) -> int:
    """Return the number of samples that fairseq's options draw for a sentence, 0 without `--sampling`."""
    if not getattr(args, "sampling", False):
        return 0
    return max(getattr(args, "beam", 5), getattr(args, "nbest", 1))


def _sampling(own: SequenceGenerator) -> Sampling:
    search = own.search
    return Sampling(max(search.sampling_topk, 0), max(search.sampling_topp, 0.0), own.temperature)


def _strategy(own: SequenceGenerator, samples: bool) -> SearchStrategy | None:
    """Return fairseq's search and its language model, None for plain beam search."""
    search = None if samples or type(own.search) is BeamSearch else own.search
    return None if search is None and own.lm_model is None else SearchStrategy(search, own.lm_model, own.lm_weight)


def _repeat_ngram_size(own: Any) -> int:
    """Return `--no-repeat-ngram-size` of fairseq's generator."""
    blocker = getattr(own, "repeat_ngram_blocker", None)
    return 0 if blocker is None else blocker.no_repeat_ngram_size


def generator_like(
    own: SequenceGenerator,
    context: MethodContext,
    spec: MethodSpec,
    choose: Callable[[MethodSpec, Tracer | None], Backend],
    stats: DecodingStats,
    **more: Any,
) -> DraftVerifyGenerator:
    """Return our generator with the settings of a task's own; other arguments as for `DraftVerifyGenerator`."""
    return DraftVerifyGenerator(
        context.models,
        own.tgt_dict,
        drafter=context.drafter,
        spec=spec,
        choose=choose,
        stats=stats,
        beam_size=context.beam,
        max_len_a=own.max_len_a,
        max_len_b=own.max_len_b,
        max_len=own.max_len,
        min_len=own.min_len,
        normalize_scores=own.normalize_scores,
        len_penalty=own.len_penalty,
        unk_penalty=own.unk_penalty,
        temperature=own.temperature,
        no_repeat_ngram_size=context.no_repeat_ngram_size,
        eos=own.eos,
        symbols_to_strip_from_output=own.symbols_to_strip_from_output,
        match_source_len=own.match_source_len,
        lm_model=own.lm_model,
        lm_weight=own.lm_weight,
        search_strategy=own.search,
        **more,
    )


def _load_drafter(path: str, verifier: nn.Module, task: Any) -> BlockNat:
    option = "--drafter-path"
    state, cfg = read_checkpoint(path, option)
    if model_name(cfg).startswith("block_nat"):
        if getattr(cfg, "tune_verifier", False):
            raise ConfigurationError(
                option,
                path,
                "holds a verifier of its own ({--tune-verifier})",
                "part them with python -m train_scripts.tools split-verifier, and decode with both",
            )
        try:
            # Before it is built: its options name layers and widths of its own verifier.
            BlockNat.check_verifier(state["model"], cfg, verifier)
        except ValueError as error:
            raise ConfigurationError(
                option,
                path,
                f"{error} than {{--path}}",
                "give the verifier that it was trained with as {--path}, or train a drafter for this one",
            ) from error
    with TakeWeights():
        drafter = build_model(state, cfg, path, task, option, required=BlockNat, verifier=verifier)
    assert isinstance(drafter, BlockNat)
    return drafter

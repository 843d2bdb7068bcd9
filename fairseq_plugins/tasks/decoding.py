"""Build the generator of `--decoder` for a task, with the settings of the task's own generator."""

import logging
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch import nn

from fairseq_plugins.checkpoint.compact_weights import restore
from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.backends import Backend, choose_backend
from fairseq_plugins.decoding.checks import check_finite, check_fit, check_verifiers
from fairseq_plugins.decoding.constraints import refuse_search_options, repeat_ngram_size
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.decoding.methods.reuse import ReuseOptions
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.recording.profile import Profile
from fairseq_plugins.decoding.recording.stats import DecodingStats
from fairseq_plugins.decoding.recording.trace_writer import TraceWriter, check_traceable
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.half_precision import HALF_DTYPES, precision_of, with_rounded_weights
from fairseq_plugins.decoding.search_numbers import check_beam_groups, check_one_search, check_search_numbers
from fairseq_plugins.decoding.suppression import check_end, suppressed_tokens
from fairseq_plugins.decoding.trained_drafter import drafter_in, load_drafter
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat
from fairseq_plugins.process.ending import close_with
from fairseq_plugins.process.output import is_tool
from fairseq_plugins.tasks.drafts import LineNumbers, TaskDrafts
from fairseq_plugins.tasks.own_generator import (
    check_own,
    generator_like,
    samples_of,
    sampling_of,
    strategy_of,
)

logger = logging.getLogger(__name__)


class Decoding:
    """Builds the generators of a task from `DecodingOptions`, or a configuration with the same fields."""

    def __init__(self, options: Any) -> None:
        self.options = options  # read anew for each generator
        self.drafters: dict[str, BlockNat] = {}  # by path
        self.counts_survival = False  # see `MethodContext.counts_survival`
        self.batch_invariant = False  # of the kernels' fp32 products, too: see `NativeWeights`
        self.numbers: LineNumbers | None = None  # of this run's lines
        # Of models whose weights never change: what was converted (see `KernelWeights`), and which are finite.
        self._converted: dict[Any, Any] = {}
        self._finite: WeakSet[nn.Module] = WeakSet()
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
        spec, options = self._method(models[0], args, in_training)
        samples = 0 if spec.build is None else samples_of(args)
        if samples:
            spec, options = _without_beams(spec, options, cfg)
            args.beam = samples
        check_search_numbers(args)
        check_one_search(args)
        is_fixed = getattr(task, "weights_are_fixed", False)
        if not in_training:
            check_finite([model for model in models if not (is_fixed and model in self._finite)])
            self._finite.update(models)
        self._check_files(task, spec, args, is_one_run)
        if spec.build is None or getattr(args, "print_alignment", None):
            restore(models)  # which run in PyTorch
        if spec.build is None:
            return self._fairseqs_search(task, args, build_own, is_one_run)
        refuse_search_options(args, allowed, spec.name, spec.searches_beams)
        check_beam_groups(args)
        if not spec.searches_beams and not samples and (isinstance(args, Namespace) or hasattr(args, "beam")):
            # fairseq prints the beam in its last line, and 5 is only its default.
            args.beam = 1
        own = self._suppressing(build_own(), task)
        check_own(own, task, spec, samples > 0)
        context = self._context(task, models, own, spec, options, in_training, self._converted if is_fixed else None)
        check_fit(spec, options, context)
        generator = self._generator(own, spec, options, context, samples)
        generator.weights_are_fixed = is_fixed
        if isinstance(options, ReuseOptions) and (is_one_run or options.drafts is not None):
            generator.drafts = TaskDrafts(options.drafts, task, is_one_run)
        if is_one_run:
            self._report(generator)
        if is_tool():
            generator.most_aligned = getattr(args, "nbest", 1)  # what fairseq's tools print
        return generator

    def _method(self, model: nn.Module, args: Any, in_training: bool) -> tuple[MethodSpec, MethodOptions]:
        """Return the method that decodes: of `--decoder`, unless the task scores references or trains a drafter."""
        spec, options = methods.chosen(self.options)
        if getattr(args, "score_reference", False):
            spec = methods.find("beam")
        elif drafter_in(model) is None:
            return spec, options
        elif spec.build is None and in_training:
            # A drafter decodes alone.
            spec = methods.find("nat")
        elif spec.runs_verifier:
            problem = f"is a drafter (block_nat), which {{--decoder {spec.name}}} cannot verify with"
            remedy = "give the verifier as {--path} and the drafter as {--drafter-path}, or use {--decoder nat}"
            raise ConfigurationError("--path", None, problem, remedy)
        return spec, spec.read(self.options)

    def _suppressing(self, own: Any, task: Any) -> Any:
        """Return a task's own generator with suppressed tokens set; without such options those of the task stay."""
        options = {name: getattr(self.options, name) for name in ("suppress_tokens", "begin_suppress_tokens")}
        if any(options.values()):
            suppressed_tokens(options, task.target_dictionary).set_in(own)
        return own

    def _check_files(self, task: Any, spec: MethodSpec, args: Any, is_one_run: bool) -> None:
        """Raise ConfigurationError for files of results that this run would not write."""
        trace, stats = self.options.trace_file, self.options.stats_file
        if trace is not None:
            check_traceable(trace, spec, getattr(args, "score_reference", False), is_one_run)
            if task.source_dictionary is None:
                raise ConfigurationError("--trace-file", trace, "shows source tokens, and this task has none")
        if stats is not None and is_one_run and spec.build is None:
            problem = "fairseq's own search counts nothing"
            raise ConfigurationError("--stats-file", stats, problem, "choose another {--decoder}, or leave it out")

    def _fairseqs_search(self, task: Any, args: Any, build_own: Callable[[], Any], is_one_run: bool) -> Any:
        """Build the task's own generator, and warn of options that do nothing there."""
        if not getattr(args, "score_reference", False):
            check_beam_groups(args)
        if self.options.profile is True and is_one_run:
            logger.warning("--profile: fairseq's own search is not measured; choose another --decoder")
        own = build_own()
        if repeat_ngram_size(own) and not own.repeat_ngram_blocker.use_extension:
            logger.warning(
                "--no-repeat-ngram-size: forbids nothing in fairseq 0.12's own search without its CUDA extension; "
                "use --decoder greedy or fast-beam"
            )
        suppressed = getattr(self._suppressing(own, task), "token_indices_to_suppress", None)
        if suppressed is not None:
            check_end(suppressed.tolist(), own.eos)
        return own

    def _context(
        self,
        task: Any,
        models: Sequence[nn.Module],
        own: Any,
        spec: MethodSpec,
        options: MethodOptions,
        in_training: bool,
        shared: dict[Any, Any] | None,
    ) -> MethodContext:
        """Return the models and settings that the method is built from; `shared` is that of `KernelWeights`."""
        cfg = self.options
        # In training every validation has new weights and would capture new graphs.
        graphs = None if in_training else Graphs(enabled=not cfg.no_cuda_graphs)
        return MethodContext(
            models,
            self._drafter(task, models, spec, options),
            task.source_dictionary,
            task.target_dictionary,
            Engine(int8=cfg.int8, graphs=graphs),
            native_weights(cfg, self.batch_invariant, shared),
            own.temperature,
            own.beam_size if spec.searches_beams else 1,
            counts_survival=self.counts_survival,
            no_repeat_ngram_size=repeat_ngram_size(own),
            sampling=sampling_of(own),
            strategy=strategy_of(own),
        )

    def _generator(
        self, own: Any, spec: MethodSpec, options: MethodOptions, context: MethodContext, samples: int
    ) -> DraftVerifyGenerator:
        """Return the generator, with what it records."""
        cfg = self.options
        # Without fairseq's command line, fairseq's fields in the configuration are unresolved references.
        bf16, active = cfg.bf16 is True, cfg.active_sentences
        label = f"{spec.name} int8 (lossy: weights rounded)" if cfg.int8 else spec.name
        stats = DecodingStats(label, cfg.stats_file)
        if context.engine.has_graphs(next(context.models[0].parameters()).device):
            stats.graphs = context.engine.graphs
        trace = None if cfg.trace_file is None else self._trace(spec, options, context)

        def choose() -> Backend:
            check_verifiers(spec, context.models)  # whose methods may have been replaced since
            return choose_backend(spec, options, self._in_current_precision(context, bf16), trace, active)

        generator = generator_like(
            own,
            context,
            spec,
            choose,
            stats,
            trace=trace,
            active_sentences=active,
            samples=samples,
            seed=cfg.seed if isinstance(cfg.seed, int) else 1,
            extract_alignment=getattr(own, "extract_alignment", None),
        )
        if trace is not None:
            close_with(generator, trace.close)
        return generator

    def _report(self, generator: DraftVerifyGenerator) -> None:
        """Number the sentences of a run, and let it end with its summary."""
        self.numbers = LineNumbers()
        generator.number = self.numbers.add_to
        close_with(generator, generator.stats.close)
        if self.options.profile is True:
            profile = Profile()
            profile.attach(generator)
            close_with(generator, profile.close)

    def _in_current_precision(self, context: MethodContext, bf16: bool) -> MethodContext:
        """Return the context for the type and device that the models have now."""
        dtype = precision_of(context.models, bf16)
        # Noise makes near ties frequent, so that rounding, too, must not depend on the batch.
        is_invariant, weights = dtype in HALF_DTYPES or context.sampling is not None, context.weights
        if context.drafter is not None:
            parameter = next(context.models[0].parameters())
            kind = parameter.device, parameter.dtype
            if any((own.device, own.dtype) != kind for own in context.drafter.parameters()):
                context.drafter.to(*kind)
        # Rounding to int8 enlarges rounding differences of fp32. The compiled kernels do not depend on the batch in
        # int8; encoders of speech always do.
        of_engine = is_invariant or (context.engine.int8 and context.source is not None)
        if weights is not None:
            weights = replace(weights, batch_invariant=is_invariant or weights.batch_invariant)
        current = replace(context, engine=replace(context.engine, batch_invariant=of_engine), weights=weights)
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
            remedy = "add {--drafter-path DRAFTER.pt} (train one with fairseq-train --task spec_dec --arch block_nat)"
            raise ConfigurationError("--decoder", spec.name, "needs a drafter", remedy)
        if path not in self.drafters:
            self.drafters[path] = load_drafter(path, models[0], task)
        return self.drafters[path]


def native_weights(
    cfg: Any, batch_invariant: bool = False, shared: dict[Any, Any] | None = None
) -> NativeWeights | None:
    """Return the kernels' weight format; None if an option turns them off."""
    if cfg.no_compiled_steps:
        return None
    packed = not cfg.no_packed_weights
    return NativeWeights(packed, int8=cfg.int8, batch_invariant=batch_invariant, shared=shared)


def _without_beams(spec: MethodSpec, options: MethodOptions, cfg: Any) -> tuple[MethodSpec, MethodOptions]:
    """Return the method that samples: it keeps no beams and accepts exactly."""
    if spec.searches_beams:
        spec = methods.find("greedy")
        options = spec.read(cfg)
    if not spec.accepts_exactly(options):
        problem = f"is not for {{--decoder {spec.name}}}, whose output depends on the drafts"
        raise ConfigurationError("--sampling", None, problem, "use {--decoder greedy}, or one that accepts exactly")
    return spec, options

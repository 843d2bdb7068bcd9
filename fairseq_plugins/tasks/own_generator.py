"""The task's own `SequenceGenerator`: what ours takes over from it."""

from collections.abc import Callable
from typing import Any

from fairseq.search import BeamSearch
from fairseq.search import Sampling as FairseqSampling
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer

from fairseq_plugins.decoding.backends import Backend
from fairseq_plugins.decoding.constraints import repeat_ngram_size
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import MethodContext, MethodSpec
from fairseq_plugins.decoding.recording.stats import DecodingStats
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search.strategy import OPTIONS, SearchStrategy
from fairseq_plugins.errors import ConfigurationError, flag

# Settings that have the same name as an argument.
_TAKEN_OVER = (
    *("max_len_a", "max_len_b", "max_len", "min_len", "normalize_scores", "len_penalty", "unk_penalty", "temperature"),
    *("eos", "symbols_to_strip_from_output", "match_source_len", "lm_model", "lm_weight"),
)


def refuse_refinement_options(own: Any, args: Any) -> None:
    """Raise ConfigurationError for options that print what this generator's hypotheses do not have.

    fairseq-generate reads it only after it has decoded the first batch.
    """
    for name in ("print_step", "retain_iter_history"):
        if getattr(args, name, False) and isinstance(own, (SequenceGenerator, SequenceScorer)):
            raise ConfigurationError(flag(name), None, "is for models that refine their outputs", "leave it out")


def check_own(own: Any, task: Any, spec: MethodSpec, samples: bool) -> None:
    """Raise ConfigurationError for a task whose own generator is not fairseq's beam search, or its sampling."""
    is_plain = type(own) in (SequenceGenerator, SequenceGeneratorWithAlignment)
    searches = {FairseqSampling} if samples else {BeamSearch, *(OPTIONS if spec.searches_beams else ())}
    if not is_plain or type(own.search) not in searches:
        kind = type(own.search) if is_plain else type(own)
        problem = f"the task {type(task).__name__} decodes with a {kind.__name__}, not with fairseq's beam search"
        raise ConfigurationError("--decoder", spec.name, problem, "use {--decoder beam}")
    if own.lm_model is not None and not spec.searches_beams:
        raise ConfigurationError("--lm-path", None, "is not supported by this decoder", "use {--decoder fast-beam}")
    if repeat_ngram_size(own) and not spec.runs_verifier:
        problem = f"is not for {{--decoder {spec.name}}}"
        raise ConfigurationError("--no-repeat-ngram-size", None, problem, "leave it out or use {--decoder gad}")


def samples_of(args: Any) -> int:
    """Return the number of samples that fairseq's options draw for a sentence, 0 without `--sampling`."""
    if not getattr(args, "sampling", False):
        return 0
    return max(getattr(args, "beam", 5), getattr(args, "nbest", 1))


def sampling_of(own: SequenceGenerator) -> Sampling | None:
    """Return how a generator of fairseq draws tokens, None for a search."""
    search = own.search
    if not isinstance(search, FairseqSampling):
        return None
    return Sampling(max(search.sampling_topk, 0), max(search.sampling_topp, 0.0), own.temperature)


def strategy_of(own: SequenceGenerator) -> SearchStrategy | None:
    """Return fairseq's search and its language model, None for sampling and plain beam search."""
    search = None if type(own.search) in (FairseqSampling, BeamSearch) else own.search
    return None if search is None and own.lm_model is None else SearchStrategy(search, own.lm_model, own.lm_weight)


def generator_like(
    own: SequenceGenerator,
    context: MethodContext,
    spec: MethodSpec,
    choose: Callable[[], Backend],
    stats: DecodingStats,
    **more: Any,
) -> DraftVerifyGenerator:
    """Return our generator with the settings of a task's own; other arguments as for `DraftVerifyGenerator`."""
    generator = DraftVerifyGenerator(
        context.models,
        own.tgt_dict,
        drafter=context.drafter,
        spec=spec,
        choose=choose,
        stats=stats,
        beam_size=context.beam,
        no_repeat_ngram_size=context.no_repeat_ngram_size,
        search_strategy=own.search,
        begin_suppressed=getattr(own, "begin_suppressed", ()),
        **{name: getattr(own, name) for name in _TAKEN_OVER},
        **more,
    )
    generator.token_indices_to_suppress = own.token_indices_to_suppress
    return generator

"""Describe decoding methods: options, help, checks, tables and traces are derived from a `MethodSpec`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from torch import nn

from fairseq_plugins.decoding.kernel_module import AnyAcceptance, AnyDrafter, AnyLinear, GivenDrafts, KernelPolicy
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.reference.beam_verifier import BeamVerifier
from fairseq_plugins.decoding.reference.captured.graphed_verifiers import greedy_verifier
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search import GreedySearch, Search
from fairseq_plugins.decoding.reference.search.rules import Rule, exact
from fairseq_plugins.decoding.reference.search.strategy import SearchStrategy
from fairseq_plugins.decoding.reference.verifier import DrafterIsVerifier, Verifier
from fairseq_plugins.decoding.weights import Linear
from fairseq_plugins.models.block_nat import BlockNat

# Why a token was emitted, in traces.
TOP_1 = "top-1"  # drafted, and the verifier's best token (methods may have another name)
RELAXED = "relaxed"  # drafted, and accepted by a relaxed rule only
VERIFIER = "verifier"  # the verifier's own, not drafted
GIVEN = "given"  # from --prefix-size


@dataclass
class Method:
    """The parts of the loop in PyTorch. A new method has another drafter, rule or search, never another loop."""

    verifier: Verifier | BeamVerifier | DrafterIsVerifier
    drafter: Drafter
    search: Search


def draft_and_verify(context: "MethodContext", drafter: Drafter, rule: Rule = exact) -> Method:
    """Return the method in which the models of a context verify a drafter's drafts, with an acceptance rule."""
    trained = context.drafter
    layers = tuple(trained.decoder.reader.feature_layers) if trained is not None and trained.reads_features else ()
    search = GreedySearch(rule)
    verifier = greedy_verifier(
        search, context.models, context.engine, context.temperature, layers, sampling=context.sampling
    )
    return Method(verifier, drafter, search)


@dataclass(frozen=True)
class KernelMethod:
    """The parts of the loop in a module of kernels, objects of the module (kernel_module.py)."""

    weights: KernelWeights  # converts the verifier's weights
    drafter: AnyDrafter | None = None  # None for greedy decoding
    acceptance: AnyAcceptance | None = None  # a relaxed acceptance rule; None for exact acceptance
    policy: KernelPolicy | None = None  # chooses draft width and rows; None verifies every drafted token
    projection: Linear | None = None  # replaces the verifier's vocabulary projection; None keeps it
    head: tuple[AnyLinear, AnyLinear] | None = None  # layers before it (head 1 of blockwise)
    drafts: Callable[[Mapping[str, Any]], GivenDrafts] | None = None  # returns a batch's given drafts


@dataclass(frozen=True)
class MethodOptions:
    """Base class of a method's options; has none itself.

    Every field becomes an option of the task, `--like-this`, with the help text in `metadata["help"]`. A field without
    help is declared by the task or by another method.
    """

    @property
    def resolved(self) -> "MethodOptions":
        """These options with presets replaced by their values."""
        return self


@dataclass(frozen=True)
class MethodContext:
    """Models and settings that a method is built from."""

    models: Sequence[FairseqEncoderDecoderModel]  # the verifier, or the models of an ensemble
    drafter: BlockNat | None  # of `--drafter-path`, for methods that need one
    source: Dictionary | None  # None for speech
    target: Dictionary
    engine: Engine  # runs PyTorch's operations
    weights: KernelWeights | None = None  # converts weights for kernels; None turns the kernels off
    temperature: float = 1.0
    beam: int = 1  # hypotheses per sentence, for beam search
    is_traced: bool = False  # for a trace: run in PyTorch, and record the drafter's probabilities
    counts_survival: bool = False  # always draft and verify full blocks, and count accepted tokens
    no_repeat_ngram_size: int = 0
    sampling: Sampling | None = None  # draws tokens; None for the best ones
    strategy: SearchStrategy | None = None  # another beam search of fairseq's

    @property
    def kernel_weights(self) -> KernelWeights:
        """`weights`, for methods that run on kernels."""
        assert self.weights is not None
        return self.weights


def _no_check(*_: Any) -> None:
    """Accept any options, models and dictionaries."""


@dataclass(frozen=True)
class MethodSpec:
    """One decoding method."""

    name: str  # value of `--decoder`
    summary: str  # one line for `--help`
    drafts: str  # drafter and acceptance rule, for the table of methods
    accepts: str
    paper: str  # where the method was published
    options: type[MethodOptions] = MethodOptions
    # Builds the method for the loop in PyTorch; None for fairseq's own search.
    build: Callable[[MethodContext, Any], Method] | None = None
    # Builds the method for a module of kernels; raises `Unsupported` for options that these do not support. None if
    # they do not support the method.
    build_kernels: Callable[[MethodContext, Any], KernelMethod] | None = None
    aliases: tuple[str, ...] = ()
    # Whether it emits the token ids of fairseq's own search with the same model and options; in half precision those
    # of our `greedy`, at every batch size and block size. This is the definition of "lossless".
    is_lossless: bool = True
    # Whether these options accept exactly the verifier's tokens, as sampling requires.
    accepts_exactly: Callable[[Any], bool] = lambda options: True
    needs_drafter: Callable[[Any], bool] = lambda options: False  # whether these options need a trained drafter
    runs_verifier: bool = True  # whether a verifier checks the drafts
    searches_beams: bool = False  # whether it keeps `--beam` hypotheses per sentence instead of one
    verifier_class: type[nn.Module] | None = None  # None for any class that the engine can run
    # Returns the option, with its value, that copies source tokens into the output: dictionaries must be equal.
    copies_source: Callable[[Any], tuple[str, str] | None] = lambda options: None
    check: Callable[[Any], None] = _no_check  # refuses contradictory options before anything is loaded
    check_fit: Callable[[MethodContext, Any], None] = _no_check  # refuses models and dictionaries that do not fit
    accept_reason: str = TOP_1  # reason in traces for an accepted token that is the verifier's best
    relaxed_reason: str = RELAXED  # reason in traces for an accepted token that is not
    rows: Mapping[str, Mapping[str, Any]] | None = None  # rows of benchmark tables; None for one with default options
    order: int = 50  # sort key in lists of methods

    @property
    def reasons(self) -> set[str]:
        """All reasons that can occur in the method's traces."""
        return {self.accept_reason, self.relaxed_reason, TOP_1, VERIFIER, GIVEN}

    @property
    def table_rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Rows of benchmark tables: name and options of each."""
        return {self.name: {}} if self.rows is None else self.rows

    def read(self, cfg: Any) -> MethodOptions:
        """Return the method's options from the task's configuration; enumerations become text."""
        values = {option.name: getattr(cfg, option.name) for option in fields(self.options)}
        return self.options(**{name: plain(value) for name, value in values.items()})


def option(default: Any, help: str | None = None, ignored_by_other_methods: bool = False) -> Any:
    """Declare a field of options; without help for a method's that the task or another method declares.

    Other methods refuse a method's option unless it is `ignored_by_other_methods`.
    """
    metadata = {"help": help, "ignored_by_other_methods": ignored_by_other_methods}
    return field(default=default, metadata={} if help is None else metadata)


def plain(value: Any) -> Any:
    """Return a value of the task's configuration, an enumeration as text."""
    return str(value) if isinstance(value, Enum) else value


def fixed_width_option() -> Any:
    """Declare --fixed-width, for methods whose drafts a policy chooses."""
    return option(
        False,
        "draft in every iteration and verify all drafted tokens, as in the papers. Without it, on a CPU, a policy "
        "drafts only where that saves time, and verifies only tokens that are likely enough to be accepted",
    )

"""Describe decoding methods: options, help, checks, tables and traces are derived from a `MethodSpec`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from torch import nn

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.native.model import NativeWeights
from fairseq_plugins.decoding.search import Search
from fairseq_plugins.decoding.verifier import AnyVerifier
from fairseq_plugins.models.block_nat import BlockNat

# Reasons in traces why a token was emitted.
TOP_1 = "top-1"  # drafted, and the verifier's best token (default name)
RELAXED = "relaxed"  # drafted, and accepted by a relaxed rule only
VERIFIER = "verifier"  # the verifier's own, not drafted
GIVEN = "given"  # from --prefix-size


@dataclass
class Method:
    """The parts of the loop. A new method has another drafter, rule or search, never another loop."""

    verifier: AnyVerifier
    drafter: Drafter
    search: Search


@dataclass(frozen=True)
class NativeMethod:
    """The parts of the loop in the compiled kernels: objects of the extension module (engine/native/csrc/).

    Attributes:
        weights: format of the verifier's weights.
        drafter: None for greedy decoding.
        acceptance: a relaxed acceptance rule; None for exact acceptance.
        policy: chooses draft width and verified rows; None verifies every drafted token.
        projection: replaces the verifier's vocabulary projection; None keeps it.
        head: two layers before the projection (head 1 of blockwise decoding), or None.
        on_batch: called with every fairseq batch before it is decoded.
    """

    weights: NativeWeights
    drafter: Any = None
    acceptance: Any = None
    policy: Any = None
    projection: Any = None
    head: tuple[Any, Any] | None = None
    on_batch: Callable[[Mapping[str, Any]], None] | None = None


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
    """Models and settings that a method is built from.

    Attributes:
        models: the verifier, or the models of an ensemble.
        drafter: of `--drafter-path`, for methods that need one.
        source, target: dictionaries; `source` is None for speech.
        engine: runs PyTorch's operations.
        weights: weight format of the compiled kernels; None turns the kernels off.
        temperature: fairseq's `--temperature`.
        beam: hypotheses per sentence, for beam search.
        is_traced: record the drafter's probabilities for traces.
        counts_survival: always draft and verify full blocks, and count accepted tokens.
        no_repeat_ngram_size: fairseq's `--no-repeat-ngram-size`.
    """

    models: Sequence[FairseqEncoderDecoderModel]
    drafter: BlockNat | None
    source: Dictionary | None
    target: Dictionary
    engine: Engine
    weights: NativeWeights | None = None
    temperature: float = 1.0
    beam: int = 1
    is_traced: bool = False
    counts_survival: bool = False
    no_repeat_ngram_size: int = 0

    @property
    def native_weights(self) -> NativeWeights:
        """`weights`, for methods that run on the compiled kernels."""
        assert self.weights is not None
        return self.weights


def _no_check(*_: Any) -> None:
    """Accept any options, models and dictionaries."""


@dataclass(frozen=True)
class MethodSpec:
    """One decoding method.

    Attributes:
        name: value of `--decoder`.
        summary: one line for `--help`.
        drafts, accepts: drafter and acceptance rule, for the table of methods.
        paper: where the method was published.
        options: dataclass of the method's options.
        build: builds the method for the loop in PyTorch; None for fairseq's own search.
        build_native: builds the method for the compiled kernels; raises `NotNative` for options that they do not
            support. None if they do not support the method.
        aliases: further names.
        is_lossless: whether it emits the token ids of fairseq's own search with the same model and options; in half
            precision those of our `greedy`, at every batch size and block size. This is the definition of "lossless".
        needs_drafter: whether the method needs a trained drafter, given its options.
        runs_verifier: whether a verifier checks the drafts.
        searches_beams: whether it keeps `--beam` hypotheses per sentence instead of one.
        verifier_class: required class of the verifier, None for any that the engine can run.
        copies_source: the option, with its value, that copies source tokens into the output; None if none does.
            Copying requires equal dictionaries.
        check: refuses contradictory options before anything is loaded.
        check_fit: refuses models and dictionaries that do not fit the method.
        accept_reason: reason in traces for an accepted token that is the verifier's best.
        relaxed_reason: reason in traces for an accepted token that is not.
        rows: rows of benchmark tables: name and options of each.
        order: sort key in lists of methods.
    """

    name: str
    summary: str
    drafts: str
    accepts: str
    paper: str
    options: type[MethodOptions] = MethodOptions
    build: Callable[[MethodContext, Any], Method] | None = None
    build_native: Callable[[MethodContext, Any], NativeMethod] | None = None
    aliases: tuple[str, ...] = ()
    is_lossless: bool = True
    needs_drafter: Callable[[Any], bool] = lambda options: False
    runs_verifier: bool = True
    searches_beams: bool = False
    verifier_class: type[nn.Module] | None = None
    copies_source: Callable[[Any], str | None] = lambda options: None
    check: Callable[[Any], None] = _no_check
    check_fit: Callable[[MethodContext, Any], None] = _no_check
    accept_reason: str = TOP_1
    relaxed_reason: str = RELAXED
    rows: Mapping[str, Mapping[str, Any]] | None = None
    order: int = 50

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
    """Declare a field of a method's options.

    Args:
        default: value of the option if it is not given.
        help: help text; None if the task or another method declares the option.
        ignored_by_other_methods: other methods ignore the option instead of refusing it.
    """
    metadata = {"help": help, "ignored_by_other_methods": ignored_by_other_methods}
    return field(default=default, metadata={} if help is None else metadata)


def flag(name: str) -> str:
    """Return the command-line option of a field."""
    return "--" + name.replace("_", "-")


def plain(value: Any) -> Any:
    """Return a value of the task's configuration, an enumeration as text."""
    return str(value) if isinstance(value, Enum) else value

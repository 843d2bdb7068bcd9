"""What makes a decoding method, and what it says of itself: options, help, checks, tables and traces follow from it."""

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

# Why a token is in the output, for traces. A drafted one that is also the verifier's best, by default:
TOP_1 = "top-1"
# ... one that is not, but good enough for a relaxed rule:
RELAXED = "relaxed"
# ... one that was not drafted, and one that `--prefix-size` gave:
VERIFIER = "verifier"
GIVEN = "given"


@dataclass
class Method:
    """The parts that the loop puts together; a new method has another drafter, rule or search, never another loop."""

    verifier: AnyVerifier
    drafter: Drafter
    search: Search


@dataclass(frozen=True)
class NativeMethod:
    """The parts that the compiled kernels put together: objects of their module (engine/native/csrc/).

    Attributes:
        weights: how the verifier is held.
        drafter: None for none.
        acceptance: what stands beside the verifier's best token; None for exact acceptance.
        policy: what decides how much is drafted and verified; None to verify all that is drafted.
        projection: of the verifier to the vocabulary, None for its own.
        head: two layers before the projection (head 1 of blockwise decoding); None for none.
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
    """The options of a method that has none, and what those of others begin with.

    Every field is an option of the task, `--like-this`, with what it does in `metadata["help"]`. One without help is
    declared by the task itself, or by another method.
    """

    @property
    def resolved(self) -> "MethodOptions":
        """The same with presets spelled out."""
        return self


@dataclass(frozen=True)
class MethodContext:
    """What a method is built from.

    Attributes:
        models: the verifier, or several as an ensemble.
        drafter: of `--drafter-path`, for methods that need one.
        source, target: dictionaries; that of the source is None where it is speech.
        engine: what PyTorch's operations run with.
        weights: how the compiled kernels hold weights; None where they are not to be used.
        temperature: fairseq's `--temperature`.
        beam: hypotheses of a sentence, for methods that keep several.
        is_traced: a trained drafter is to say how likely its tokens are, for traces.
        counts_survival: draft and verify all that a trained drafter can draft, and count what is accepted.
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

    @property
    def native_weights(self) -> NativeWeights:
        """How the compiled kernels hold weights, where they are used."""
        assert self.weights is not None
        return self.weights


def _nothing(*_: Any) -> None:
    """No check."""


@dataclass(frozen=True)
class MethodSpec:
    """One decoding method.

    Attributes:
        name: value of `--decoder`.
        summary: one line for `--help`.
        drafts: who drafts, for the table of methods; `accepts`: what is accepted.
        paper: where it comes from.
        options: its own options.
        build: puts it together for the loop in PyTorch; None for fairseq's own search.
        build_native: puts it together for the compiled kernels; raises `NotNative` for options that they do not know.
            None where they do not know the method.
        aliases: further names.
        is_lossless: whether it gives the token ids of fairseq's own search with the same model and options; in half
            precision those of our `greedy`, at every batch size and block size. This is what "lossless" means
            everywhere.
        needs_drafter: whether a trained drafter takes part, given the options.
        runs_verifier: whether a verifier has the last word.
        searches_beams: whether it keeps `--beam` hypotheses of every sentence; others keep one.
        verifier_class: what the verifier must be, None for any that the engine can run.
        copies_source: what asks for source tokens in the output, an option with its value; None where nothing does.
            For it, dictionaries must be the same.
        check: refuses options that contradict each other, before anything is loaded.
        check_fit: refuses models and dictionaries that do not fit the method.
        agreed: for traces, why a drafted token is in the output that is the verifier's best; `relaxed`: that is not.
        rows: of benchmark tables: name and options of each.
        order: where it stands in lists.
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
    check: Callable[[Any], None] = _nothing
    check_fit: Callable[[MethodContext, Any], None] = _nothing
    agreed: str = TOP_1
    relaxed: str = RELAXED
    rows: Mapping[str, Mapping[str, Any]] | None = None
    order: int = 50

    @property
    def reasons(self) -> set[str]:
        """Every reason that its traces may give."""
        return {self.agreed, self.relaxed, TOP_1, VERIFIER, GIVEN}

    @property
    def table_rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Rows of benchmark tables, name and options of each."""
        return {self.name: {}} if self.rows is None else self.rows

    def read(self, cfg: Any) -> MethodOptions:
        """Its options as the task's configuration has them; enumerations become text."""
        values = {option.name: getattr(cfg, option.name) for option in fields(self.options)}
        return self.options(**{name: plain(value) for name, value in values.items()})


def option(default: Any, help: str | None = None, lenient: bool = False) -> Any:
    """A field of a method's options.

    Args:
        default: its value where it is not given.
        help: what it does; None where the task or another method declares it.
        lenient: other methods ignore it where they are given it, instead of refusing it.
    """
    return field(default=default, metadata={} if help is None else {"help": help, "lenient": lenient})


def flag(name: str) -> str:
    """The command-line option of a field."""
    return "--" + name.replace("_", "-")


def plain(value: Any) -> Any:
    """A value of the task's configuration; that of an enumeration as text."""
    return str(value) if isinstance(value, Enum) else value

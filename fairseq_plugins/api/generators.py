"""Generators that a model keeps for reuse, and the options that a call may set."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from fairseq_plugins.api.options import (
    CALL,
    CallOptions,
    SamplingOptions,
    SearchOptions,
    TokenOptions,
    check_arguments,
    check_names,
    names,
)
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.decoding.method import MethodSpec
from fairseq_plugins.decoding.reference.alignment import align_to_text
from fairseq_plugins.decoding.search_numbers import check_beam_groups, check_search_numbers, next_multiple
from fairseq_plugins.decoding.suppression import SuppressedTokens, check_end, suppressed_tokens
from fairseq_plugins.errors import ConfigurationError

BATCH_SIZE = 32
_DEFAULT_BEAM = 5  # as in fairseq-generate
_KINDS = 8  # of generators that a model keeps

# Attributes of fairseq's generators for these options; a generator reads them for every batch.
_ATTRIBUTES = {"lenpen": "len_penalty", "unkpen": "unk_penalty", "unnormalized": "normalize_scores"}
_TOKENS = sorted(names(TokenOptions))
_OPTIONS = sorted(names(SearchOptions) - names(TokenOptions))
_DRAWING = sorted(names(SamplingOptions) - {"seed"})


@dataclass(frozen=True)
class CallSearch:
    """`CallOptions` with all defaults filled in."""

    beam: int
    num_hypotheses: int
    batch_size: int
    options: Mapping[str, Any]
    drawing: Mapping[str, Any]  # those of `SamplingOptions` that need a generator of their own
    seed: int
    alignments: bool
    constraints: str | None  # the order of phrases that outputs contain; None if there are none
    suppressed: SuppressedTokens
    needs_scores: bool

    @property
    def samples(self) -> bool:
        """Whether outputs are drawn."""
        return bool(self.drawing["sampling"])


class Generators:
    """Pool of the generators of a model and its decoding method: each serves one call at a time.

    Attributes:
        added: numbers of tokens before and after those of a text, such as its language and EOS.
    """

    added = 0, 1

    def __init__(self, session: TaskSession, spec: MethodSpec) -> None:
        self._session, self._spec = session, spec
        # Generators not in use, by what `_kind` returns, used last at the end. An unfinished stream keeps its own.
        self._idle: dict[tuple[Any, ...], list[Any]] = {}
        self._defaults = {name: session.cfg.generation[name] for name in _OPTIONS}
        self._drawing = {name: session.cfg.generation[name] for name in _DRAWING}
        self._seed = int(session.cfg.task.seed)
        self._groups = session.cfg.generation.diverse_beam_groups
        # Other tasks than ours have a Namespace.
        self._tokens = {name: getattr(session.cfg.task, name, None) for name in _TOKENS}

    @property
    def searches_beams(self) -> bool:
        """Whether the decoder keeps several hypotheses."""
        return self._spec.build is None or self._spec.searches_beams

    def search(self, options: Mapping[str, Any], is_constrained: bool = False, needs_scores: bool = True) -> CallSearch:
        """Return a call's `CallOptions`, checked and with defaults; it may have constraints, and need scores.

        Raises ConfigurationError for a beam that the decoder does not support, more hypotheses than the beam keeps, an
        option that does not exist or only `load` takes, and for constraints where none are possible.
        """
        check_names(options, CALL)
        given = check_arguments(options, CallOptions)
        beam, num_hypotheses = given.pop("beam", None), given.pop("num_hypotheses", 1)
        drawing = {name: given.pop(name, default) for name, default in self._drawing.items()}
        check_search_numbers(SimpleNamespace(**drawing))
        suppressed = self._suppressed({name: given.pop(name, default) for name, default in self._tokens.items()})
        constraints = self._constraints(given.pop("constraint_order", None), is_constrained, drawing["sampling"])
        if drawing["sampling"] and self._spec.build is not None:
            size = max(beam or 1, num_hypotheses)
        elif self.searches_beams:
            size = _DEFAULT_BEAM if beam is None else beam
            check_beam_groups(SimpleNamespace(beam=size, diverse_beam_groups=self._groups))
        elif beam in (None, 1):
            size = 1
        else:
            problem = f"{self._spec.name} keeps one hypothesis"
            raise ConfigurationError("--beam", beam, problem, "use {--decoder fast-beam}")
        if num_hypotheses > size:
            remedy = "raise {--beam}" if self.searches_beams else "use {--decoder fast-beam}"
            raise ConfigurationError("--nbest", num_hypotheses, f"{self._spec.name} keeps {size}", remedy)
        return CallSearch(
            size,
            num_hypotheses,
            batch_size=given.pop("batch_size", BATCH_SIZE),
            seed=given.pop("seed", self._seed),
            alignments=given.pop("alignments", False),
            options={**self._defaults, **given},  # those that are left
            drawing=drawing,
            constraints=constraints,
            suppressed=suppressed,
            needs_scores=needs_scores,
        )

    def any_search(self) -> CallSearch:
        """Return the options of a call that every model of this decoder can do."""
        return self.search({"beam": next_multiple(_DEFAULT_BEAM, self._groups)} if self.searches_beams else {})

    def _suppressed(self, options: dict[str, Any]) -> SuppressedTokens:
        """Return the suppressed tokens of a call."""
        target = self._session.task.target_dictionary
        found = suppressed_tokens(options, target)
        if self._spec.build is None:
            check_end(found.everywhere, target.eos())
            if found.at_beginning:
                problem = "is not for fairseq's own search"
                raise ConfigurationError("--begin-suppress-tokens", None, problem, "use {--decoder fast-beam}")
        return found

    def _constraints(self, order: str | None, is_constrained: bool, samples: bool) -> str | None:
        """Return the order of a call's constraints; raise ConfigurationError where none are possible."""
        if not is_constrained:
            if order is not None:
                raise ConfigurationError("--constraint-order", order, "is for {--constraints}, which are not given")
            return None
        if not self.searches_beams:
            problem = f"{self._spec.name} keeps one hypothesis"
            raise ConfigurationError("--constraints", None, problem, "use {--decoder fast-beam}")
        generation = self._session.cfg.generation
        others = {
            "sampling": samples,
            "diverse_beam_groups": self._groups > 0,
            "match_source_len": generation.match_source_len,
            "diversity_rate": generation.diversity_rate > -1,
        }
        for name, is_set in others.items():
            if is_set:
                problem = f"are not for {name}, which is another search"
                raise ConfigurationError("--constraints", None, problem, "leave one out")
        return order or "ordered"

    def take(self, search: CallSearch) -> Any:
        """Return an unused generator, set to the options of this call."""
        kind = self._kind(search)
        idle = self._idle[kind] = self._idle.pop(kind, [])
        for unused in list(self._idle)[:-_KINDS]:  # else each new temperature would take memory for good
            del self._idle[unused]
        generator = idle.pop() if idle else self._build(search)
        generator.kind = kind
        configure(generator, search)
        return generator

    def _build(self, search: CallSearch) -> Any:
        alignment = "hard" if search.alignments else None
        generator = self._session.generator(
            beam=search.beam, nbest=1, print_alignment=alignment, constraints=search.constraints, **search.drawing
        )
        if search.alignments:
            generator.extract_alignment = partial(align_to_text, self.added)
        return generator

    def _kind(self, search: CallSearch) -> tuple[Any, ...]:
        """Return what a generator is built with."""
        is_any = search.samples and self._spec.build is not None  # draws any number
        return 1 if is_any else search.beam, search.alignments, search.constraints, *search.drawing.values()

    def batch_invariant(self, beam: int) -> Any:
        """Return a new generator whose results do not depend on the batch, to the last bit, in fp32 either."""
        decoding = self._session.task.decoding
        decoding.batch_invariant = True
        try:
            beam = next_multiple(beam, self._groups) if self.searches_beams else 1
            return self._session.generator(beam=beam, nbest=1)
        finally:
            decoding.batch_invariant = False

    def give_back(self, generator: Any) -> None:
        """Return a generator to the pool."""
        self._idle.setdefault(generator.kind, []).append(generator)


def configure(generator: Any, search: CallSearch) -> None:
    """Set the options of a call in a generator."""
    search.suppressed.set_in(generator)
    generator.samples, generator.seed = search.beam if search.samples else 0, search.seed
    generator.most_aligned = search.num_hypotheses
    generator.needs_scores = search.needs_scores
    for name, value in search.options.items():
        setattr(generator, _ATTRIBUTES.get(name, name), not value if name == "unnormalized" else value)

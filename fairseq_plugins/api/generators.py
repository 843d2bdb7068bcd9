"""Generators that a model keeps ready, and what a call may change of them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from fairseq.dataclass.configs import GenerationConfig
from omegaconf import OmegaConf

from fairseq_plugins.api.wrapping import set_option
from fairseq_plugins.commands.session import Session
from fairseq_plugins.decoding.method import MethodSpec
from fairseq_plugins.errors import ConfigurationError

BATCH_SIZE = 32
# As fairseq-generate.
_DEFAULT_BEAM = 5


class SearchOptions(TypedDict, total=False):
    """Options of a call, named as fairseq's; those that are left out are as `load` was told.

    Attributes:
        max_len_a, max_len_b: no output is longer than max_len_a times the tokens of the batch's longest source, plus
            max_len_b.
        min_len: nor shorter than this.
        lenpen: length penalty; above 1 long hypotheses win.
        unnormalized: compare hypotheses by the sums of their scores.
        unkpen: what the unknown word loses.
    """

    max_len_a: float
    max_len_b: int
    min_len: int
    lenpen: float
    unnormalized: bool
    unkpen: float


class CallOptions(SearchOptions, total=False):
    """Options of a call that translates.

    Attributes:
        beam: hypotheses of a sentence, for decoders that search with several; default 5, as fairseq-generate.
        num_hypotheses: how many of them are returned, the others as `Translation.alternatives`; default 1.
        batch_size: sentences decoded together, of similar length; default 32. The output of lossless decoders does not
            depend on it.
    """

    beam: int | None
    num_hypotheses: int
    batch_size: int


# What fairseq's generators call these options: all that they read anew for every batch.
_ATTRIBUTES = {"lenpen": "len_penalty", "unkpen": "unk_penalty", "unnormalized": "normalize_scores"}
_OPTIONS = list(SearchOptions.__annotations__)


@dataclass(frozen=True)
class Search:
    """What a call asks for: `CallOptions`, all of which are set."""

    beam: int
    num_hypotheses: int
    batch_size: int
    options: Mapping[str, Any]


class Generators:
    """Builds generators, and lends them to one call at a time.

    Args:
        session: the model.
        spec: its decoding method.
    """

    def __init__(self, session: Session, spec: MethodSpec) -> None:
        self._session, self._spec = session, spec
        # Beam -> generators that are not in use. Streams that are under way keep theirs.
        self._idle: dict[int, list[Any]] = {}
        self._defaults = {name: session.cfg.generation[name] for name in _OPTIONS}

    @property
    def searches_beams(self) -> bool:
        """Whether several hypotheses are kept."""
        return self._spec.build is None or self._spec.searches_beams

    def search(self, options: Mapping[str, Any]) -> Search:
        """Return what a call asks for, checked.

        Args:
            options: `CallOptions`.

        Raises:
            ConfigurationError: for a beam that the decoder has not, more hypotheses than it has, and options that a
                call cannot have.
        """
        given = {"beam": None, "num_hypotheses": 1, "batch_size": BATCH_SIZE, **options}
        beam, num_hypotheses, batch_size = (given.pop(name) for name in ("beam", "num_hypotheses", "batch_size"))
        if batch_size < 1:
            raise ConfigurationError(f"batch_size={batch_size}: give at least 1")
        if beam is not None and beam < 1:
            raise ConfigurationError(f"beam={beam}: give at least 1")
        if not self.searches_beams and beam not in (None, 1):
            raise ConfigurationError(f'beam={beam}: {self._spec.name} keeps one hypothesis; use decoder="fast-beam"')
        size = 1 if not self.searches_beams else _DEFAULT_BEAM if beam is None else beam
        if num_hypotheses < 1:
            raise ConfigurationError(f"num_hypotheses={num_hypotheses}: give at least 1")
        if num_hypotheses > size:
            remedy = "raise beam=" if self.searches_beams else 'use decoder="fast-beam"'
            raise ConfigurationError(f"num_hypotheses={num_hypotheses}: {self._spec.name} keeps {size}; {remedy}")
        return Search(size, num_hypotheses, batch_size, {**self._defaults, **_checked(given)})

    def take(self, search: Search) -> Any:
        """Return a generator that no other call uses, set to the options of this one."""
        idle = self._idle.setdefault(search.beam, [])
        generator = idle.pop() if idle else self._session.generator(beam=search.beam, nbest=1)
        for name, value in search.options.items():
            setattr(generator, _ATTRIBUTES.get(name, name), not value if name == "unnormalized" else value)
        return generator

    def give_back(self, generator: Any) -> None:
        """Keep a generator for other calls."""
        self._idle.setdefault(generator.beam_size, []).append(generator)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    if not options:
        return {}
    known = {declared.name for declared in fields(GenerationConfig)}
    cfg = OmegaConf.structured(GenerationConfig())
    for name, value in options.items():
        if name in known and name not in _OPTIONS:
            raise ConfigurationError(f"{name}: is not for a call; give it to load")
        set_option(cfg, name, value, _OPTIONS)
    return {name: cfg[name] for name in options}

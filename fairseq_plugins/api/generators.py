"""Generators that a model keeps for reuse, and the options that a call may set."""

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
_DEFAULT_BEAM = 5  # as in fairseq-generate


class SearchOptions(TypedDict, total=False):
    """Options of a call, named as in fairseq; by default they are those given to `load`.

    Attributes:
        max_len_a, max_len_b: maximum output length, max_len_a times the batch's longest source plus max_len_b tokens.
        min_len: minimum output length in tokens.
        lenpen: length penalty; above 1 favours long hypotheses.
        unnormalized: rank hypotheses by the sum of their tokens' scores.
        unkpen: penalty of the unknown word, subtracted from its score.
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
        beam: hypotheses per sentence, for decoders that keep several; default 5, as in fairseq-generate.
        num_hypotheses: hypotheses to return, all but the best as `Translation.alternatives`; default 1.
        batch_size: sentences of similar length decoded together; default 32. Does not change the output of lossless
            decoders.
    """

    beam: int | None
    num_hypotheses: int
    batch_size: int


# Attributes of fairseq's generators for these options; a generator reads them for every batch.
_ATTRIBUTES = {"lenpen": "len_penalty", "unkpen": "unk_penalty", "unnormalized": "normalize_scores"}
_OPTIONS = list(SearchOptions.__annotations__)


@dataclass(frozen=True)
class Search:
    """`CallOptions` with all defaults filled in."""

    beam: int
    num_hypotheses: int
    batch_size: int
    options: Mapping[str, Any]


class Generators:
    """Pool of generators: each serves one call at a time.

    Args:
        session: the model.
        spec: its decoding method.
    """

    def __init__(self, session: Session, spec: MethodSpec) -> None:
        self._session, self._spec = session, spec
        # Beam -> generators not in use. An unfinished stream keeps its own.
        self._idle: dict[int, list[Any]] = {}
        self._defaults = {name: session.cfg.generation[name] for name in _OPTIONS}

    @property
    def searches_beams(self) -> bool:
        """Whether the decoder keeps several hypotheses."""
        return self._spec.build is None or self._spec.searches_beams

    def search(self, options: Mapping[str, Any]) -> Search:
        """Return a call's options, checked and with defaults.

        Args:
            options: `CallOptions`.

        Raises:
            ConfigurationError: for a beam that the decoder does not support, more hypotheses than the beam keeps, or
                an option that only `load` takes.
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
        """Return an unused generator, set to the options of this call."""
        idle = self._idle.setdefault(search.beam, [])
        generator = idle.pop() if idle else self._session.generator(beam=search.beam, nbest=1)
        for name, value in search.options.items():
            setattr(generator, _ATTRIBUTES.get(name, name), not value if name == "unnormalized" else value)
        return generator

    def give_back(self, generator: Any) -> None:
        """Return a generator to the pool."""
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

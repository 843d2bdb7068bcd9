"""Generators that a model keeps for reuse, and the options that a call may set."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairseq_plugins.api.options import CALL, CallOptions, SearchOptions, check_arguments, check_names, names
from fairseq_plugins.commands.session import Session
from fairseq_plugins.decoding.method import MethodSpec
from fairseq_plugins.errors import ConfigurationError

BATCH_SIZE = 32
_DEFAULT_BEAM = 5  # as in fairseq-generate

# Attributes of fairseq's generators for these options; a generator reads them for every batch.
_ATTRIBUTES = {"lenpen": "len_penalty", "unkpen": "unk_penalty", "unnormalized": "normalize_scores"}
_OPTIONS = sorted(names(SearchOptions))


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
                an option that does not exist or only `load` takes.
        """
        check_names(options, CALL)
        given = {"beam": None, "num_hypotheses": 1, "batch_size": BATCH_SIZE, **check_arguments(options, CallOptions)}
        beam, num_hypotheses, batch_size = (given.pop(name) for name in ("beam", "num_hypotheses", "batch_size"))
        if not self.searches_beams and beam not in (None, 1):
            raise ConfigurationError(f'beam={beam}: {self._spec.name} keeps one hypothesis; use decoder="fast-beam"')
        size = 1 if not self.searches_beams else _DEFAULT_BEAM if beam is None else beam
        if num_hypotheses > size:
            remedy = "raise beam=" if self.searches_beams else 'use decoder="fast-beam"'
            raise ConfigurationError(f"num_hypotheses={num_hypotheses}: {self._spec.name} keeps {size}; {remedy}")
        return Search(size, num_hypotheses, batch_size, {**self._defaults, **given})

    def take(self, search: Search) -> Any:
        """Return an unused generator, set to the options of this call."""
        idle = self._idle.setdefault(search.beam, [])
        generator = idle.pop() if idle else self._session.generator(beam=search.beam, nbest=1)
        configure(generator, search)
        return generator

    def batch_invariant(self, beam: int) -> Any:
        """Return a new generator whose results do not depend on the batch, to the last bit, in fp32 either."""
        decoding = self._session.task.decoding
        decoding.batch_invariant = True
        try:
            return self._session.generator(beam=beam if self.searches_beams else 1, nbest=1)
        finally:
            decoding.batch_invariant = False

    def give_back(self, generator: Any) -> None:
        """Return a generator to the pool."""
        self._idle.setdefault(generator.beam_size, []).append(generator)


def configure(generator: Any, search: Search) -> None:
    """Set the options of a call in a generator."""
    for name, value in search.options.items():
        setattr(generator, _ATTRIBUTES.get(name, name), not value if name == "unnormalized" else value)

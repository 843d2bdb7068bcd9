"""The models of a server. Each has a service for every way of decoding that requests ask for."""

import logging
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fairseq_plugins.api import Model, Service, load
from fairseq_plugins.api.loading import with_decoder
from fairseq_plugins.api.service import MAX_BEAM, MAX_SENTENCES
from fairseq_plugins.data.sentences import split_text
from fairseq_plugins.errors import ConfigurationError, OutOfMemory
from fairseq_plugins.serving.errors import RequestError
from fairseq_plugins.shared.languages import split_pair

logger = logging.getLogger("spec-dec-serve")

Way = Literal["default", "beams", "drafts"]
# Methods that decode in a way; the first one is made where the model's own is none of them.
_DECODERS: dict[Way, tuple[str, ...]] = {"beams": ("fast-beam", "beam"), "drafts": ("reuse",)}
State = Literal["loading", "ready", "broken"]


@dataclass
class ServedModel:
    """A model of the server, which loads in the background; one that is broken harms no other.

    Attributes:
        folder: as for `load`.
        languages: source and target, if given; else the model's own.
        options: of `load`.
        beam: of requests that name none; None for that of the model's decoder.
        max_waiting, max_beam, threads: of its services.
        state, problem: whether it can translate, and why not.
        is_wrong: whether its files or options are why not: it could not be loaded later either.
        unsubmitted: sentences of requests that its services do not have yet.
    """

    folder: str
    languages: tuple[str, str] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    beam: int | None = None
    max_waiting: int = MAX_SENTENCES
    max_beam: int = MAX_BEAM
    threads: int | None = None
    state: State = "loading"
    problem: str = "is loading"
    is_wrong: bool = False
    unsubmitted: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._models: dict[Way, Model] = {}
        self._services: dict[Way, Service] = {}
        self._is_closed = False

    @property
    def name(self) -> str:
        """Name in messages and metrics, such as "en-de"."""
        return Path(self.folder).name if self.languages is None else "-".join(self.languages)

    @property
    def model(self) -> Model:
        """The model with its default decoder; raises RequestError unless it is ready."""
        model = self._models.get("default") if self.state == "ready" else None
        if model is None:  # also if `close` clears them meanwhile, in another thread
            raise RequestError(503, f"the model {self.name} {self.problem}", 2 if self.state == "loading" else None)
        return model

    @property
    def is_greedy(self) -> bool:
        """Whether its decoder gives the output of greedy search, as drafts do."""
        model = self.model
        return model._spec.is_lossless and not model._generators.searches_beams

    @property
    def sentences(self) -> int:
        """Number of sentences that have not ended."""
        return self.unsubmitted + sum(service.sentences for service in list(self._services.values()))

    def load(self) -> None:
        """Load the model, and translate a word so that the first request is fast."""
        if self.state == "ready":
            return
        started = time.perf_counter()
        try:
            model = self._load()
            if self.languages is None:
                self.languages = (model.source_lang, model.target_lang)
            with self._lock:
                self._models["default"] = model
            service = self.service("default")
            split_text("1. 2.", self.languages[0])
            service.submit("1", beam=self.beam if model._generators.searches_beams else None).result()
        except Exception as error:
            problem = f"cannot be loaded: {' '.join(str(error).split())}"
            if not self._is_closed:
                logger.error(f"model {self.folder}: {problem}")
            # Clients see no path of the server.
            for folder in (os.path.abspath(self.folder), self.folder):
                problem = problem.replace(folder, Path(folder).name)
            self.is_wrong = isinstance(error, ConfigurationError) and not isinstance(error, OutOfMemory)
            self.state, self.problem = "broken", problem
            home = Path(self.folder)
            self.languages = self.languages or split_pair(home.name.rpartition(".")[2], home)
            return
        seconds = time.perf_counter() - started
        with self._lock:
            if self._is_closed:  # meanwhile
                return
            self.state, self.problem = "ready", ""
        logger.info(f"model {self.name}: {model.decoder}, {service.engine}; {seconds:.1f} s")

    def _load(self) -> Model:
        if self.languages is None:
            try:
                return load(self.folder, threads=self.threads, **self.options)
            except ConfigurationError as error:
                if "--source-lang" not in f"{error.option} {error.remedy}":
                    raise
                problem = error.problem if error.option is None else error.remedy
                raise ConfigurationError("MODEL", self.folder, problem, f"give SOURCE-TARGET={self.folder}") from error
        source, target = self.languages
        try:
            return load(self.folder, threads=self.threads, source_lang=source, target_lang=target, **self.options)
        except ConfigurationError as error:
            if error.option in ("--source-lang", "--target-lang"):  # of a multilingual model
                raise
            # Of a model of one pair of languages, they are the server's names only.
            return load(self.folder, threads=self.threads, **self.options)

    def has(self, way: Way) -> bool:
        """Whether a service is there already: otherwise `service` takes a second."""
        return self._working(way) is not None

    def _working(self, way: Way) -> Service | None:
        service = self._services.get(way)  # once: `close` clears them in another thread
        return None if service is None or service.has_failed else service

    def service(self, way: Way) -> Service:
        """Return the service that decodes in this way; make it at first, and renew one that has failed."""
        if service := self._working(way):  # without the lock, held while another one is made
            return service
        with self._lock:
            if self._is_closed:
                raise RequestError(503, "the server is shutting down", retry_after=5)
            if way not in self._services:
                if way not in self._models:
                    model, decoder = self._models["default"], self.decoder(way)
                    self._models[way] = model if model.decoder == decoder else with_decoder(model, decoder)
                self._services[way] = self._models[way].service(self.threads, self.max_waiting, self.max_beam)
            self._services[way].renew()
            return self._services[way]

    def decoder(self, way: Way) -> str:
        """Name of the method that decodes in this way."""
        own = self.model.decoder
        return own if way == "default" or own in _DECODERS[way] else _DECODERS[way][0]

    def description(self) -> dict[str, Any]:
        """Return what /v1/models says of it."""
        source, target = self.languages or (None, None)
        values: dict[str, Any] = {"source": source, "target": target, "state": self.state, "problem": self.problem}
        if self.state == "ready":
            model, service = self.model, self.service("default")
            values |= {"decoder": model.decoder, "lossless": model.is_lossless, "engine": service.engine}
        return values

    def close(self) -> None:
        """Take no more sentences, and drop those that have not ended: their requests get 503."""
        with self._lock:
            self._is_closed = True
            services = list(self._services.values())
        for service in services:
            service.close()
        self.state, self.problem = "broken", "is closed"
        self._services.clear()
        self._models.clear()


class Registry:
    """The models of a server, by languages."""

    def __init__(self, models: list[ServedModel]) -> None:
        self.models = models

    def load(self) -> None:
        """Load the models; one with the languages of an earlier one that is ready could not be named, and is broken."""
        for number, model in enumerate(self.models):
            model.load()
            earlier = (one for one in self.models[:number] if one.state == "ready")
            first = next((one for one in earlier if one.languages == model.languages), None)
            if first is not None and model.languages is not None:
                model.close()
                folder = Path(model.folder).name
                model.problem = (
                    f"has the languages of {Path(first.folder).name}: name others, as SOURCE-TARGET={folder}"
                )
                logger.error(f"model {model.folder}: {model.problem}")

    def named(self) -> dict[str, ServedModel]:
        """Return the models by name; further ones of the same name have a number.

        The model that answers has the name without a number, as in the counts of sentences. If the first of two models
        breaks, that is the second.
        """
        found: dict[str, ServedModel] = {}
        for model in self._best_first():
            number = sum(model.name == other.name for other in found.values())
            found[f"{model.name} ({number + 1})" if number else model.name] = model
        return found

    def _best_first(self) -> list[ServedModel]:
        """Return the models; of equal languages the first counts, if it is not broken."""
        return sorted(self.models, key=lambda model: model.state == "broken")

    def ready(self) -> list[ServedModel]:
        """Return the models that can translate."""
        return [model for model in self.models if model.state == "ready"]

    def find(self, source: str | None, target: str) -> ServedModel:
        """Return the model of a pair of languages; without source (or "auto"), the only one of the target.

        Raises RequestError if there is none, or more than one.
        """
        pairs = ((model.languages, model) for model in reversed(self._best_first()))
        targets = {languages[0]: model for languages, model in pairs if languages and languages[1] == target}
        if targets and source in (None, "", "auto"):
            if len(targets) > 1:
                raise RequestError(400, f"source auto: several models translate into {target}; name {_or(targets)}")
            (model,) = targets.values()
            return model
        return (
            targets[source] if source in targets else self._refuse(target if source is None or not targets else source)
        )

    def _refuse(self, language: str) -> ServedModel:
        for model in self.models:
            if model.state == "loading":
                _ = model.model  # raises
        pairs = {"-".join(model.languages) for model in self.ready() if model.languages is not None}
        raise RequestError(400, f"{language} is not supported; this server has {_or(pairs) or 'no model'}")


def _or(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))

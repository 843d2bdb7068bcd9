"""A service: sentences of many threads join and leave one running batch."""

import os
import queue
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from fairseq_plugins.api.options import CallOptions, SearchOptions, ServiceArguments, check_arguments
from fairseq_plugins.api.results import Step, Translation
from fairseq_plugins.api.sentences import TargetTexts
from fairseq_plugins.api.service_engines import ContinuousEngine, Job, OnStep, WholeBatches
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.errors import ConfigurationError

if TYPE_CHECKING:
    from fairseq_plugins.api.model import Model

MAX_BEAM = 8
"""Largest beam of a request, unless the service is made with another one."""
MAX_SENTENCES = 1024
"""Most sentences of a service that have not ended."""


class ServiceFull(RuntimeError):
    """A service has as many sentences as it takes: try again later."""


class ServiceClosed(RuntimeError):
    """A service takes no more sentences, or has dropped this one."""


class ServiceFailed(RuntimeError):
    """The running batch of a service has failed: call `Service.renew`, and submit again."""


class Service:
    """Translates sentences of many threads in one running batch; made by `Model.service`.

    A sentence starts as soon as there is room, with options of its own, and its translation is the one that it has
    alone. What the running batch of a backend does not take (docs/python.md) is decoded batch by batch, waiting
    sentences with equal options together.

    Args:
        model: any.
        threads: of the CPU; default: those of the model.
        max_sentences: most sentences that have not ended; more are refused.
        max_beam: largest beam of a sentence.

    Raises:
        ConfigurationError: for numbers below 1, or more than 1024 threads.

    Attributes:
        engine: how sentences are decoded, and why: "continuous batches, native: ...", or "whole batches: ...".
    """

    def __init__(
        self, model: "Model", threads: int | None = None, max_sentences: int = MAX_SENTENCES, max_beam: int = MAX_BEAM
    ) -> None:
        check_arguments({"threads": threads}, ServiceArguments)
        if max_sentences < 1:
            raise ConfigurationError("--max-sentences", max_sentences, remedy="give at least 1")
        if max_beam < 1:
            raise ConfigurationError("--max-beam", max_beam, remedy="give at least 1")
        self._model = model
        self._max_sentences, self._max_beam = max_sentences, max_beam
        self._jobs: set[Job] = set()
        self._process = os.getpid()
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._is_closed = False
        self._all_ended = threading.Condition(self._lock)
        self._engines: list[ContinuousEngine | WholeBatches] = []  # the first one that takes a job decodes it
        self._threads = threads
        try:
            self._engines.append(ContinuousEngine(model, threads, max_beam))
            self.engine = self._engines[0].name
        except Unsupported as reason:
            self.engine = f"whole batches: {reason}"
        self._engines.append(WholeBatches(model))
        # Threads of the kernels must not outlive the interpreter.
        self._finalizer = weakref.finalize(self, _close, self._engines, self._process)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a service is not copied or pickled; make one of each copy of its model")

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def sentences(self) -> int:
        """Number of sentences that have not ended."""
        return len(self._jobs)

    @property
    def has_failed(self) -> bool:
        """Whether its batch has failed, such as for want of memory; the next sentence waits for `renew`."""
        return self._engines[0].is_closed and not self._is_closed

    def renew(self) -> None:
        """Begin another batch if the last one has failed; takes up to seconds."""
        with self._renewing:  # not the lock that other sentences need
            if not self.has_failed:
                return
            engine = ContinuousEngine(self._model, self._threads, self._max_beam)
            with self._lock:
                if not self._is_closed:
                    self._engines[0] = engine
                    return
        engine.close()

    def submit(
        self,
        text: str,
        *,
        drafts: TargetTexts = None,
        constraints: TargetTexts = None,
        on_step: OnStep | None = None,
        number: int = 0,
        return_scores: bool = True,
        renew: bool = True,
        **options: Unpack[CallOptions],
    ) -> "Future[Translation]":
        """Begin to translate a sentence; return at once.

        Args:
            text: raw text of a sentence.
            drafts, constraints: as for `Model.translate`.
            on_step: called with each iteration, in a thread of the service: it must not block. Not for decoders that
                keep several hypotheses.
            number: of the sentence, by which samples differ.
            return_scores: as for `Model.translate_batch`.
            renew: whether to call `renew` if the running batch has failed, which can take seconds.
            options: see `CallOptions`; `batch_size` has no meaning here.

        Returns:
            the translation to come. Cancelling it drops the sentence.

        Raises:
            ServiceFull: if `max_sentences` have not ended.
            ServiceClosed: after `close`, and in a forked child, which has none of the threads that decode.
            ServiceFailed: if the running batch has failed, with `renew=False`.
            ConfigurationError: as for `Model.translate`; for a beam, or a number of samples, above `max_beam`.
        """
        job = self._job(text, drafts, constraints, on_step, number, return_scores, options)
        while not self._begin(job):
            if not renew:
                raise ServiceFailed("the running batch has failed; call renew, and submit again")
            self.renew()
        return job.future

    def _job(
        self,
        text: str,
        drafts: TargetTexts,
        constraints: TargetTexts,
        on_step: OnStep | None,
        number: int,
        return_scores: bool,
        options: Mapping[str, Any],
    ) -> Job:
        """Check and encode a sentence, as `submit`, for `_begin`."""
        if os.getpid() != self._process:
            raise ServiceClosed("the service is of another process, whose threads decode; make one in this process")
        model = self._model
        search = model._generators.search(options, constraints is not None, return_scores)
        if search.beam > self._max_beam:
            problem = f"this service has beams and samples up to {self._max_beam}"
            raise ConfigurationError("--beam", search.beam, problem)
        if on_step is not None:
            model._check_streams()
            if search.beam > 1:
                raise ConfigurationError("--nbest", search.beam, "a stream is of one sample", "leave it out")
        source = model._encode(text, "text")
        given = (model._cut(drafts, "drafts", is_one=True), model._cut(constraints, "constraints", is_one=True))
        (sentence,) = model._inputs([source], *given, [number])
        return Job(sentence, search, on_step)

    def _begin(self, job: Job) -> bool:
        """Begin to translate a sentence, as `submit`; return whether it could, without a batch that has failed."""
        if job.input.is_blank:
            if job.on_step is not None:
                job.on_step(Step([], 0, 0, "", finished=True))
            job.end(self._model._blank())
            return True
        if self.has_failed:
            return False
        with self._lock:
            if self._is_closed:
                raise ServiceClosed("the service is closed")
            if len(self._jobs) >= self._max_sentences:
                raise ServiceFull(f"{len(self._jobs)} sentences have not ended; try again later")
            self._jobs.add(job)
        engine = next(engine for engine in self._engines if engine.takes(job))
        try:
            engine.admit(job)
        except BaseException as error:  # also no memory
            engine.cancel(job)
            self._forget(job)
            if self._is_closed:  # meanwhile
                raise ServiceClosed("the service is closed") from error
            if engine.is_closed:  # its batch has failed meanwhile, and may have ended the job
                return job.future.done()
            raise
        job.future.add_done_callback(lambda future: self._ended(job, engine, future))
        return True

    def stream(self, text: str, *, drafts: TargetTexts = None, **options: Unpack[SearchOptions]) -> Iterator[Step]:
        """Translate a sentence and yield each iteration, as `Model.stream`; leaving the iterator drops the sentence.

        Raises as `submit`.
        """
        steps: queue.SimpleQueue[Step | None] = queue.SimpleQueue()
        future = self.submit(text, drafts=drafts, on_step=steps.put, **options)
        future.add_done_callback(lambda _: steps.put(None))

        def iterations() -> Iterator[Step]:
            try:
                while (step := steps.get()) is not None:
                    yield step
                future.result()
            finally:
                future.cancel()

        return iterations()

    def close(self, seconds: float = 0.0) -> bool:
        """Take no more sentences; wait at most some `seconds` for those that run, then drop the others.

        Returns whether all have ended; True in a forked child, where it changes nothing.
        """
        if os.getpid() != self._process:
            return True
        with self._lock:
            self._is_closed = True
            has_ended = self._all_ended.wait_for(lambda: not self._jobs, seconds)
            left = list(self._jobs)
        for job in left:
            job.end(ServiceClosed("the service was closed before the sentence ended"))
        self._finalizer()
        return has_ended

    def _ended(self, job: Job, engine: ContinuousEngine | WholeBatches, future: "Future[Translation]") -> None:
        if future.cancelled() or isinstance(future.exception(), (ServiceClosed, CancelledError)):
            engine.cancel(job)
        if future.cancelled():
            future.set_running_or_notify_cancel()  # else `concurrent.futures.wait` waits for it without end
        self._forget(job)

    def _forget(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
            if not self._jobs:
                self._all_ended.notify_all()


def _close(engines: Iterable[ContinuousEngine | WholeBatches], process: int) -> None:
    if os.getpid() == process:  # else their threads are not here, and may have held their locks
        for engine in engines:
            engine.close()

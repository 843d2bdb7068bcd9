"""The engines of a service: a running batch of the backend, or whole batches one after the other."""

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_plugins.api.generators import configure
from fairseq_plugins.api.jobs import Job
from fairseq_plugins.api.results import CallStatistics, RecordedStats, Translation
from fairseq_plugins.api.spelling import python_errors
from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded, StepOutput
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.running_batch import RunningBatch
from fairseq_plugins.errors import ConfigurationError

if TYPE_CHECKING:
    from fairseq_plugins.api.model import Model

_MAX_POSITIONS = 4096  # of sources and outputs of models without a limit
_POLL_SECONDS = 0.5


class ContinuousEngine:
    """Decodes jobs in a running batch; raises Unsupported if the backend has none."""

    def __init__(self, model: "Model", threads: int | None, max_beam: int) -> None:
        self._model, self._session = model, model._session
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._is_closed = False
        if model._generators.search({}).samples:
            raise Unsupported("sampling, whose sentences are decoded in turn")
        with model._turn():
            generator = model._generators.batch_invariant(max_beam)
            if not isinstance(generator, DraftVerifyGenerator):
                raise Unsupported("fairseq's own search")
            generator.stats = RecordedStats(model.decoder)
            self._generator = generator
            self._arguments = self._constant_arguments()
            _, limits, self._first_token = self._request(model._text.source([]), None)
            self._batch = RunningBatch(
                generator.backend,
                replace(limits, max_len=min(generator.max_len - 1, _MAX_POSITIONS), prefix=None),
                self._first_token,
                threads or torch.get_num_threads(),
                min(self._session.max_positions[0], _MAX_POSITIONS),
            )
            self.name = f"continuous batches, {generator.backend.name}: {generator.backend.reason}"
        self._thread = threading.Thread(target=self._deliver, name="service", daemon=True)
        self._thread.start()

    def admit(self, job: Job) -> None:
        default = self._model._generators.search({})
        if job.search.drawing != default.drawing:
            raise ConfigurationError(
                "sampling, temperature", None, "are not for single calls of a service", "give them to load"
            )
        if job.search.alignments:
            raise ConfigurationError("--alignments", None, "is not for a service", "use translate")
        with self._lock, python_errors():
            configure(self._generator, job.search)
            sample, limits, first_token = self._request(job.source, job.drafts)
        assert first_token == self._first_token
        self._jobs[job.number] = job
        try:
            self._batch.admit(job.number, sample, limits, job.search.beam, job.on_step is not None)
        except ValueError as error:
            self._jobs.pop(job.number, None)
            raise ConfigurationError(None, None, str(error), "shorten the sentence, or lower its limits") from error

    def cancel(self, job: Job) -> None:
        self._jobs.pop(job.number, None)
        if not self._is_closed:
            self._batch.cancel(job.number)

    def close(self) -> None:
        self._is_closed = True
        self._batch.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _request(self, source: Tensor, drafts: list[list[int]] | None) -> tuple[dict[str, Any], Constraints, int]:
        """Return the arguments of a backend for a sentence, with the prefix and first token of the task."""
        if self._arguments is None:
            sample = self._session.batch(self._model._dataset([source]), [0])
            arguments = self._session.arguments(sample)
        else:
            inputs = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
            sample, arguments = {"id": torch.zeros(1, dtype=torch.long), "net_input": inputs}, self._arguments
        if drafts is not None:
            sample["drafts"] = [drafts]
        return self._generator.request(sample, **arguments)

    def _constant_arguments(self) -> dict[str, Any] | None:
        """Return what the task passes to a generator, if it adds nothing to sources; else None.

        Then a sentence needs no dataset, which would take half of the time until it is admitted.
        """
        session, dictionary = self._session, self._session.task.source_dictionary
        found = []
        for length in (1, 3):
            source = torch.tensor([dictionary.unk()] * length + [dictionary.eos()])
            sample = session.batch(self._model._dataset([source]), [0])
            if sample["net_input"]["src_tokens"].tolist() != [source.tolist()]:
                return None
            found.append(session.arguments(sample))
        is_plain = all(value is None for arguments in found for value in arguments.values())
        return found[0] if is_plain and found[0].keys() == found[1].keys() else None

    def _deliver(self) -> None:
        while not self._is_closed:
            for event in self._batch.take(_POLL_SECONDS):
                self._report(*event)

    def _report(self, number: int, result: StepOutput | Decoded | Exception) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        try:
            if isinstance(result, StepOutput):
                assert job.on_step is not None
                job.on_step(self._model._step(result, job.output))
                return
            job.end(result if isinstance(result, Exception) else self._translation(job, result))
        except Exception as error:
            # Of a caller's function, or of a text that cannot be joined: it harms this sentence only.
            job.end(error)
        self._jobs.pop(number, None)

    def _translation(self, job: Job, decoded: Decoded) -> Translation:
        with self._lock:
            configure(self._generator, job.search)
            hypotheses = self._generator.hypotheses(decoded.outputs)
        (emitted,) = self._generator.emitted(decoded.emitted, hypotheses)
        return self._model._translation(hypotheses[0][: job.search.num_hypotheses], [emitted])


class WholeBatches:
    """Decodes waiting jobs with equal options together, where the backend admits no sentences into a running batch."""

    name = "whole batches"

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="service", daemon=True)
        self._thread.start()

    def admit(self, job: Job) -> None:
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while jobs := self._next():
            try:
                self._decode(jobs)
            except Exception as error:
                if len(jobs) == 1:
                    jobs[0].end(error)
                    continue
                for job in jobs:  # an error of one sentence harms no other
                    try:
                        self._decode([job])
                    except Exception as own:
                        job.end(own)

    def _next(self) -> list[Job]:
        """Wait for jobs; return the first one and those that can be decoded with it, none once the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._waiting)
            if self._is_closed:
                return []
            first = self._waiting.popleft()
            jobs = [first]
            # The noise of sampling depends on a sentence's place in its batch.
            is_alone = first.on_step is not None or self._model._session.cfg.generation.sampling
            for job in () if is_alone else list(self._waiting):
                if len(jobs) == first.search.batch_size:
                    break
                if job.search == first.search and job.on_step is None:
                    jobs.append(job)
                    self._waiting.remove(job)
            return jobs

    def _decode(self, jobs: list[Job]) -> None:
        model, first = self._model, jobs[0]
        model._thread.statistics = CallStatistics()
        if first.on_step is None:
            drafts = None
            if any(job.drafts is not None for job in jobs):
                drafts = [job.drafts or [] for job in jobs]
            # Samples of a request depend on no other one.
            numbers = [0] * len(jobs)
            translations = model._decode([job.source for job in jobs], first.search, drafts, numbers)
            for job, translation in zip(jobs, translations, strict=True):
                job.end(translation)
            return
        iterations = model._stream(first.source, first.search, first.drafts)
        while True:
            try:
                first.on_step(next(iterations))
            except StopIteration as end:
                return first.end(end.value)
            if first.future.cancelled() or self._is_closed:
                return iterations.close()

"""The jobs of a service, and its engines: a running batch of the backend, or whole batches one after the other."""

import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fairseq_plugins.api.generators import CallSearch, configure
from fairseq_plugins.api.results import Step, Translation
from fairseq_plugins.api.sentences import Input
from fairseq_plugins.checkpoint.compact_weights import restore
from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded, StepOutput
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.kernel_backend import KernelBackend
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.reference.alignment import align, align_to_text
from fairseq_plugins.decoding.reference.sampling import Sampling, group_samples
from fairseq_plugins.errors import ConfigurationError

if TYPE_CHECKING:
    from fairseq_plugins.api.model import Model

_MAX_POSITIONS = 4096  # of sources and outputs of models without a limit
_POLL_SECONDS = 0.5

OnStep = Callable[[Step], None]


@dataclass(eq=False)
class Job:
    """A sentence of a service.

    Attributes:
        input: the sentence.
        search: options.
        on_step: called with each iteration, in the service's thread; None for no streaming.
        future: gets the translation, or the error.
        output: token ids of the iterations so far, if it streams.
        sample: in a running batch: its sentence, as often as it draws samples.
        numbers: in a running batch: those of its sentences in events.
        decoded: those of these that have ended, by number.
    """

    input: Input
    search: CallSearch
    on_step: OnStep | None = None
    future: "Future[Translation]" = field(default_factory=Future)
    output: list[int] = field(default_factory=list)
    sample: dict[str, Any] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    decoded: dict[int, Decoded] = field(default_factory=dict)

    def end(self, result: Translation | BaseException) -> None:
        """Set the result, unless there is one already, of another thread, or the caller has cancelled."""
        with suppress(InvalidStateError):
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)


class ContinuousEngine:
    """Decodes jobs in a running batch; raises Unsupported if the backend has none.

    Attributes:
        name: the backend, and why.
        is_closed: whether it takes no more jobs: it was closed, or the batch has failed.
    """

    def __init__(self, model: "Model", threads: int | None, max_beam: int) -> None:
        self._model, self._session = model, model._session
        self._lock = threading.Lock()
        # Samples of a job are sentences of the batch, each with a number of its own.
        self._numbers = itertools.count()
        self._jobs: dict[int, Job] = {}
        self.is_closed = False
        with model._turn(), model._weights:
            generator = model._generators.batch_invariant(max_beam)
            if not isinstance(generator, DraftVerifyGenerator):
                raise Unsupported("fairseq's own search")
            self._generator = generator
            self._arguments = self._constant_arguments()
            _, limits, self._first_token = self._request(Input(model._ids([])))
            backend = generator.backend
            if not isinstance(backend, KernelBackend):
                raise Unsupported(backend.reason)
            self._backend = backend
            backend.open(
                replace(limits, max_len=min(generator.max_len - 1, _MAX_POSITIONS), prefix=None),
                self._first_token,
                threads or torch.get_num_threads(),
                min(self._session.max_positions[0], _MAX_POSITIONS),
            )
            self.name = f"continuous batches, {backend.name}: {backend.reason}"
        # Aligning takes longer than reporting what others wait for.
        self._aligner = ThreadPoolExecutor(1, "aligner")
        self._thread = threading.Thread(target=self._deliver, name="service", daemon=True)
        self._thread.start()

    def takes(self, job: Job) -> bool:
        return job.input.constraints is None and (self._backend.draws_in_open_batch or not job.search.samples)

    def admit(self, job: Job) -> None:
        drawing = job.search.drawing
        with self._lock:
            configure(self._generator, job.search)
            job.sample, limits, first_token = self._request(job.input)
        assert first_token == self._first_token
        topk, topp = (max(drawing[f"sampling_{name}"], 0) for name in ("topk", "topp"))
        sampling = Sampling(topk, topp, drawing["temperature"])
        beam = 1 if job.search.samples else job.search.beam
        job.numbers = [next(self._numbers) for _ in job.sample["net_input"]["src_tokens"]]
        job.decoded = {}  # a batch that failed may have ended some of its samples
        self._jobs.update(dict.fromkeys(job.numbers, job))
        try:
            self._backend.admit(job.numbers, job.sample, limits, beam, job.on_step is not None, sampling)
        except ValueError as error:
            raise ConfigurationError(None, None, str(error), "shorten the sentence, or lower its limits") from error

    def cancel(self, job: Job) -> None:
        for number in job.numbers:
            if self._jobs.pop(number, None) is not None and not self.is_closed:
                self._backend.generator.cancel(number)

    def close(self) -> None:
        self.is_closed = True
        self._backend.generator.close()
        if self._thread is not threading.current_thread():
            self._thread.join()  # before the aligner ends, to which it passes sentences
        self._aligner.shutdown(wait=False, cancel_futures=True)  # its own thread may close, in a caller's function

    def _request(self, sentence: Input) -> tuple[dict[str, Any], Constraints, int]:
        """Return the arguments of a backend for a sentence, with the prefix and first token of the task."""
        if self._arguments is None:
            sample = self._model._sample([sentence])
            return self._generator.request(sample, **self._session.arguments(sample))
        source = sentence.source
        inputs = {"src_tokens": source[None], "src_lengths": torch.tensor([len(source)])}
        sample = {
            "id": torch.zeros(1, dtype=torch.long),
            "net_input": inputs,
            "numbers": torch.tensor([sentence.number]),
        }
        if sentence.drafts is not None:
            sample["drafts"] = [sentence.drafts]
        return self._generator.request(sample, **self._arguments)

    def _constant_arguments(self) -> dict[str, Any] | None:
        """Return what the task passes to a generator, if it adds nothing to sources; else None.

        Then a sentence needs no dataset, which would take half of the time until it is admitted.
        """
        session, dictionary = self._session, self._session.task.source_dictionary
        found = []
        for length in (1, 3):
            source = torch.tensor([dictionary.unk()] * length + [dictionary.eos()])
            sample = self._model._sample([Input(source)])
            if sample["net_input"]["src_tokens"].tolist() != [source.tolist()]:
                return None
            found.append(session.arguments(sample))
        is_plain = all(value is None for arguments in found for value in arguments.values())
        return found[0] if is_plain and found[0].keys() == found[1].keys() else None

    def _deliver(self) -> None:
        try:
            while not self.is_closed:
                for event in self._backend.take(_POLL_SECONDS):
                    self._report(*event)
        except Exception as error:  # such as no memory
            self.is_closed = True
            self._backend.generator.close()
            for job in list(self._jobs.values()):
                job.end(error)

    def _report(self, number: int, result: StepOutput | Decoded | Exception) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        try:
            if isinstance(result, StepOutput):
                assert job.on_step is not None
                job.on_step(self._model._step(result, job.output))
                return
            if isinstance(result, Exception):
                raise result
        except Exception as error:
            # Of the sentence, or of a caller's function: it harms this sentence only.
            self.cancel(job)
            job.end(error)
            return
        self._jobs.pop(number, None)
        job.decoded[number] = result
        if len(job.decoded) < len(job.numbers):
            return
        if job.search.alignments:
            self._aligner.submit(self._end, job)
        else:
            self._end(job)

    def _end(self, job: Job) -> None:
        if job.future.done():  # cancelled while others were aligned
            return
        try:
            job.end(self._translation(job))
        except Exception as error:  # of a text that cannot be joined, or a model that aligns nothing
            job.end(error)

    def _translation(self, job: Job) -> Translation:
        model, search = self._model, job.search
        decoded = [job.decoded[number] for number in job.numbers]
        with self._lock:
            configure(self._generator, search)
            hypotheses = self._generator.hypotheses(
                Decoded([each.outputs[0] for each in decoded], [each.emitted[0] for each in decoded])
            )
        if len(decoded) > 1:
            hypotheses = group_samples(hypotheses, len(decoded))
        (best,) = hypotheses
        best = best[: search.num_hypotheses]
        if search.alignments:
            symbols = self._generator.pad, self._generator.eos
            # No turn of the model's: a call would hold up all translations that are to be aligned.
            with model._weights, model._own_threads():
                restore(self._generator.model.models)
                extract = partial(align_to_text, model._generators.added)
                align(self._generator.model.models, job.sample, [best], extract, symbols, self._first_token)
        return model._translation(best, search.needs_scores)


class WholeBatches:
    """Decodes waiting jobs with equal options together, where the backend admits no sentences into a running batch."""

    name = "whole batches"

    def __init__(self, model: "Model") -> None:
        self._model = model
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self.is_closed = False
        self._thread = threading.Thread(target=self._work, name="service", daemon=True)
        self._thread.start()

    def takes(self, job: Job) -> bool:
        return True

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
            self.is_closed = True
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
            self._changed.wait_for(lambda: self.is_closed or self._waiting)
            if self.is_closed:
                return []
            first = self._waiting.popleft()
            jobs = [first]
            for job in () if first.on_step is not None else list(self._waiting):
                if len(jobs) == first.search.batch_size:
                    break
                if job.on_step is None and self._alike(job) == self._alike(first):
                    jobs.append(job)
                    self._waiting.remove(job)
            return jobs

    def _alike(self, job: Job) -> tuple[CallSearch, int]:
        """Return what jobs of a batch have in common: options, and the length of the source where outputs depend on it.

        The longest output of a batch depends on its longest source.
        """
        depends = job.search.options["max_len_a"] or self._model._session.cfg.generation.match_source_len
        return job.search, len(job.input.source) if depends else 0

    def _decode(self, jobs: list[Job]) -> None:
        model, first = self._model, jobs[0]
        if first.on_step is None:
            translations = model._decode([job.input for job in jobs], first.search)
            for job, translation in zip(jobs, translations, strict=True):
                job.end(translation)
            return
        iterations = model._stream(first.input, first.search)
        while True:
            try:
                first.on_step(next(iterations))
            except StopIteration as end:
                return first.end(end.value)
            if first.future.cancelled() or self.is_closed:
                return iterations.close()

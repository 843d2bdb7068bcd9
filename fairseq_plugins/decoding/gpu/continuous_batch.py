"""Continuous batching: sentences join and leave a batch while a thread decodes it (csrc/continuous_batch.h).

Each sentence has limits of its own on the device, and takes the first free place. A step runs as many places as its
graph has from the first to the last one that is taken.
"""

import atexit
import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fairseq_plugins.decoding.gpu.beam_search import EosForbidden
from fairseq_plugins.decoding.kernel_module import Event, FoundOutput

if TYPE_CHECKING:
    from fairseq_plugins.decoding.gpu.host_loop import Flight, HostLoop, Scoring, Sentence


@dataclass
class Request:
    """A sentence that has not ended."""

    id: int
    sentence: "Sentence"
    scoring: "Scoring"
    streams: bool
    reported: int = 0  # tokens of the output


class Cancelled(Exception):
    """A sentence was dropped."""


class ContinuousBatch:
    """Decodes sentences until it is closed; only its thread uses the loop."""

    def __init__(self, loop: "HostLoop") -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._requests: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._cancelled: list[Request] = []
        self._events: list[Event] = []
        self._is_closed = False
        self._failure: Exception | None = None
        device = loop.device
        # Results are copied while the next iterations run: what is copied, they do not write.
        self._beside: AbstractContextManager[Any] = nullcontext()
        if device.type == "cuda":
            self._beside = torch.cuda.stream(torch.cuda.Stream(device))
        self._thread = threading.Thread(target=self._work, name="continuous batch", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that decodes while Python ends would abort

    def admit(self, request: Request) -> None:
        """Add a sentence, which waits until there is room; raise ValueError once the batch is closed,
        RuntimeError once the device has failed."""
        with self._changed:
            if self._failure is not None:
                raise RuntimeError(f"the batch has failed: {self._failure}") from self._failure
            if self._is_closed:
                raise ValueError("the batch is closed")
            self._requests[request.id] = request
            self._waiting.append(request)
            self._changed.notify_all()

    def cancel(self, id: int) -> None:
        """Drop a sentence."""
        with self._changed:
            request = self._requests.pop(id, None)
            if request is not None:
                self._cancelled.append(request)
                self._changed.notify_all()

    def take(self, seconds: float) -> list[Event]:
        """Return the next events; wait up to `seconds` for the first one."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._is_closed, seconds)
            events, self._events = self._events, []
            return events

    def load(self) -> tuple[int, int]:
        """Return the numbers of waiting and of active sentences."""
        with self._changed:
            active = sum(request.sentence.place >= 0 for request in self._requests.values())
            return len(self._requests) - active, active

    def close(self) -> None:
        """Stop after the current iterations."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self.close)

    # --------------------------------------------------------------------------------------------- its thread

    def _work(self) -> None:
        device = self._loop.device
        try:
            with torch.inference_mode(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                self._decode()
        except Exception as failure:  # of the device: nothing more can be decoded
            with self._changed:
                self._failure = failure
                self._events += [(id, None, None, (str(failure), False)) for id in self._requests]
                self._requests.clear()
                self._changed.notify_all()

    def _decode(self) -> None:
        loop = self._loop
        flights: deque[Flight] = deque()
        launched = 0
        while self._receive(bool(flights)):
            loop.fill()
            while loop.is_decoding() and len(flights) < loop.ahead:
                flights.append(loop.launch(launched, len(flights)))
                launched += 1
            if flights:
                self._report(loop.finish(flights.popleft()))

    def _receive(self, has_flights: bool) -> bool:
        """Pass new sentences to the loop, and drop cancelled ones; wait if there is no work.

        Returns whether the batch is open.
        """
        loop = self._loop
        with self._changed:
            is_busy = has_flights or loop.is_decoding() or bool(loop.waiting)
            self._changed.wait_for(lambda: is_busy or self._is_closed or self._waiting or self._cancelled)
            cancelled, self._cancelled = self._cancelled, []
            # One way of scoring at a time: sentences with another one wait until all places are free.
            scoring = loop.scoring
            while self._waiting and (self._waiting[0].scoring == scoring or not is_busy):
                request = self._waiting.popleft()
                scoring, is_busy = request.scoring, True
                if self._requests.get(request.id) is request:
                    loop.waiting.append(request.sentence)
        if scoring != loop.scoring:
            loop.set_scoring(scoring)
        places = []
        for request in cancelled:
            sentence = request.sentence
            if sentence in loop.waiting:
                loop.waiting.remove(sentence)
            elif sentence.place >= 0 and not sentence.has_ended:
                places.append(sentence.place)
            sentence.has_ended, sentence.error = True, Cancelled()
        if places:
            loop.batch.active[places] = 0
        return not self._is_closed

    def _report(self, changed: list["Sentence"]) -> None:
        """Report iterations that are streamed, and ends."""
        loop = self._loop
        by_sentence = {id(request.sentence): request for request in self._snapshot()}
        requests = [by_sentence[id(sentence)] for sentence in changed if id(sentence) in by_sentence]
        events: list[Event] = []
        streamed = [request for request in requests if request.streams and request.sentence.error is None]
        if streamed:
            with self._beside:
                rows = loop.batch.tokens[[request.sentence.place for request in streamed]].cpu()
            for request, row in zip(streamed, rows, strict=True):
                sentence = request.sentence
                tokens = row[1 + request.reported : 1 + sentence.length].tolist()
                request.reported = sentence.length
                events.append((request.id, tokens, (sentence.drafted, sentence.accepted), None))
        ended = [request for request in requests if request.sentence.has_ended]
        outputs = self._outputs([request.sentence for request in ended if request.sentence.error is None])
        for request in ended:
            error = request.sentence.error
            if error is not None:
                events.append((request.id, None, None, (str(error), isinstance(error, EosForbidden))))
            else:
                events.append((request.id, outputs[id(request.sentence)], None, None))
        with self._changed:
            self._events += [event for event in events if event[0] in self._requests]
            for request in ended:
                self._requests.pop(request.id, None)
            if events:
                self._changed.notify_all()

    def _outputs(self, sentences: list["Sentence"]) -> dict[int, FoundOutput]:
        if not sentences:
            return {}
        with self._beside:
            self._loop.collect([sentence.place for sentence in sentences])
            self._loop.wait()
        return {id(sentence): sentence.found() for sentence in sentences}

    def _snapshot(self) -> list[Request]:
        with self._changed:
            return list(self._requests.values())

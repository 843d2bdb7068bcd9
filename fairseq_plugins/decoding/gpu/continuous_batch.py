"""Continuous batching: sentences join and leave a batch while a thread decodes it (csrc/continuous_batch.h).

Each sentence has limits of its own on the device, and takes the first free place. A step runs as many places as its
graph has from the first to the last one that is taken.
"""

import atexit
import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fairseq_plugins.decoding.gpu.beam_search import EosForbidden
from fairseq_plugins.decoding.gpu.host_loop import Flight, HostLoop, Sentence
from fairseq_plugins.decoding.kernel_module import FoundEvent
from fairseq_plugins.decoding.reference.arithmetic import on_device


class Cancelled(Exception):
    """A sentence was dropped."""


class ContinuousBatch:
    """Decodes sentences until it is closed; only its thread uses the loop."""

    def __init__(self, loop: HostLoop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._sentences: dict[int, Sentence] = {}  # that have not ended, by id
        self._waiting: deque[Sentence] = deque()
        self._cancelled: list[Sentence] = []
        self._events: list[FoundEvent] = []
        self._is_closed = False
        self._failure: Exception | None = None
        device = loop.device
        # Results are copied while the next iterations run: what is copied, they do not write.
        self._beside: AbstractContextManager[Any] = nullcontext()
        if device.type == "cuda":
            # PyTorch has 32 streams of each priority: a graph of another generator may be captured on one of the usual.
            self._beside = torch.cuda.stream(torch.cuda.Stream(device, priority=-1))
        self._thread = threading.Thread(target=self._work, name="continuous batch", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that decodes while Python ends would abort

    def admit(self, sentence: Sentence) -> None:
        """Add a sentence, which waits until there is room; raise ValueError once the batch is closed,
        RuntimeError once the device has failed."""
        with self._changed:
            self._check()
            if self._is_closed:
                raise ValueError("the batch is closed")
            self._sentences[sentence.id] = sentence
            self._waiting.append(sentence)
            self._changed.notify_all()

    def cancel(self, id: int) -> None:
        """Drop a sentence."""
        with self._changed:
            sentence = self._sentences.pop(id, None)
            if sentence is not None:
                self._cancelled.append(sentence)
                self._changed.notify_all()

    def take(self, seconds: float) -> list[FoundEvent]:
        """Return the next events; wait up to `seconds` for the first one. Raises as `admit`."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._is_closed or self._failure, seconds)
            if not self._events:
                self._check()
            events, self._events = self._events, []
            return events

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the batch has failed: {self._failure}") from self._failure

    def load(self) -> tuple[int, int]:
        """Return the numbers of waiting and of active sentences."""
        with self._changed:
            active = sum(sentence.place >= 0 for sentence in self._sentences.values())
            return len(self._sentences) - active, active

    def close(self) -> None:
        """Stop after the current iterations."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        atexit.unregister(self.close)

    # --------------------------------------------------------------------------------------------- its thread

    def _work(self) -> None:
        try:
            with torch.inference_mode(), on_device(self._loop.device):
                self._decode()
        except Exception as failure:  # of the device: nothing more can be decoded
            with self._changed:
                self._failure = failure
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
                sentence = self._waiting.popleft()
                scoring, is_busy = sentence.scoring, True
                if self._sentences.get(sentence.id) is sentence:
                    loop.waiting.append(sentence)
        if scoring != loop.scoring:
            loop.set_scoring(scoring)
        places = []
        for sentence in cancelled:
            if sentence in loop.waiting:
                loop.waiting.remove(sentence)
            elif sentence.place >= 0 and not sentence.has_ended:
                places.append(sentence.place)
            sentence.has_ended, sentence.error = True, Cancelled()
        if places:
            loop.batch.active[places] = 0
        return not self._is_closed

    def _report(self, changed: list[Sentence]) -> None:
        """Report iterations that are streamed, and ends."""
        loop = self._loop
        with self._changed:
            own = [sentence for sentence in changed if self._sentences.get(sentence.id) is sentence]
        events: list[FoundEvent] = []
        streamed = [sentence for sentence in own if sentence.streams and sentence.error is None]
        if streamed:
            with self._beside:
                rows = loop.batch.tokens[[sentence.place for sentence in streamed]].cpu()
            for sentence, row in zip(streamed, rows, strict=True):
                tokens = row[1 + sentence.reported : 1 + sentence.length].tolist()
                sentence.reported = sentence.length
                events.append((sentence.id, tokens, (sentence.drafted, sentence.accepted), None))
        ended = [sentence for sentence in own if sentence.has_ended]
        places = [sentence.place for sentence in ended if sentence.error is None]
        if places:
            with self._beside:
                loop.collect(places)
                loop.wait()
        for sentence in ended:
            error = sentence.error
            if error is None:
                events.append((sentence.id, sentence.found(), None, None))
            else:
                events.append((sentence.id, None, None, (str(error), isinstance(error, EosForbidden))))
        with self._changed:
            self._events += [event for event in events if event[0] in self._sentences]
            for sentence in ended:
                self._sentences.pop(sentence.id, None)
            if events:
                self._changed.notify_all()

"""The jobs of a service."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fairseq_plugins.api.generators import CallSearch
from fairseq_plugins.api.results import Step, Translation
from fairseq_plugins.api.sentences import Input
from fairseq_plugins.decoding.decoded import Decoded

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

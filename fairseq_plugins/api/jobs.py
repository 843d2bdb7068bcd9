"""The jobs of a service."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from fairseq_plugins.api.generators import CallSearch
from fairseq_plugins.api.results import Step, Translation
from fairseq_plugins.api.sentences import Input

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
    """

    input: Input
    search: CallSearch
    on_step: OnStep | None = None
    future: "Future[Translation]" = field(default_factory=Future)
    output: list[int] = field(default_factory=list)

    def end(self, result: Translation | BaseException) -> None:
        """Set the result, unless there is one already, of another thread, or the caller has cancelled."""
        with suppress(InvalidStateError):
            if isinstance(result, BaseException):
                self.future.set_exception(result)
            else:
                self.future.set_result(result)

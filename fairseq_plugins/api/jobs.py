"""The jobs of a service, and what decodes them."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fairseq_plugins.api.generators import CallSearch
from fairseq_plugins.api.results import Step, Translation

OnStep = Callable[[Step], None]


@dataclass
class Job:
    """A sentence of a service.

    Attributes:
        number: names the job.
        source: [S], token ids with EOS.
        search: options.
        drafts: token ids of its drafts; None for none.
        place: number of the sentence, by which samples differ.
        on_step: called with each iteration, in the service's thread; None for no streaming.
        future: gets the translation, or the error.
        output: token ids of the iterations so far, if it streams.
        constraints: token ids of the phrases that the output contains; None for none.
    """

    number: int
    source: Tensor
    search: CallSearch
    drafts: list[list[int]] | None
    place: int = 0
    on_step: OnStep | None = None
    future: "Future[Translation]" = field(default_factory=Future)
    output: list[int] = field(default_factory=list)
    constraints: list[Tensor] | None = None

    def end(self, result: Translation | BaseException) -> None:
        """Set the result, unless the caller has cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class ServiceEngine(Protocol):
    """What decodes the jobs of a service; its `name` says how."""

    name: str

    def takes(self, job: Job) -> bool:
        """Return whether it can decode a job."""

    def admit(self, job: Job) -> None:
        """Add a job; raise ConfigurationError if it does not fit."""

    def cancel(self, job: Job) -> None:
        """Drop a job whose future was cancelled."""

    def close(self) -> None:
        """Stop at once."""

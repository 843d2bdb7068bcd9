"""Continuous batching: a batch that sentences join and leave while it is decoded, on the compiled kernels."""

from typing import Any, Protocol

import torch

from fairseq_plugins.decoding.backends import Backend
from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.native import NotNative
from fairseq_plugins.decoding.native.backend import NativeBackend, hypotheses_of
from fairseq_plugins.decoding.reference.search.beam import eos_forbidden_error
from fairseq_plugins.decoding.reference.state import Decoded, Hypothesis, StepOutput

Event = tuple[int, StepOutput | Decoded | Exception]
"""Number of a sentence, and an iteration of it, its end (`Decoded` of one sentence), or why it has no output."""


class RunningBatch(Protocol):
    """What a backend offers that admits sentences; all methods may be called from any thread."""

    def admit(
        self, number: int, sample: dict[str, Any], constraints: Constraints, beam: int = 1, streams: bool = False
    ) -> None:
        """Add a sentence, which waits until there is room.

        Args:
            number: names the sentence in events; unused by the others.
            sample: fairseq batch of this sentence alone.
            constraints: its limits.
            beam: hypotheses that a beam search keeps.
            streams: whether iterations are events.

        Raises:
            ValueError: for a sentence that does not fit the batch.
        """

    def cancel(self, number: int) -> None:
        """Drop a sentence, of which no more events come."""

    def take(self, seconds: float) -> list[Event]:
        """Return the next events; wait up to `seconds` for the first one."""

    def load(self) -> tuple[int, int]:
        """Return the numbers of waiting and of active sentences."""

    def close(self) -> None:
        """Stop decoding; sentences that have not ended are dropped."""


def open_batch(
    backend: Backend, constraints: Constraints, first_token: int, threads: int, max_source: int, max_sentences: int = 0
) -> RunningBatch:
    """Open a running batch, after which the backend decodes nothing else.

    Args:
        backend: of the method.
        constraints: limits that all sentences share; `max_len` is the largest of any.
        first_token: begins all outputs.
        threads: of the CPU.
        max_source: most tokens of a source.
        max_sentences: decoded at a time; 0 for what is efficient.

    Raises:
        NotNative: for a backend that admits no sentences, with the reason.
    """
    if not isinstance(backend, NativeBackend):
        raise NotNative(backend.reason)
    if backend.encoder is not None:
        raise NotNative("the encoder has no kernels")
    if backend.method.on_batch is not None:
        raise NotNative("drafts of whole batches")
    return _NativeBatch(backend, constraints, first_token, threads, max_source, max_sentences)


class _NativeBatch:
    """A running batch of the compiled kernels (csrc/continuous_batch.h)."""

    def __init__(
        self,
        backend: NativeBackend,
        constraints: Constraints,
        first_token: int,
        threads: int,
        max_source: int,
        max_sentences: int,
    ) -> None:
        self._kernels, self._method = backend.kernels, backend.method
        self._searches_beams = backend.searches_beams
        self._max_len, self._pad = constraints.max_len, constraints.pad
        self._kernels.open(
            pad=constraints.pad,
            unk=constraints.unk,
            eos=constraints.eos,
            first_token=first_token,
            temperature=backend.temperature,
            threads=threads,
            max_sentences=max_sentences,
            max_source=max_source,
            max_len=constraints.max_len,
        )

    def admit(
        self, number: int, sample: dict[str, Any], constraints: Constraints, beam: int = 1, streams: bool = False
    ) -> None:
        source = sample["net_input"]["src_tokens"][0]
        drafts = [] if self._method.drafts is None else self._method.drafts(sample)[0]
        prefix = [] if constraints.prefix is None else constraints.prefix[0].tolist()
        self._kernels.admit(
            number,
            source[source != self._pad].tolist(),
            min_len=constraints.min_len,
            max_len=constraints.max_len,
            unk_penalty=constraints.unk_penalty,
            beam=beam,
            prefix=prefix,
            drafts=drafts,
            streams=streams,
        )

    def cancel(self, number: int) -> None:
        self._kernels.cancel(number)

    def take(self, seconds: float) -> list[Event]:
        return [(number, self._result(*event)) for number, *event in self._kernels.take(seconds)]

    def _result(self, output: Any, iteration: Any, error: Any) -> StepOutput | Decoded | Exception:
        if error is not None:
            message, is_forbidden_eos = error
            return eos_forbidden_error(self._max_len) if is_forbidden_eos else RuntimeError(message)
        if iteration is not None:
            drafted, accepted = iteration
            return StepOutput(output, drafted, accepted, finished=False)
        if self._searches_beams:
            hypotheses, steps = output
            return Decoded([hypotheses_of(hypotheses)], [[steps]])
        tokens, log_probs, emitted = output
        scores = torch.from_numpy(log_probs)
        return Decoded([[Hypothesis(torch.from_numpy(tokens), scores, scores.sum())]], [emitted])

    def load(self) -> tuple[int, int]:
        waiting, active = self._kernels.load()
        return waiting, active

    def close(self) -> None:
        self._kernels.close()

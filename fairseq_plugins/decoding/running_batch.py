"""Continuous batching: a batch that sentences join and leave while kernels decode it."""

from collections.abc import Sequence
from typing import Any

from fairseq_plugins.decoding.backends import Backend
from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded, StepOutput
from fairseq_plugins.decoding.kernel_backend import KernelBackend, hypotheses_of, hypothesis_of, limits_of
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search.beam import eos_forbidden_error

_NO_SAMPLING = Sampling()
Event = tuple[int, StepOutput | Decoded | Exception]
"""Number of a sentence, and an iteration of it, its end (`Decoded` of one sentence), or why it has no output."""


class RunningBatch:
    """A batch that sentences join and leave; all methods may be called from any thread.

    The backend decodes nothing else afterwards.

    Args:
        backend: of the method.
        constraints: limits that all sentences share; `max_len` is the largest of any.
        first_token: begins all outputs.
        threads: of the CPU.
        max_source: most tokens of a source.
        max_sentences: decoded at a time; 0 for what is efficient.

    Raises:
        Unsupported: for a backend that admits no sentences, with the reason.

    Attributes:
        samples: whether it draws tokens.
    """

    def __init__(
        self,
        backend: Backend,
        constraints: Constraints,
        first_token: int,
        threads: int,
        max_source: int,
        max_sentences: int = 0,
    ) -> None:
        if not isinstance(backend, KernelBackend):
            raise Unsupported(backend.reason)
        if not backend.encodes:
            raise Unsupported("the encoder has no kernels")
        if backend.method.on_batch is not None:
            raise Unsupported("drafts of whole batches")
        self._kernels, self._method = backend.generator, backend.method
        self._searches_beams = backend.searches_beams
        self.samples = not backend.searches_beams and backend.method.acceptance is None
        self._max_len, self._pad = constraints.max_len, constraints.pad
        self._kernels.open(
            pad=constraints.pad,
            unk=constraints.unk,
            eos=constraints.eos,
            first_token=first_token,
            threads=threads,
            max_sentences=max_sentences,
            max_source=max_source,
            max_len=constraints.max_len,
        )

    def admit(
        self,
        number: int,
        sample: dict[str, Any],
        constraints: Constraints,
        beam: int = 1,
        streams: bool = False,
        sampling: Sampling = _NO_SAMPLING,
        noise_key: Sequence[int] = (),
    ) -> None:
        """Add a sentence, which waits until there is room.

        Args:
            number: names the sentence in events; unused by the others.
            sample: fairseq batch of this sentence alone.
            constraints: its limits.
            beam: hypotheses that a beam search keeps.
            streams: whether iterations are events.
            sampling: of the sentence; its temperature also counts where nothing is drawn.
            noise_key: see `noise_keys`; empty for the best tokens.

        Raises:
            ValueError: for a sentence that does not fit the batch.
        """
        source = sample["net_input"]["src_tokens"][0]
        self._kernels.admit(
            number,
            source[source != self._pad].tolist(),
            temperature=sampling.temperature,
            beam=beam,
            prefix=[] if constraints.prefix is None else constraints.prefix[0].tolist(),
            drafts=[] if self._method.drafts is None else self._method.drafts(sample)[0],
            streams=streams,
            noise_key=list(noise_key),
            **limits_of(constraints, sampling),
        )

    def cancel(self, number: int) -> None:
        """Drop a sentence, of which no more events come."""
        self._kernels.cancel(number)

    def take(self, seconds: float) -> list[Event]:
        """Return the next events; wait up to `seconds` for the first one."""
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
        return Decoded([[hypothesis_of(output)]], [output[2]])

    def load(self) -> tuple[int, int]:
        """Return the numbers of waiting and of active sentences."""
        return self._kernels.load()

    def close(self) -> None:
        """Stop decoding; sentences that have not ended are dropped."""
        self._kernels.close()

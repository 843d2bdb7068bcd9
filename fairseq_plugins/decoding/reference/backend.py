"""The loop in PyTorch: backend `torch`, and `cuda-graphs` if its steps are captured."""

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded, StepOutput
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.recording.trace_writer import TraceWriter
from fairseq_plugins.decoding.reference.arithmetic import exact_arithmetic, on_device
from fairseq_plugins.decoding.reference.batch import Batch
from fairseq_plugins.decoding.reference.state import Advance, BeamAdvance, Draft, obeying_prefix
from fairseq_plugins.decoding.reference.verifier import DrafterIsVerifier
from fairseq_plugins.errors import ConfigurationError


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Compute on a device, exactly."""
    with on_device(device), exact_arithmetic(device):
        yield


@dataclass
class TorchBackend:
    """Runs the loop: draft, verify, keep the longest accepted prefix and the verifier's own next token, repeat."""

    method: Method  # verifier, drafter and search
    name: str = "torch"
    reason: str = "requested"
    trace: TraceWriter | None = None  # records every iteration
    active_sentences: int = 0  # number of sentences decoded at a time, 0 for all
    beam: int | None = None  # hypotheses per sentence; None for greedy search

    def decode(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> Decoded:
        """Decode a fairseq batch whose outputs begin with `first_token`."""
        batch = self._batch(sample, constraints, first_token)
        with torch.inference_mode(), _on(batch.state.tokens.device):
            # Discards each advance at once: it holds scores of the whole vocabulary.
            deque(self._loop(batch), maxlen=0)
        return Decoded(batch.outputs, batch.emitted)

    def steps(
        self, sample: dict[str, Any], constraints: Constraints, first_token: int
    ) -> Generator[list[StepOutput], None, Decoded]:
        """Decode a batch as `decode` does, and yield each iteration's result for every sentence."""
        batch = self._batch(sample, constraints, first_token)
        advances = self._loop(batch)
        while True:
            with torch.inference_mode(), _on(batch.state.tokens.device):
                advance = next(advances, None)
            if advance is None:
                return Decoded(batch.outputs, batch.emitted)
            # Before the loop removes rows.
            outputs = self._step_outputs(advance, batch)
            del advance
            yield outputs

    def _batch(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> Batch:
        if constraints.prefix is not None and self.active_sentences:
            problem = "is not supported with {--prefix-size}"
            raise ConfigurationError("--active-sentences", None, problem, "leave one of them out")
        device = sample["net_input"]["src_tokens"].device
        delays_removal = self.method.verifier.engine.has_graphs(device)
        strategy = getattr(self.method.verifier, "strategy", None)
        if strategy is not None:
            # fairseq's search objects need the sentences of a batch in step.
            delays_removal = False
            if self.active_sentences:
                problem = f"is not supported with {{{strategy.option}}}"
                raise ConfigurationError("--active-sentences", None, problem, "leave one out")
        return Batch(sample, constraints, first_token, self.active_sentences, self.beam, delays_removal)

    def _loop(self, batch: Batch) -> Iterator[Advance | BeamAdvance]:
        """Run until every sentence of the batch has ended; yield the result of every iteration."""
        method, state = self.method, batch.state
        verifier, drafter, search = method.verifier, method.drafter, method.search
        prefix = self._prefix_draft(batch)
        while batch.admit(method):
            draft = prefix or obeying_prefix(state, drafter.draft(state))
            verification = verifier.verify(state, draft)
            advance = search.advance(state, draft, verification)
            if self.trace is not None:
                assert isinstance(advance, Advance), "beam search is not traced"
                self.trace.iteration(state.sentences, advance)
            state.append(advance)
            if isinstance(advance, Advance):
                drafter.observe(advance)
            yield advance
            batch.retire(advance, method)
            # Free the scores of the whole vocabulary before the next iteration.
            del draft, verification, advance
            prefix = None

    def _prefix_draft(self, batch: Batch) -> Draft | None:
        """Return the tokens of `--prefix-size` as first draft, which the verifier is forced to accept."""
        # Beam search forces one token per step, as fairseq does.
        prefix = None if self.beam else batch.state.constraints.given_prefix()
        if prefix is not None and isinstance(self.method.verifier, DrafterIsVerifier):
            problem = "is not supported where no verifier runs"
            raise ConfigurationError("--prefix-size", None, problem, "use {--decoder gad}")
        return None if prefix is None else Draft(*prefix)

    @staticmethod
    def _step_outputs(advance: Advance | BeamAdvance, batch: Batch) -> list[StepOutput]:
        """Return the result of an iteration for each sentence of the batch."""
        assert isinstance(advance, Advance), "beam search yields no steps"
        rows = batch.state.sentences
        outputs = [StepOutput([], 0, 0, bool(ended)) for ended in batch.outputs]
        steps = zip(
            rows,
            advance.tokens.tolist(),
            advance.host_emitted,
            advance.draft.counts().tolist(),
            advance.num_accepted.tolist(),
            advance.finished,
            strict=True,
        )
        for row, tokens, count, width, accepted, finished in steps:
            if count:
                outputs[row] = StepOutput(tokens[:count], width, accepted, finished)
        return outputs

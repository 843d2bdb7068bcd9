"""Beam search in one call of compiled code: what `one_call.py` is to greedy decoding."""

from fairseq_plugins.decoding.engine.layout import BeamLayout
from fairseq_plugins.decoding.engine.native.beam import Going, NothingMayEnd
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.one_call import ITERATIONS, Ran, verifies_in_one_call
from fairseq_plugins.decoding.search.beam import BeamSearch, nothing_may_end
from fairseq_plugins.decoding.state import DecodingState, Hypothesis
from fairseq_plugins.decoding.verifier import Verifier


def searches_in_one_call(method: Method) -> bool:
    """Whether the kernels know all parts of a beam search."""
    return verifies_in_one_call(method) and type(method.search) is BeamSearch


class BeamsInOneCall:
    """Runs steps of a beam search until sentences have ended.

    Args:
        method: one that `searches_in_one_call`.
    """

    def __init__(self, method: Method) -> None:
        assert isinstance(method.verifier, Verifier)
        self.decoder = method.verifier.decoders[0]

    def run(self, state: DecodingState, enough: int) -> Ran | None:
        """Search until so many sentences have ended, or some steps are over; the state is brought up to date.

        Returns:
            what became of every row, whose steps are one number; None where this is not for the kernels.

        Raises:
            ConfigurationError: where the longest output is reached and nothing may end.
        """
        beams = state.beams
        assert beams is not None
        before, size = beams.ended, beams.size
        layout = BeamLayout(state.lengths, state.span, size, beams.holders)
        going = Going.begin(state.tokens, state.log_probs, beams.ignored, before, ITERATIONS, enough)
        last_tokens = state.last_tokens()[:, 0]
        try:
            found = self.decoder.best_continuations(last_tokens, layout, beams.scores, state.constraints, going)
        except NothingMayEnd:
            raise nothing_may_end(state.max_len) from None
        if found is None:
            return None
        state.host_lengths, beams.ended = state.lengths.tolist(), going.ended.tolist()
        steps, finished = going.steps.tolist(), going.finished.tolist()
        if not any(steps):
            raise RuntimeError("kernels: no room for a step")
        tokens, log_probs, lengths, scores = going.outputs
        lengths = lengths.tolist()
        hypotheses = [
            (place, Hypothesis(tokens[place, n, :length], log_probs[place, n, :length], scores[place, n]))
            for place, (first, last) in enumerate(zip(before, beams.ended, strict=True))
            for n, length in enumerate(lengths[place][:last])
            if n >= first
        ]
        of_rows = [(count, is_over) for count, is_over in zip(steps, finished, strict=True) for _ in range(size)]
        return [[count] for count, _ in of_rows], [is_over for _, is_over in of_rows], hypotheses

"""Decoding dependency graphs: which target tokens a model can decode in parallel (Santilli et al. 2023, section 3.5).

Greedy decoding is a triangular system of m equations (eq. 4), one for each target token. Every parallel Jacobi
iteration solves all of them at once. Tokens that become final in the same iteration do not depend on each other.
"""

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import constraints_of
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.state import DecodingState, Draft, Verification
from fairseq_plugins.decoding.reference.verifier import Verifier

SOURCE = -1
"""The node of the encoded source."""

# Initial window per source token; it grows if the target is longer.
_WINDOW_RATIO = 2.0
_WINDOW_MARGIN = 10


@dataclass(frozen=True)
class JacobiTrace:
    """Parallel Jacobi iterations of a sentence of m target tokens, up to the fixed point in iteration K."""

    tokens: list[int]  # m token ids, the fixed point, EOS included
    predicted: list[list[int]]  # K rows of m token ids, the most probable ones
    probability: list[list[float]]  # K rows of m, of the final tokens
    final_at: list[int]  # m iterations, from 1, in which the token and all before it become final
    iterations: int  # with the last one, which changes nothing (eq. 5); m at most

    @property
    def groups(self) -> list[list[int]]:
        """Positions that became final in the same iteration, in order."""
        return [list(positions) for _, positions in groupby(range(len(self.tokens)), self.final_at.__getitem__)]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Edges of the dependency graph, (from, to) as positions, starting at `SOURCE`."""
        return edges_between(self.groups)


def edges_between(groups: Sequence[Sequence[int]], most: float = math.inf) -> list[tuple[int, int]]:
    """Return the edges between groups of tokens that became final together, the first of them from `SOURCE`.

    A token depends on the source and on every token that became final before its iteration. As in Figure 4, redundant
    edges are left out (transitive reduction): only those from the previous group remain. If these are more than `most`,
    only those of its last token remain.
    """
    edges: list[tuple[int, int]] = []
    before: Sequence[int] = [SOURCE]
    for group in groups:
        sources = before if len(before) * len(group) <= most else before[-1:]
        edges += [(a, b) for b in group for a in sources]
        before = group
    return edges


@dataclass(frozen=True)
class SolvedSentence:
    """One sentence to show."""

    number: int  # in the subset, as in the H- lines of fairseq-generate
    source: str
    output: str
    labels: list[str]  # m symbols, with subword marks
    predicted: list[list[str]]  # K rows of m symbols
    trace: JacobiTrace
    identical: bool  # whether the fixed point is fairseq's own output at `--beam 1`

    @property
    def right_to_left(self) -> bool:
        """Whether the output is written from right to left."""
        kinds = [unicodedata.bidirectional(c) for c in self.output]
        return sum(kind in ("R", "AL") for kind in kinds) > kinds.count("L")

    @property
    def speed_up(self) -> float:
        """Tokens per iteration, including the last iteration, which changes nothing (eq. 5)."""
        return len(self.labels) / self.trace.iterations

    def as_json(self) -> dict[str, Any]:
        """Return all results, for other programs."""
        return {
            "sentence": self.number,
            "source": self.source,
            "output": self.output,
            "labels": self.labels,
            "predicted_labels": self.predicted,
            **asdict(self.trace),
            "probability": [[round(value, 6) for value in row] for row in self.trace.probability],
            "groups": self.trace.groups,
            "edges": self.trace.edges,
            "speed_up": self.speed_up,
            "right_to_left": self.right_to_left,
            "identical_to_fairseq": self.identical,
        }


@torch.inference_mode()
def trace(generator: DraftVerifyGenerator, sample: dict[str, Any], initial: str = "pad") -> JacobiTrace:
    """Solve a batch of one sentence by Parallel Jacobi iterations (Algorithm 1) and record them.

    The target length is unknown: iteration continues until the first EOS and all tokens before it are a fixed point.
    The generator must run the loop in PyTorch. `initial` is the first guess: "pad" as in the paper, "unk", or "source".
    """
    system = _System(generator, sample, initial)
    window = min(system.max_len + 1, math.ceil(_WINDOW_RATIO * system.source.numel()) + _WINDOW_MARGIN)
    while (solution := _solve(system, window)) is None:
        # Tokens do not depend on later ones, so a wider window reproduces the same iterates.
        window = min(system.max_len + 1, 2 * window)
    iterates, length = solution
    tokens = iterates[-1][:length]
    final_at = _final_at(iterates, tokens)
    probability = []
    for before in iterates[: max(final_at)]:
        log_probs = system.verify(before).log_probs_of(_padded(tokens, window, tokens[-1])[None])
        probability.append(log_probs[0, :length].exp().tolist())
    return JacobiTrace(
        tokens=tokens.tolist(),
        predicted=[iterate[:length].tolist() for iterate in iterates[1 : max(final_at) + 1]],
        probability=probability,
        final_at=final_at,
        iterations=len(iterates) - 1,
    )


class _System:
    """The equations of one sentence: next-token predictions of all positions at once, as with `--beam 1`."""

    def __init__(self, generator: DraftVerifyGenerator, sample: dict[str, Any], initial: str) -> None:
        self.options = generator
        backend = generator.backend
        assert isinstance(backend, TorchBackend) and isinstance(backend.method.verifier, Verifier)
        verifier = backend.method.verifier
        self.verifier = verifier
        tokens = sample["net_input"]["src_tokens"]
        self.source = tokens[0][tokens[0] != generator.pad]
        self.constraints = constraints_of(generator, sample["net_input"], None)
        self.max_len = self.constraints.max_len
        self.initial = initial
        self.verifier.start(sample)

    def first_guess(self, window: int) -> Tensor:
        """Return INITT of Algorithm 1, [window]."""
        if self.initial == "source":
            return _padded(self.source, window, self.options.pad)
        return self.source.new_full((window,), self.options.unk if self.initial == "unk" else self.options.pad)

    def verify(self, guess: Tensor) -> Verification:
        """Score every position [1, window, V], given `guess` [window] for the earlier ones."""
        first = guess.new_full((1, 1), self.options.eos)
        state = DecodingState(first, first.new_zeros(1), [0], self.constraints, first.new_empty(0))
        return self.verifier.verify(state, Draft(guess[None, :-1]))


def _solve(system: _System, window: int) -> tuple[list[Tensor], int] | None:
    """Return all iterates [window], first guess included, and the target length; None if it exceeds the window."""
    iterates = [system.first_guess(window)]
    while True:
        iterates.append(system.verify(iterates[-1]).best[0])
        before, now = iterates[-2:]
        ends = (now == system.options.eos).nonzero()
        length = int(ends[0]) + 1 if len(ends) else window
        # By Proposition 1 the first k tokens are final after k iterations, for any first guess.
        if torch.equal(before[:length], now[:length]) or len(iterates) - 1 >= length:
            return (iterates, length) if len(ends) else None


def _final_at(iterates: Sequence[Tensor], tokens: Tensor) -> list[int]:
    """Return the iteration, from 1, in which every token and all before it become final."""
    right = torch.stack([iterate[: len(tokens)] == tokens for iterate in iterates[1:]])
    prefix_right = right.long().cumprod(1)
    return (len(prefix_right) - prefix_right.sum(0) + 1).tolist()


def _padded(tokens: Tensor, width: int, value: int | Tensor) -> Tensor:
    """Cut or pad `tokens` to `width`."""
    result = tokens.new_full((width,), int(value))
    kept = tokens[:width]
    result[: len(kept)] = kept
    return result

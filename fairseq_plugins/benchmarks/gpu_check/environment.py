"""The environment of checks: device, folders and limits; decoding, and comparing outputs."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fairseq_plugins.benchmarks.bench import Bench

ROOT = Path(__file__).parents[3]

# Ids and scores of each sentence.
Generated = list[tuple[list[int], list[float]]]


@dataclass
class Environment:
    """Device, models and limits of the checks.

    Attributes:
        device: "cuda", or "cpu" in tests.
        folder: of results and models.
        shape: of models with random weights, a name in `random_models.SHAPES`.
        sentences: size of the test set.
        lengths: lengths of its shortest and longest sentence with random weights.
        vocabulary: symbols of the dictionary with random weights.
        batch_size: of the check of released models.
        checkpoints: folder of the released models.
        ends: time limit, in the time of `time.monotonic`.
        sizes: batch sizes of Triton's engine.
    """

    device: str
    folder: Path
    shape: str = "base"
    sentences: int = 96
    lengths: tuple[int, int] = (10, 50)
    vocabulary: int = 32768
    batch_size: int = 32
    checkpoints: Path = ROOT / "checkpoints"
    ends: float = field(default_factory=lambda: time.monotonic() + 600)
    sizes: tuple[int, ...] = (1, 7, 48)

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self.ends - time.monotonic())

    @property
    def timed_sizes(self) -> list[int]:
        """The smallest and the largest batch size of Triton's engine."""
        return sorted({self.sizes[0], self.sizes[-1]})

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def device_options(self) -> list[str]:
        """Options of a bench: on a CPU the loop in PyTorch, which a GPU runs by default, or Triton's interpreter."""
        if self.is_gpu:
            return []
        return ["--cpu"] if os.environ.get("TRITON_INTERPRET") == "1" else ["--cpu", "--no-compiled-steps"]


def decode(bench: Bench, generator: Any, numbers: Sequence[int], batch_size: int) -> Generated:
    """Return ids and scores of sentences, in their order."""
    outputs: dict[int, tuple[list[int], list[float]]] = {}
    for sample in bench.session.batches(bench.dataset, numbers, batch_size):
        for number, (best, *_) in zip(sample["id"].tolist(), bench.session.decode(generator, sample), strict=True):
            outputs[number] = best["tokens"].tolist(), best["positional_scores"].tolist()
    return [outputs[number] for number in numbers]


def same_ids(ours: Generated, theirs: Generated) -> int:
    """Return the number of sentences with the same token ids."""
    return sum(one[0] == other[0] for one, other in zip(ours, theirs, strict=True))


def first_difference(ours: Generated, theirs: Generated) -> str:
    """Return where the first ids differ, in words; nothing where none do."""
    for number, ((mine, _), (its, _)) in enumerate(zip(ours, theirs, strict=True)):
        for position, (a, b) in enumerate(zip_longest(mine, its)):
            if a != b:
                return f"sentence {number}, token {position}: {a} for {b}"
    return ""


def largest_difference(ours: Generated, theirs: Generated) -> float:
    """Return the largest difference of token scores, over sentences with the same ids; NaN if a score is NaN."""
    pairs = zip(ours, theirs, strict=True)
    differences = [abs(a - b) for (x, p), (y, q) in pairs if x == y for a, b in zip(p, q, strict=True)]
    # Python's `max` may ignore NaN.
    return max(differences, key=lambda difference: (math.isnan(difference), difference), default=0.0)

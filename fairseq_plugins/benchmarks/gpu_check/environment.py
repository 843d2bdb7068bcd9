"""The environment of checks: device, models of random weights, and decoding."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.benchmarks.setting import configure
from fairseq_plugins.decoding.reference.captured.graph_capture import EAGER_USES

ROOT = Path(__file__).parents[3]
# Passes over the same sentences: launched, captured, replayed.
PASSES = EAGER_USES + 2

# Ids and scores of each sentence.
Generated = list[tuple[list[int], list[float]]]


@dataclass
class Environment:
    """Device, models and limits of the checks.

    Attributes:
        device: "cuda", or "cpu" in tests.
        folder: of results and models.
        shape: of the models, a name in `replay.SHAPES`.
        sentences: size of the test set.
        lengths: lengths of its shortest and longest sentence.
        vocabulary: symbols of the dictionary.
        batch_sizes: smallest and largest batch size.
        checkpoints: folder of the released models.
        ends: time limit, in the time of `time.monotonic`.
    """

    device: str
    folder: Path
    shape: str = "base"
    sentences: int = 32
    lengths: tuple[int, int] = (10, 50)
    vocabulary: int = 32768
    batch_sizes: tuple[int, int] = (1, 32)
    checkpoints: Path = ROOT / "checkpoints"
    ends: float = field(default_factory=lambda: time.monotonic() + 600)

    @property
    def left(self) -> float:
        """Seconds until the time limit."""
        return max(0.0, self.ends - time.monotonic())

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def device_options(self) -> list[str]:
        """Options of spec-dec-bench that run the loop in PyTorch on this device."""
        return [] if self.is_gpu else ["--cpu", "--no-compiled-steps"]

    def arguments(self, *options: str) -> list[str]:
        """Return arguments of spec-dec-bench for these models, with further options."""
        shortest, longest = self.lengths
        return [
            *("--replay", self.shape, "--replay-lengths", f"{shortest},{longest}"),
            *("--replay-vocabulary", str(self.vocabulary), "--timing-sentences", str(self.sentences)),
            *self.device_options,
            *options,
        ]

    def bench(self, *options: str) -> Bench:
        """Return a bench with these models and further options of spec-dec-bench, such as --fp16."""
        return configure(self.arguments("--results", str(self.folder / "models"), *options)).bench

    def milliseconds(self, call: Callable[[], object]) -> float:
        """Return the time of a call, including the device's work."""
        synchronise: Callable[[], object] = torch.cuda.synchronize if self.is_gpu else lambda: None
        synchronise()
        start = time.perf_counter()
        call()
        synchronise()
        return 1000 * (time.perf_counter() - start)


GREEDY = Contender("greedy", "greedy")
GAD = Contender("gad", "gad", task_options={"fixed_width": True}, needs="--drafter-path")
BEAM_1 = Contender("fairseq beam 1", "beam")


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


def largest_difference(ours: Generated, theirs: Generated) -> float:
    """Return the largest difference of token scores, over sentences with the same ids; NaN if a score is NaN."""
    pairs = zip(ours, theirs, strict=True)
    differences = [abs(a - b) for (x, p), (y, q) in pairs if x == y for a, b in zip(p, q, strict=True)]
    # Python's `max` may ignore NaN.
    return max(differences, key=lambda difference: (math.isnan(difference), difference), default=0.0)

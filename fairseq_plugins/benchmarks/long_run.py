"""Does decoding slow down or grow? Many sentences in one process, and what every tenth of them took.

    spec-dec-bench ... --long-run 10000 --decoders gad --batch-size 32 --results FOLDER
"""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.benchmarks.measuring import DEFAULT_BATCH_SIZE
from fairseq_plugins.benchmarks.resident_memory import resident
from fairseq_plugins.benchmarks.tables import megabytes
from fairseq_plugins.commands.progress import progress_bar
from fairseq_plugins.commands.tables import table as markdown_table
from fairseq_plugins.errors import ConfigurationError

PARTS = 10
_SEED = 1


@dataclass
class Part:
    """A tenth of a long run.

    Attributes:
        sentences: how many sentences were decoded in it.
        seconds: in the decoder alone.
        memory: bytes at its end: resident in the process on a CPU (None where the system does not say), on a GPU what
            PyTorch has allocated.
    """

    sentences: int
    seconds: float
    memory: int | None

    @property
    def rate(self) -> float:
        """Sentences per second."""
        return self.sentences / max(self.seconds, 1e-9)


def repeated(numbers: Sequence[int], count: int) -> list[int]:
    """`count` sentences: all of them again and again, each time in another order, the same ones every time."""
    draw = random.Random(_SEED)
    sentences: list[int] = []
    while len(sentences) < count:
        sentences += draw.sample(list(numbers), len(numbers))
    return sentences[:count]


def measure(bench: Bench, contenders: Sequence[Contender], sentences: int) -> dict[str, list[Part]]:
    """Decode so many sentences with one contender after the other; returns the parts of each.

    Raises:
        ConfigurationError: for fewer sentences than parts.
    """
    if sentences < PARTS:
        raise ConfigurationError(f"--long-run {sentences}: give at least {PARTS} sentences, one for each part")
    batch_size = bench.cfg.dataset.batch_size or DEFAULT_BATCH_SIZE
    numbers = repeated(bench.order, sentences)
    warm_up = numbers[:batch_size]
    result = {}
    with progress_bar(sentences * len(contenders)) as bar:
        for contender in contenders:
            bar.set_description(contender.name, refresh=False)
            generator = bench.generator(contender)
            bench.decode(generator, warm_up, batch_size)
            parts = []
            for index in range(PARTS):
                chosen = numbers[index * sentences // PARTS : (index + 1) * sentences // PARTS]
                seconds = bench.decode(generator, chosen, batch_size, bar)[1]
                parts.append(Part(len(chosen), seconds, _memory(bench.cuda)))
            result[contender.name] = parts
    return result


def _memory(cuda: bool) -> int | None:
    return torch.cuda.memory_allocated() if cuda else resident("VmRSS") or None


def last_to_first(parts: Sequence[Part]) -> tuple[float, float | None]:
    """Speed and memory of the last part over those of the first."""
    first, last = parts[0], parts[-1]
    memory = None if first.memory is None or last.memory is None else last.memory / first.memory
    return last.rate / first.rate, memory


def table(runs: dict[str, list[Part]]) -> str:
    """Sentences per second and megabytes of every part, and the last part over the first."""
    header = ["sentences"]
    for name in runs:
        header += [f"{name}, sentences/s", "MB"]
    body, end = [], 0
    for parts in zip(*runs.values(), strict=True):
        begin, end = end + 1, end + parts[0].sentences
        cells = [f"{begin} to {end}"]
        for part in parts:
            cells += [f"{part.rate:.1f}", megabytes(part.memory)]
        body.append(cells)
    ratios = ["last / first"]
    for parts in runs.values():
        speed, memory = last_to_first(parts)
        ratios += [f"{speed:.3f}", "-" if memory is None else f"{memory:.3f}"]
    return markdown_table([*body, ratios], header)


def as_json(runs: dict[str, list[Part]], lines: Sequence[str]) -> str:
    """Everything that was measured."""
    rows = []
    for name, parts in runs.items():
        speed, memory = last_to_first(parts)
        rows.append({"name": name, "parts": list(map(asdict, parts)), "speed_ratio": speed, "memory_ratio": memory})
    return json.dumps({"rows": rows, "notes": list(lines)}, indent=2, ensure_ascii=False) + "\n"

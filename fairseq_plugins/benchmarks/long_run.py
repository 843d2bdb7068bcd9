"""Does decoding slow down or grow? Many sentences in one process, and what every tenth of them took.

    spec-dec-bench ... --long-run 10000 --decoders gad --batch-size 32 --results FOLDER
    spec-dec-bench ... --long-run 100000 --varied --active-sentences 16 --decoders gad --batch-size 64

`--varied` draws size and block size of every batch, and compares all outputs with those of fairseq's own search.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from tqdm import tqdm

from fairseq_plugins.benchmarks.bench import Bench, Tokens
from fairseq_plugins.benchmarks.contenders import CTRANSLATE2, Contender, reference_contender
from fairseq_plugins.benchmarks.measuring import DEFAULT_BATCH_SIZE, count_identical
from fairseq_plugins.benchmarks.resident_memory import resident
from fairseq_plugins.benchmarks.tables import megabytes
from fairseq_plugins.commands.progress import progress_bar
from fairseq_plugins.commands.session import precision
from fairseq_plugins.commands.tables import table as markdown_table
from fairseq_plugins.decoding import methods
from fairseq_plugins.errors import ConfigurationError

PARTS = 10
# Block sizes of --varied, up to --block-size or this.
WIDTHS = (1, 2, 3, 5, 7, 10, 15, 20, 25)
_MAX_WIDTH = 5
_SEED = 1


@dataclass
class Part:
    """A tenth of a long run.

    Attributes:
        sentences: how many sentences were decoded in it.
        seconds: in the decoder alone.
        memory: bytes at its end: resident in the process on a CPU (None where the system does not say), on a GPU what
            PyTorch has allocated; `reserved`: what it has reserved there, None on a CPU.
        identical: sentences with the token ids that they should have, None where nobody compared.
    """

    sentences: int
    seconds: float
    memory: int | None
    identical: int | None = None
    reserved: int | None = None

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


def measure(
    bench: Bench, contenders: Sequence[Contender], sentences: int, varied: bool = False
) -> dict[str, list[Part]]:
    """Decode so many sentences with one contender after the other; returns the parts of each.

    Args:
        bench: decodes.
        contenders: who.
        sentences: how many.
        varied: draw the size of every batch, up to --batch-size, and its block size, and compare the outputs.

    Raises:
        ConfigurationError: for fewer sentences than parts.
    """
    if sentences < PARTS:
        raise ConfigurationError(f"--long-run {sentences}: give at least {PARTS} sentences, one for each part")
    batch_size = bench.cfg.dataset.batch_size or DEFAULT_BATCH_SIZE
    numbers = repeated(bench.order, sentences)
    warm_up = numbers[:batch_size]
    expected = _expected(bench, batch_size) if varied else None
    result = {}
    with progress_bar(sentences * len(contenders)) as bar:
        for contender in contenders:
            bar.set_description(contender.name, refresh=False)
            generators = [bench.generator(one) for one in (_every_width(contender, bench) if varied else [contender])]
            for generator in generators:
                bench.decode(generator, warm_up, batch_size)
            draw = random.Random(_SEED) if varied else None
            parts = []
            for index in range(PARTS):
                chosen = numbers[index * sentences // PARTS : (index + 1) * sentences // PARTS]
                part = Part(len(chosen), 0.0, None, None if expected is None else 0)
                for generator, batch in _batches(generators, chosen, batch_size, draw):
                    _decode(bench, generator, batch, part, expected, bar)
                part.memory = _memory(bench.cuda)
                part.reserved = torch.cuda.memory_reserved() if bench.cuda else None
                parts.append(part)
            result[contender.name] = parts
    return result


def _expected(bench: Bench, batch_size: int) -> dict[int, Tokens]:
    """What lossless decoders should say."""
    return bench.decode(bench.generator(reference_contender(precision(bench.cfg))), bench.order, batch_size)[0]


def widths(bench: Bench) -> list[int]:
    """The block sizes of `--varied`."""
    return [width for width in WIDTHS if width <= (bench.cfg.task.block_size or _MAX_WIDTH)]


def _every_width(contender: Contender, bench: Bench) -> list[Contender]:
    """A contender with every block size, if it has any."""
    if contender.decoder == CTRANSLATE2:
        return [contender]
    if not any(option.name == "block_size" for option in fields(methods.find(contender.decoder).options)):
        return [contender]
    # Drafts that are replayed have room for what is accepted on average.
    possible = [width for width in widths(bench) if width >= (contender.replay or 0)]
    return [replace(contender, task_options={**contender.task_options, "block_size": width}) for width in possible]


def _batches(
    generators: Sequence[Any], numbers: Sequence[int], batch_size: int, draw: random.Random | None
) -> Iterator[tuple[Any, Sequence[int]]]:
    begin = 0
    while begin < len(numbers):
        size = batch_size if draw is None else draw.randint(1, batch_size)
        yield generators[0] if draw is None else draw.choice(generators), numbers[begin : begin + size]
        begin += size


def _decode(
    bench: Bench, generator: Any, batch: Sequence[int], part: Part, expected: dict[int, Tokens] | None, bar: tqdm
) -> None:
    """Decode a batch, which may hold a sentence twice, and take down what it took."""
    outputs, seconds = bench.decode(generator, batch, len(batch), bar)
    part.seconds += seconds
    if expected is not None:
        assert part.identical is not None
        part.identical += len(batch) - len(outputs) + count_identical(outputs, expected)


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
        reserved = ["MB reserved"] if _is_on_gpu(runs[name]) else []
        header += [f"{name}, sentences/s", "MB", *reserved, *(["identical"] if _is_compared(runs[name]) else [])]
    body, end = [], 0
    for parts in zip(*runs.values(), strict=True):
        begin, end = end + 1, end + parts[0].sentences
        cells = [f"{begin} to {end}"]
        for part in parts:
            compared = [] if part.identical is None else [f"{part.identical} of {part.sentences}"]
            reserved = [] if part.reserved is None else [megabytes(part.reserved)]
            cells += [f"{part.rate:.1f}", megabytes(part.memory), *reserved, *compared]
        body.append(cells)
    ratios = ["last / first"]
    for parts in runs.values():
        speed, memory = last_to_first(parts)
        same = sum(part.identical or 0 for part in parts)
        compared = [f"{same} of {sum(part.sentences for part in parts)}"] if _is_compared(parts) else []
        reserved = [f"{parts[-1].reserved / parts[0].reserved:.3f}"] if _is_on_gpu(parts) else []
        ratios += [f"{speed:.3f}", "-" if memory is None else f"{memory:.3f}", *reserved, *compared]
    return markdown_table([*body, ratios], header)


def _is_on_gpu(parts: Sequence[Part]) -> bool:
    return parts[0].reserved is not None


def _is_compared(parts: Sequence[Part]) -> bool:
    return parts[0].identical is not None


def as_json(runs: dict[str, list[Part]], lines: Sequence[str]) -> str:
    """Everything that was measured."""
    rows = []
    for name, parts in runs.items():
        speed, memory = last_to_first(parts)
        rows.append({"name": name, "parts": list(map(asdict, parts)), "speed_ratio": speed, "memory_ratio": memory})
    return json.dumps({"rows": rows, "notes": list(lines)}, indent=2, ensure_ascii=False) + "\n"

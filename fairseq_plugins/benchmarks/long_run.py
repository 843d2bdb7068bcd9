"""Measure whether speed or memory change in a long run: decode many sentences, and measure every tenth of the run.

    spec-dec-bench ... --long-run 10000 --decoders gad --batch-size 32 --results FOLDER
    spec-dec-bench ... --long-run 100000 --varied --active-sentences 16 --decoders gad --batch-size 64

`--varied` draws size and block size of every batch, and compares all outputs with those of fairseq's own search.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from fairseq_plugins.benchmarks.bench import Bench, Tokens
from fairseq_plugins.benchmarks.contenders import CTRANSLATE2, Contender, reference_contender
from fairseq_plugins.benchmarks.measuring import count_identical
from fairseq_plugins.benchmarks.tables import megabytes
from fairseq_plugins.commands.machine import resident
from fairseq_plugins.commands.progress import progress_bar
from fairseq_plugins.commands.session import precision
from fairseq_plugins.commands.tables import shown
from fairseq_plugins.commands.tables import table as markdown_table
from fairseq_plugins.decoding import methods
from fairseq_plugins.errors import ConfigurationError

PARTS = 10
# Block sizes of --varied, up to --block-size or this.
WIDTHS = (1, 2, 3, 5, 7, 10, 15, 20, 25)
_MAX_WIDTH = 5
_SEED = 1


@dataclass
class RunPart:
    """A tenth of a long run.

    Attributes:
        sentences: number of sentences.
        seconds: time in the decoder.
        memory: bytes at its end: resident memory on a CPU (None if unknown), memory allocated by PyTorch on a GPU.
        identical: number of sentences with the expected token ids, None without a comparison.
        reserved: memory reserved by PyTorch on a GPU, None on a CPU.
    """

    sentences: int
    seconds: float = 0.0
    memory: int | None = None
    identical: int | None = None
    reserved: int | None = None

    @property
    def rate(self) -> float:
        """Sentences per second."""
        return self.sentences / max(self.seconds, 1e-9)


def repeated(numbers: Sequence[int], count: int) -> list[int]:
    """Return `count` sentences: all of them repeatedly, each time in another order, with a fixed seed."""
    draw = random.Random(_SEED)
    sentences: list[int] = []
    while len(sentences) < count:
        sentences += draw.sample(list(numbers), len(numbers))
    return sentences[:count]


def measure(
    bench: Bench, contenders: Sequence[Contender], sentences: int, varied: bool = False
) -> dict[str, list[RunPart]]:
    """Decode a number of sentences with one contender after the other; return the parts of each.

    Args:
        bench: decodes.
        contenders: rows.
        sentences: number of sentences.
        varied: draw size (up to --batch-size) and block size of every batch, and compare the outputs.

    Raises:
        ConfigurationError: for fewer sentences than parts.
    """
    if sentences < PARTS:
        raise ConfigurationError(f"--long-run {sentences}: give at least {PARTS} sentences, one for each part")
    numbers = repeated(bench.order, sentences)
    expected = _expected(bench) if varied else None
    result: dict[str, list[RunPart]] = {}
    with progress_bar(sentences * len(contenders)) as bar:
        for contender in contenders:
            bar.set_description(contender.name, refresh=False)
            generators = [bench.generator(one) for one in (_every_width(contender, bench) if varied else [contender])]
            for generator in generators:
                bench.decode(generator, numbers[: bench.batch_size], bench.batch_size)
            draw = random.Random(_SEED)
            result[contender.name] = parts = []
            for index in range(PARTS):
                left = numbers[index * sentences // PARTS : (index + 1) * sentences // PARTS]
                part = RunPart(len(left), identical=0 if varied else None)
                while left:
                    size = draw.randint(1, bench.batch_size) if varied else bench.batch_size
                    batch, left = left[:size], left[size:]
                    outputs, seconds = bench.decode(draw.choice(generators), batch, len(batch), bar)
                    part.seconds += seconds
                    if expected is not None and part.identical is not None:
                        # A batch may hold a sentence twice.
                        part.identical += len(batch) - len(outputs) + count_identical(outputs, expected)
                part.memory = torch.cuda.memory_allocated() if bench.cuda else resident("VmRSS") or None
                part.reserved = torch.cuda.memory_reserved() if bench.cuda else None
                parts.append(part)
    return result


def _expected(bench: Bench) -> dict[int, Tokens]:
    """Return the expected outputs of lossless decoders."""
    generator = bench.generator(reference_contender(precision(bench.cfg)))
    return bench.decode(generator, bench.order, bench.batch_size)[0]


def widths(bench: Bench) -> list[int]:
    """Return the block sizes of `--varied`."""
    return [width for width in WIDTHS if width <= (bench.cfg.task.block_size or _MAX_WIDTH)]


def _every_width(contender: Contender, bench: Bench) -> list[Contender]:
    """Return a contender with every block size, or as it is without the option."""
    if contender.decoder == CTRANSLATE2:
        return [contender]
    if not any(option.name == "block_size" for option in fields(methods.find(contender.decoder).options)):
        return [contender]
    # Replayed drafts must be longer than the mean accepted length.
    possible = [width for width in widths(bench) if width >= (contender.replay or 0)]
    return [replace(contender, task_options={**contender.task_options, "block_size": width}) for width in possible]


def last_to_first(parts: Sequence[RunPart]) -> tuple[float, float | None]:
    """Return speed and memory of the last part over those of the first."""
    first, last = parts[0], parts[-1]
    return last.rate / first.rate, last.memory / first.memory if last.memory and first.memory else None


def table(runs: dict[str, list[RunPart]]) -> str:
    """Return a table of sentences per second and megabytes of every part, and the ratio of last to first part."""
    header, ratios = ["sentences"], ["last / first"]
    ends = list(accumulate((part.sentences for part in next(iter(runs.values()))), initial=0))
    columns = [[f"{begin + 1} to {end}" for begin, end in pairwise(ends)]]
    for name, parts in runs.items():
        speed, memory = last_to_first(parts)
        header += [f"{name}, sentences/s", "MB"]
        ratios += [f"{speed:.3f}", shown(memory, ".3f")]
        columns += [[f"{part.rate:.1f}" for part in parts], [megabytes(part.memory) for part in parts]]
        first, last = parts[0].reserved, parts[-1].reserved
        if first is not None and last is not None:
            header.append("MB reserved")
            ratios.append(f"{last / first:.3f}")
            columns.append([megabytes(part.reserved) for part in parts])
        if parts[0].identical is not None:
            header.append("identical")
            ratios.append(f"{sum(part.identical or 0 for part in parts)} of {ends[-1]}")
            columns.append([f"{part.identical} of {part.sentences}" for part in parts])
    return markdown_table([*zip(*columns, strict=True), ratios], header)


def note(bench: Bench, varied: bool) -> str:
    """Return a note on the measurement."""
    active = bench.cfg.task.active_sentences
    sizes = f"batches of 1 to {bench.batch_size}" if varied else f"at batch size {bench.batch_size}"
    sizes += f", {active} sentences decoded at a time" if active else ""
    if varied:
        sizes += f", block sizes {', '.join(map(str, widths(bench)))}, both drawn; *identical* to "
        sizes += reference_contender(precision(bench.cfg)).name
    return (
        f"Subset {bench.subset}: its {len(bench.order)} sentences repeatedly, each time in another order, {sizes}; "
        "time in the decoder only, memory of the whole process at the end of each part (on a GPU memory allocated by "
        "PyTorch); one decoder after the other."
    )


def records(runs: dict[str, list[RunPart]]) -> list[dict[str, Any]]:
    """Return all measurements for JSON."""
    names = ("speed_ratio", "memory_ratio")
    return [
        {"name": name, "parts": list(map(asdict, parts)), **dict(zip(names, last_to_first(parts), strict=True))}
        for name, parts in runs.items()
    ]

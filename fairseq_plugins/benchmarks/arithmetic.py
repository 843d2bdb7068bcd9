"""What decoding costs over its arithmetic: the matrix products of every part by themselves, beside whole sentences.

    spec-dec-bench DATA_BIN ... --cpu --arithmetic --threads 1 --results FOLDER

The products are those of the models' own compiled layers, with as many rows as the decoder gives them at `--batch-size`
(1 unless it is given) as long as all sentences of a batch go on.
"""

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.benchmarks.replay import ReplayedDrafter
from fairseq_plugins.commands.progress import progress_bar
from fairseq_plugins.commands.tables import table as markdown_table
from fairseq_plugins.decoding.drafters.adaptive import AdaptiveDrafter
from fairseq_plugins.decoding.drafters.features import FeatureDrafter
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.native.kernels import sentences_together
from fairseq_plugins.decoding.engine.native.layers import IN_PANELS, NativeLayers, NativeLinear
from fairseq_plugins.decoding.engine.native.source import NativeLinears
from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.verifier import Verifier
from fairseq_plugins.errors import ConfigurationError

# A part is repeated until it has taken so many seconds.
_SECONDS = 0.05


@dataclass(frozen=True)
class Part:
    """Matrix products that are computed together.

    Attributes:
        row: the row of the table of contenders.
        name: of the part.
        times: how often a sentence needs it, on average; what it shares with others counts for its share.
        rows: of every product.
        products: multiplications of one row.
        seconds: of all of them, once.
    """

    row: str
    name: str
    times: float
    rows: int
    products: int
    seconds: float

    @property
    def gflops(self) -> float:
        """Billions of multiplications and additions a second."""
        return 2e-9 * self.rows * self.products / self.seconds


@dataclass(frozen=True)
class Sentence:
    """Seconds that a sentence takes with everything, and the iterations that it takes, on average."""

    row: str
    seconds: float
    iterations: float


def measure(
    bench: Bench, contenders: Sequence[Contender], numbers: Sequence[int], repeats: int, batch: int
) -> tuple[list[Part], list[Sentence]]:
    """Decode sentences, and time the products that this takes.

    Args:
        bench: loads and decodes.
        contenders: rows of a verifier alone, and with a drafter that reads its states.
        numbers: of the sentences.
        repeats: how often they are decoded, and the products timed; medians count.
        batch: so many sentences are decoded at a time.

    Raises:
        ConfigurationError: for a row whose products cannot be told.
    """
    parts: list[Part] = []
    sentences: list[Sentence] = []
    source = sum(int(bench.dataset.src_sizes[number]) for number in numbers) // len(numbers)
    with progress_bar((1 + repeats) * len(contenders) * len(numbers)) as bar:
        for contender in contenders:
            generator = bench.generator(contender)
            before = generator.stats.iterations
            bench.decode(generator, numbers, batch, bar)
            iterations = (generator.stats.iterations - before) / len(numbers)
            seconds, timed = [], []
            # In turns, for how fast a machine is changes.
            for _ in range(repeats):
                seconds.append(bench.decode(generator, numbers, batch, bar)[1] / len(numbers))
                timed.append(_parts(contender.name, generator.method, source, iterations, batch))
            sentences.append(Sentence(contender.name, statistics.median(seconds), iterations))
            parts += [
                replace(same[0], seconds=statistics.median(part.seconds for part in same))
                for same in zip(*timed, strict=True)
            ]
    return parts, sentences


def _parts(row: str, method: Method, source: int, iterations: float, batch: int) -> list[Part]:
    verifier, drafter = method.verifier, method.drafter
    if isinstance(drafter, AdaptiveDrafter):
        raise ConfigurationError(
            f"--arithmetic: {row} verifies as many tokens as pay, now these and now those; name the row of fixed "
            "width in --decoders"
        )
    if isinstance(drafter, ReplayedDrafter):
        drafter = drafter.inner
    known = isinstance(verifier, Verifier) and len(verifier.decoders) == 1 and verifier.decoders[0].native_layers
    if not known:
        raise ConfigurationError(f"--arithmetic: the products of {row} are not compiled ones; leave it out")
    encoder, decoder = verifier.encoders[0], verifier.decoders[0]
    width = drafter.block_size if isinstance(drafter, FeatureDrafter) else 0
    together = sentences_together(decoder.native_layers.width).of(batch, 1 + width)

    def of_source(name: str, linears: list[NativeLinear]) -> Part:
        return _part(row, name, 1 / batch, batch * source, linears)

    def of_iteration(name: str, each: int, linears: list[NativeLinear]) -> Part:
        return _part(row, name, iterations / together, together * each, linears)

    parts = [
        of_source("encoder", _linears(encoder.native_layers)),
        of_source("source for the verifier", _of_source(decoder)),
        of_iteration("verification", 1 + width, [*_linears(decoder.native_layers), decoder.native_output]),
    ]
    if isinstance(drafter, FeatureDrafter):
        own, path = drafter.decoder.cached, drafter.path.linears if drafter.path else []
        parts += [
            of_source("source for the drafter", _of_source(own)),
            of_iteration("draft", width, [*_linears(own.native_layers), own.native_output]),
            _part(row, "path of the draft", iterations * width / together, together, path),
            of_iteration("states read by the drafter", 1 + width, drafter.reading),
        ]
    return [part for part in parts if part.products > 0]


def _linears(layers: NativeLayers | None) -> list[NativeLinear]:
    return [] if layers is None else [held for held in layers.tensors if isinstance(held, NativeLinear)]


def _of_source(decoder: CachedDecoder) -> list[NativeLinear]:
    """What makes keys and values of the source."""
    linears = decoder.write_cross
    return list(linears.linears) if isinstance(linears, NativeLinears) else []


def _part(row: str, name: str, times: float, rows: int, linears: Sequence[NativeLinear | None]) -> Part:
    compiled = [linear for linear in linears if linear is not None]
    calls = [(linear, torch.randn(rows, linear.inputs), torch.empty(rows, linear.outputs)) for linear in compiled]

    def run() -> float:
        begin = time.perf_counter()
        for linear, x, y in calls:
            linear.write(x, y)
        return time.perf_counter() - begin

    run()
    often = max(1, int(_SECONDS / max(run(), 1e-6)))
    # Calls of Python are not arithmetic: what they take is measured with a product of next to nothing.
    seconds = sum(run() for _ in range(often)) / often
    seconds = max(seconds - len(calls) * _call_seconds(compiled), 1e-9)
    return Part(row, name, times, rows, sum(linear.inputs * linear.outputs for linear in compiled), seconds)


def _call_seconds(linears: Sequence[NativeLinear]) -> float:
    """What a call from Python takes by itself."""
    if not linears:
        return 0.0
    nothing = NativeLinear(linears[0].kernels, (torch.zeros(1, 1), None), IN_PANELS)
    x, y, often = torch.zeros(1, 1), torch.zeros(1, 1), 2000
    begin = time.perf_counter()
    for _ in range(often):
        nothing.write(x, y)
    return (time.perf_counter() - begin) / often


def tables(parts: Sequence[Part], sentences: Sequence[Sentence]) -> list[tuple[str, str]]:
    """The products of every part, and whole sentences beside the sum of their products."""
    body = [
        [part.row, part.name, f"{part.times:.2f}", part.rows, f"{part.products / 1e6:.3f}", f"{1e3 * part.seconds:.4f}"]
        + [f"{part.gflops:.0f}", f"{1e3 * part.times * part.seconds:.3f}"]
        for part in parts
    ]
    header = ["decoder", "part", "times", "rows", "million products a row", "ms", "GFLOP/s", "ms of a sentence"]
    whole = []
    for sentence in sentences:
        products = sum(part.times * part.seconds for part in parts if part.row == sentence.row)
        whole.append(
            [sentence.row, f"{sentence.iterations:.2f}", f"{1e3 * products:.3f}", f"{1e3 * sentence.seconds:.3f}"]
            + [f"{sentence.seconds / products:.2f}"]
        )
    titles = ["decoder", "iterations", "ms of products", "ms in all", "ratio"]
    return [("Products", markdown_table(body, header)), ("Sentences", markdown_table(whole, titles))]


def as_json(parts: Sequence[Part], sentences: Sequence[Sentence], lines: Sequence[str]) -> str:
    """Everything that was measured."""
    record = {"parts": list(map(asdict, parts)), "sentences": list(map(asdict, sentences)), "notes": list(lines)}
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"

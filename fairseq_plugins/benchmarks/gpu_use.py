"""What ran on a GPU besides what was asked for: whether there were CUDA graphs, how many, and which attention."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.commands.tables import table as markdown_table
from fairseq_plugins.decoding.engine.attention_backend import attention_seen
from fairseq_plugins.decoding.engine.graph_capture import Graphs
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.torch_backend import TorchBackend


@dataclass(frozen=True)
class GpuUse:
    """How a decoder used the GPU.

    Attributes:
        graphs: "on", "off" or "gave up".
        captures, dropped, replays, launched: as in `Graphs`.
        attention: the backends of its PyTorch attention.
    """

    graphs: str
    captures: int
    dropped: int
    replays: int
    launched: int
    attention: str


def graphs_of(generator: DraftVerifyGenerator) -> Graphs | None:
    """The graphs of a generator that has decoded; None where it has none."""
    backend = generator.backend
    return backend.method.verifier.engine.graphs if isinstance(backend, TorchBackend) else None


def attention_of(bench: Bench, contender: Contender) -> str:
    """Which attention a decoder's first sentence runs: no step of it comes from a graph."""
    generator = bench.generator(contender)
    return attention_seen(lambda: bench.decode(generator, bench.order[:1], 1))


def gpu_use(bench: Bench, contender: Contender, generator: Any) -> GpuUse | None:
    """How a decoder has used the GPU so far; None for one that is not ours."""
    if not isinstance(generator, DraftVerifyGenerator):
        return None
    graphs = graphs_of(generator)
    assert graphs is not None
    return GpuUse(
        graphs.state,
        graphs.captures,
        graphs.dropped,
        graphs.replays,
        graphs.launched,
        attention_of(bench, contender),
    )


def lines(uses: Sequence[tuple[str, GpuUse | None]]) -> list[str]:
    """A line for every decoder that has used a GPU, by its name."""
    return [
        f"{name} on the GPU: CUDA graphs {use.graphs}, {use.captures} captures, {use.dropped} dropped, {use.replays} "
        f"steps from graphs, {use.launched} launched; attention: {use.attention}."
        for name, use in uses
        if use is not None
    ]


def table(uses: Sequence[tuple[str, GpuUse]]) -> str:
    """A row for every decoder, by its name."""
    header = ["decoder", "CUDA graphs", "captures", "dropped", "steps from graphs", "launched", "attention"]
    return markdown_table([[name, *map(str, asdict(use).values())] for name, use in uses], header)

"""CUDA graphs and attention that ran on a GPU, for the tables."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.captured.attention_backend import attention_used
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.shared.tables import table as markdown_table


@dataclass(frozen=True)
class GpuUse:
    """How a decoder used the GPU; counts as in `Graphs`."""

    graphs: str  # "on", "off" or "gave up"
    captures: int
    dropped: int
    replays: int
    launched: int
    attention: str  # backends of PyTorch's attention


def graphs_of(generator: Any) -> Graphs | None:
    """Return the graphs of one of our generators that has decoded; None without graphs, and for other generators."""
    backend = generator.backend if isinstance(generator, DraftVerifyGenerator) else None
    return backend.method.verifier.engine.graphs if isinstance(backend, TorchBackend) else None


def gpu_use(bench: Bench, contender: Contender, generator: Any) -> GpuUse | None:
    """Return how one of our decoders has used the GPU so far; None for others."""
    graphs = graphs_of(generator)
    if graphs is None:
        return None
    # The first sentence of a new generator runs without graphs, so that its attention is visible.
    new_generator = bench.generator(contender)
    attention = attention_used(lambda: bench.decode(new_generator, bench.order[:1], 1))
    return GpuUse(graphs.state, graphs.captures, graphs.dropped, graphs.replays, graphs.launched, attention)


def table(uses: Sequence[tuple[str, GpuUse]]) -> str:
    """Return a table with a row for every decoder."""
    header = ["decoder", "CUDA graphs", "captures", "dropped", "steps from graphs", "launched", "attention"]
    return markdown_table([[name, *map(str, asdict(use).values())] for name, use in uses], header)

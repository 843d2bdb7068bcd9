"""The GPU path on a pretended GPU: token ids, devices, captures, and budgets of launches and waits.

The budgets are current counts. A change that lowers a count lowers its budget here; none may exceed it.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.captured import graph_capture
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.decoding.reference.engine import Engine
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.pretended_gpu import moved, pretended_gpu
from tests.support import Options, ids, make_drafter, make_generator, make_sample, make_task, make_transformer

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SOURCES = {1: [9], 8: [3, 5, 9, 12, 4, 7, 11, 6]}


@dataclass(frozen=True)
class Case:
    """A decoder, and what an iteration may take at most.

    Attributes:
        how: the decoder.
        outside, in_graphs: launches outside of graphs and inside.
        first: launches outside of graphs in the first iteration, which encodes the sources.
        drafter: options of the trained drafter.
        active: sentences decoded at a time; 0 for all.
        waits: of the host.
    """

    how: Options
    outside: int
    in_graphs: int
    first: int = 0
    drafter: Mapping[str, Any] = field(default_factory=dict)
    active: int = 0
    waits: int = 1


FEATURES = {"drafter_context": "features", "transition_rank": 3}
CASES = {
    "greedy": Case(Options("greedy"), 4, 70, 17),
    "gad": Case(Options("gad", 5), 14, 124, 38),
    # A batch of sentences that come in is cut out with one more wait.
    "gad, some at a time": Case(Options("gad", 5), 21, 123, 49, active=5, waits=2),
    "gad, features": Case(Options("gad", 5), 9, 134, 26, FEATURES),
    "gad++": Case(Options("gad++", 5, top_beta=3, tau=1.0), 14, 143, 38),
    "nat": Case(Options("nat", 5), 43, 49, 56),
    "blockwise": Case(Options("blockwise"), 17, 96, 23),
    "iad": Case(Options("iad"), 25, 76, 52),
    "reuse": Case(Options("reuse"), 39, 76, 58),
    "jacobi": Case(Options("jacobi"), 21, 76, 35),
    "gs-jacobi": Case(Options("gs-jacobi", 3), 21, 76, 35),
    "hybrid-jacobi": Case(Options("hybrid-jacobi", 10, jacobi_length=9), 24, 76, 38),
    "fast-beam": Case(Options("fast-beam"), 22, 98, 30),
}


# Few repeat each other: one precision and batch size for all, and what differs in others.
RUNS = [(name, "fp16", 8) for name in CASES]
RUNS += [(name, "fp32", 1) for name in ("greedy", "gad", "gad, features", "iad", "fast-beam")] + [("gad", "bf16", 8)]


@dataclass
class Decoded:
    """Ids of every pass; of every iteration launches outside and inside of graphs and waits; waits after the last."""

    ids: list[list[list[int]]]
    iterations: list[tuple[int, int, int]]
    waits_at_end: int
    graphs: Graphs

    def medians(self) -> tuple[int, int]:
        """Return launches outside and inside of graphs after the first iteration, which encodes the sources."""
        outside, inside, _ = zip(*self.iterations[1:], strict=True)
        return statistics.median_high(outside), statistics.median_high(inside)


def decode_on_gpu(
    monkeypatch: pytest.MonkeyPatch,
    models: nn.ModuleList,
    task: Any,
    how: Options,
    sample: dict[str, Any],
    drafts: list[list[list[int]]] | None = None,
    batch_invariant: bool = False,
    passes: int = 1,
    **search: Any,
) -> Decoded:
    """Decode a batch with a verifier and maybe a drafter, which move to the pretended GPU; count the last pass."""
    monkeypatch.setattr(graph_capture, "EAGER_USES", 0)
    with pretended_gpu(monkeypatch) as gpu:
        verifier, *drafter = moved(models)
        graphs = Graphs(gpu.capture)
        engine = Engine(graphs=graphs, batch_invariant=batch_invariant)
        generator, _ = make_generator([verifier], task, how, *drafter, engine=engine, **search)
        generator.weights_are_fixed = True  # as in commands
        generator.drafts = drafts and (lambda sample: drafts)
        on_gpu, found = moved(sample), [ids(generator.generate([verifier], moved(sample))) for _ in range(passes - 1)]
        backend, iterations = generator.backend, []
        assert isinstance(backend, TorchBackend)
        loop = backend._loop

        def watched(batch: Any) -> Iterator[Any]:
            for advance in loop(batch):
                iterations.append((gpu.launches["outside"], gpu.launches["in graphs"], gpu.waits.total()))
                gpu.launches.clear()
                gpu.waits.clear()
                yield advance

        monkeypatch.setattr(backend, "_loop", watched)
        gpu.launches.clear()
        gpu.waits.clear()
        outputs = generator.generate([verifier], on_gpu)
        waits_at_end = gpu.waits.total()
        found.append(ids(outputs))
    return Decoded(found, iterations, waits_at_end, graphs)


@pytest.mark.parametrize("name, precision, batch", RUNS)
@pytest.mark.usefixtures("device_guard")
def test_ids_and_budgets(monkeypatch: pytest.MonkeyPatch, name: str, precision: str, batch: int) -> None:
    """Captured and replayed; an operation on tensors of two devices or a wait in a capture is an error."""
    case, is_half = CASES[name], precision != "fp32"
    how, task = case.how, make_task(40)
    model: nn.Module = make_transformer(task, 3, decoder_layers=1)
    drafter = make_drafter(task, 4, verifier=model, decoder_layers=1, **case.drafter)
    if how.spec.name == "blockwise":
        task, model = make_blockwise(3, 40)
    models = nn.ModuleList([drafter if how.spec.name == "nat" else model, drafter]).to(DTYPES[precision])
    sample = make_sample(task, SOURCES[batch])
    search = {"max_len_b": 7, "beam_size": 3 if how.spec.searches_beams else 1, "active_sentences": case.active}
    # Lossless decoders are compared with `greedy`, on the CPU.
    reference = Options("greedy") if how.spec.is_lossless and not how.spec.searches_beams else how
    on_cpu, _ = make_generator([models[0]], task, reference, drafter, engine=Engine(batch_invariant=is_half), **search)
    expected = ids(on_cpu.generate([models[0]], sample))
    # Right at the beginning, and wrong after that.
    drafts = [[output[:3] + [9, 9]] for output in expected]
    decoded = decode_on_gpu(monkeypatch, models, task, how, sample, drafts, batch_invariant=is_half, passes=2, **search)
    assert decoded.ids == [expected, expected]
    assert decoded.graphs.captures and not decoded.graphs.failed
    outside, inside = decoded.medians()
    assert outside <= case.outside
    assert inside <= case.in_graphs
    (first, _, waits_of_first), *others = decoded.iterations
    assert first <= case.first
    assert max(waits for *_, waits in others) <= case.waits
    # At most 2 at the start of a batch, and 2 at its end.
    assert waits_of_first <= 2 + 1 and decoded.waits_at_end <= 2


@pytest.mark.usefixtures("device_guard")
def test_mixed_devices_waits_and_captures_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pretended GPU raises the errors of a GPU."""
    host = torch.ones(3)
    with pretended_gpu(monkeypatch) as gpu:
        on_gpu = moved(torch.ones(3))
        with pytest.raises(RuntimeError, match="same device: add"):
            on_gpu + host
        assert (on_gpu + on_gpu).tolist() == [2, 2, 2]
        assert gpu.launches["outside"] == 1 and gpu.waits.total() == 1
        with pytest.raises(AssertionError, match="waits in a capture"):
            gpu.capture(lambda: (on_gpu[: int(on_gpu.sum())], None))


@pytest.mark.usefixtures("device_guard")
def test_a_graph_runs_again_on_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu:
        value, kept = moved(torch.ones(2)), moved(torch.zeros(2))
        replay = gpu.capture(lambda: (kept.copy_(value * 2 + 1), None))
        value.fill_(4)
        gpu.launches.clear()
        assert replay()[0].tolist() == [9, 9]
        assert gpu.launches == {"in graphs": 3, "graphs": 1}
        # Results that were not copied are lost.
        lost = gpu.capture(lambda: (value * 2, None))()[0]
        assert lost.isnan().all()

"""The GPU path on a pretended GPU: token ids, devices, captures, and budgets of launches and waits.

The budgets are current counts. A change that lowers a count lowers its budget here; none may exceed it.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from fairseq_plugins.decoding.engine import graphed_decoder
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.graph_capture import Graphs
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.torch_backend import TorchBackend
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.pretended_gpu import PretendedGpu, moved, pretended_gpu
from tests.support import Options, ids, make_drafter, make_generator, make_sample, make_task, make_transformer

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SOURCES = {1: [9], 8: [3, 5, 9, 12, 4, 7, 11, 6]}


@dataclass(frozen=True)
class Case:
    """A decoder, and what an iteration may take at most.

    Attributes:
        how: the decoder.
        outside, in_graphs: launches outside of graphs and inside.
        drafter: options of the trained drafter.
        active: sentences decoded at a time; 0 for all.
        waits: of the host.
    """

    how: Options
    outside: int
    in_graphs: int
    drafter: Mapping[str, Any] = field(default_factory=dict)
    active: int = 0
    waits: int = 1


FEATURES = {"drafter_context": "features", "transition_rank": 3}
CASES = {
    "greedy": Case(Options("greedy"), 4, 76),
    "gad": Case(Options("gad", 5), 12, 123),
    # A batch of sentences that come in is cut out with one more wait.
    "gad, some at a time": Case(Options("gad", 5), 23, 123, active=5, waits=2),
    "gad, features": Case(Options("gad", 5), 9, 129, FEATURES),
    "gad++": Case(Options("gad++", 5, top_beta=3, tau=1.0), 12, 143),
    "nat": Case(Options("nat", 5), 40, 49),
    "blockwise": Case(Options("blockwise"), 17, 96),
    "iad": Case(Options("iad"), 38, 76),
    "reuse": Case(Options("reuse"), 52, 76),
    "jacobi": Case(Options("jacobi"), 21, 76),
    "gs-jacobi": Case(Options("gs-jacobi", 3), 21, 76),
    "hybrid-jacobi": Case(Options("hybrid-jacobi", 10, jacobi_length=9), 24, 76),
    "fast-beam": Case(Options("fast-beam"), 64, 35),
}


def counted(gpu: PretendedGpu, generator: DraftVerifyGenerator, sample: dict[str, Any]) -> tuple[int, int, int]:
    """Return the median of launches outside and inside of graphs, and the maximum of waits, after the first iteration.

    The first iteration encodes the sources.
    """
    backend = generator.backend
    assert isinstance(backend, TorchBackend)
    found = []
    with torch.no_grad():
        for _ in backend.advances(*generator.request(sample)):
            found.append((gpu.launches["outside"], gpu.launches["in graphs"], gpu.waits.total()))
            gpu.launches.clear()
            gpu.waits.clear()
    outside, inside, waits = zip(*found[1:], strict=True)
    return statistics.median_high(outside), statistics.median_high(inside), max(waits)


@pytest.mark.parametrize("precision, batch", [("fp32", 1), ("fp16", 8)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("device_guard")
def test_ids_and_budgets(monkeypatch: pytest.MonkeyPatch, name: str, precision: str, batch: int) -> None:
    """Launched, captured and replayed; an operation on tensors of two devices or a wait in a capture is an error."""
    case, is_half = CASES[name], precision != "fp32"
    how, task = case.how, make_task(40)
    model: nn.Module = make_transformer(task, 3, decoder_layers=1)
    drafter = make_drafter(task, 4, verifier=model, decoder_layers=1, **case.drafter)
    if how.spec.name == "blockwise":
        task, model = make_blockwise(3, 40)
    models = nn.ModuleList([model, drafter]).to(DTYPES[precision])
    verifier = drafter if how.spec.name == "nat" else model
    sample = make_sample(task, SOURCES[batch])
    search = {"max_len_b": 7, "beam_size": 3 if how.spec.searches_beams else 1, "active_sentences": case.active}
    # Lossless decoders are compared with `greedy`, on the CPU.
    reference = Options("greedy") if how.spec.is_lossless and not how.spec.searches_beams else how
    expected_of, _ = make_generator(
        [verifier], task, reference, drafter, engine=Engine(batch_invariant=is_half), **search
    )
    expected = ids(expected_of.generate([verifier], sample))
    monkeypatch.setattr(graphed_decoder, "EAGER_USES", 0)
    with pretended_gpu(monkeypatch) as gpu:
        moved(models)
        graphs = Graphs(gpu.capture)
        engine = Engine(graphs=graphs, batch_invariant=is_half)
        generator, _ = make_generator([verifier], task, how, drafter, engine=engine, **search)
        # Right at the beginning, and wrong after that.
        drafts = [[output[:3] + [9, 9]] for output in expected]
        generator.drafts = lambda sample: [drafts[number] for number in sample["id"].tolist()]
        on_gpu = moved(sample)
        for _ in range(2):
            assert ids(generator.generate([verifier], on_gpu)) == expected
        assert graphs.captures and not graphs.failed
        gpu.launches.clear()
        gpu.waits.clear()
        outside, inside, waits = counted(gpu, generator, on_gpu)
    assert outside <= case.outside
    assert inside <= case.in_graphs
    assert waits <= case.waits


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

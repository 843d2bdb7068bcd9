"""The GPU path on a pretended GPU: token ids, devices, captures, and budgets of launches and waits.

The budgets are current counts. A change that lowers a count lowers its budget here; none may exceed it.
"""

import statistics
from dataclasses import dataclass
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
from tests.pretended_gpu import PretendedGpu, build_device_guard, load_device_guard, moved, pretended_gpu
from tests.sharing import made_once
from tests.support import Options, ids, make_drafter, make_generator, make_sample, make_task, make_transformer

DECODERS = {
    "greedy": Options("greedy"),
    "gad": Options("gad", 5),
    "gad++": Options("gad++", 5, top_beta=3, tau=1.0),
    "nat": Options("nat", 5),
    "blockwise": Options("blockwise"),
    "iad": Options("iad"),
    "jacobi": Options("jacobi"),
    "gs-jacobi": Options("gs-jacobi", 3),
    "hybrid-jacobi": Options("hybrid-jacobi", 10, jacobi_length=9),
    "fast-beam": Options("fast-beam"),
}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SOURCES = {1: [9], 8: [3, 5, 9, 12, 4, 7, 11, 6]}


@dataclass(frozen=True)
class Budget:
    """Budget of an iteration: launches outside and inside of graphs, and waits of the host."""

    outside: int
    in_graphs: int
    waits: int


BUDGETS = {
    "greedy": Budget(30, 53, 1),
    "gad": Budget(47, 107, 1),
    "gad++": Budget(81, 107, 1),
    "nat": Budget(54, 54, 1),
    "blockwise": Budget(61, 53, 1),
    "iad": Budget(74, 53, 2),
    "jacobi": Budget(71, 53, 1),
    "gs-jacobi": Budget(71, 53, 1),
    "hybrid-jacobi": Budget(74, 53, 1),
    "fast-beam": Budget(61, 52, 1),
}


@pytest.fixture(scope="session")
def _device_guard(tmp_path_factory: pytest.TempPathFactory) -> None:
    load_device_guard(made_once(tmp_path_factory, "device-guard", build_device_guard))


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


@pytest.mark.parametrize("precision, batch", [("fp32", 1), ("fp32", 8), ("fp16", 8), ("bf16", 1)])
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.usefixtures("_device_guard")
def test_ids_and_budgets(monkeypatch: pytest.MonkeyPatch, decoder: str, precision: str, batch: int) -> None:
    """Operations on tensors of two devices and waits in a capture are errors."""
    task = make_task(40)
    model: nn.Module = make_transformer(task, 3)
    drafter = make_drafter(task, 4, verifier=model)
    if decoder == "blockwise":
        task, model = make_blockwise(3, 40)
    models = nn.ModuleList([model, drafter]).to(DTYPES[precision])
    verifier = drafter if decoder == "nat" else model
    is_half, beam = precision != "fp32", 3 if decoder == "fast-beam" else 1
    sample, how = make_sample(task, SOURCES[batch]), DECODERS[decoder]
    search = {"max_len_b": 9, "beam_size": beam}
    reference, _ = make_generator([verifier], task, how, drafter, engine=Engine(batch_invariant=is_half), **search)
    expected = ids(reference.generate([verifier], sample))
    monkeypatch.setattr(graphed_decoder, "EAGER_USES", 0)
    with pretended_gpu(monkeypatch) as gpu:
        moved(models)
        graphs = Graphs(gpu.capture)
        engine = Engine(graphs=graphs, batch_invariant=is_half)
        generator, _ = make_generator([verifier], task, how, drafter, engine=engine, **search)
        on_gpu = moved(sample)
        for _ in range(2):
            assert ids(generator.generate([verifier], on_gpu)) == expected
        assert graphs.captures and not graphs.failed
        gpu.launches.clear()
        gpu.waits.clear()
        outside, inside, waits = counted(gpu, generator, on_gpu)
    budget = BUDGETS[decoder]
    assert outside <= budget.outside
    assert inside <= budget.in_graphs
    assert waits <= budget.waits


def test_mixed_devices_waits_and_captures_are_seen(monkeypatch: pytest.MonkeyPatch, _device_guard: None) -> None:
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


def test_a_graph_runs_again_on_the_same_memory(monkeypatch: pytest.MonkeyPatch, _device_guard: None) -> None:
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

"""The GPU path on a pretended GPU: token ids, devices and captures."""

import pytest
import torch
from torch import nn

from fairseq_plugins.decoding.reference.captured import graph_capture
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.decoding.reference.engine import Engine
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.pretended_gpu import CUDA, moved, pretended_gpu
from tests.support import Options, ids, make_drafter, make_generator, make_sample, make_task, make_transformer

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SOURCES = {1: [9], 8: [3, 5, 9, 12, 4, 7, 11, 6]}
CASES = {
    "greedy": Options("greedy"),
    "gad": Options("gad", 5),
    "gad, some at a time": Options("gad", 5),
    "gad, features": Options("gad", 5),
    "gad++": Options("gad++", 5, top_beta=3, tau=1.0),
    "nat": Options("nat", 5),
    "blockwise": Options("blockwise"),
    "iad": Options("iad"),
    "reuse": Options("reuse"),
    "jacobi": Options("jacobi"),
    "gs-jacobi": Options("gs-jacobi", 3),
    "hybrid-jacobi": Options("hybrid-jacobi", 10, jacobi_length=9),
    "fast-beam": Options("fast-beam"),
}
# Few repeat each other: one precision and batch size for all, and what differs in others.
RUNS = [(name, "fp16", 8) for name in CASES]
RUNS += [("gad", "fp32", 1), ("fast-beam", "fp32", 1), ("gad", "bf16", 8)]


@pytest.mark.parametrize("name, precision, batch", RUNS)
@pytest.mark.usefixtures("device_guard")
def test_ids_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch, name: str, precision: str, batch: int) -> None:
    """Captured and replayed. An operation on two devices, or a wait in a capture, is an error."""
    how, is_half, task = CASES[name], precision != "fp32", make_task(40)
    model: nn.Module = make_transformer(task, 3, decoder_layers=1)
    context = {"drafter_context": "features", "transition_rank": 3} if "features" in name else {}
    drafter = make_drafter(task, 4, verifier=model, decoder_layers=1, **context)
    if how.spec.name == "blockwise":
        task, model = make_blockwise(3, 40)
    models = nn.ModuleList([drafter if how.spec.name == "nat" else model, drafter]).to(DTYPES[precision])
    sample = make_sample(task, SOURCES[batch])
    search = {"max_len_b": 7, "beam_size": 3 if how.spec.searches_beams else 1}
    search["active_sentences"] = 5 if "some" in name else 0
    # Lossless decoders are compared with `greedy`, on the CPU.
    reference = Options("greedy") if how.spec.is_lossless and not how.spec.searches_beams else how
    on_cpu, _ = make_generator([models[0]], task, reference, drafter, engine=Engine(batch_invariant=is_half), **search)
    expected = ids(on_cpu.generate([models[0]], sample))
    # Right at the beginning, and wrong after that.
    drafts = [[output[:3] + [9, 9]] for output in expected]
    monkeypatch.setattr(graph_capture, "EAGER_USES", 0)
    with pretended_gpu(monkeypatch) as gpu:
        verifier, moved_drafter = moved(models)
        graphs = Graphs(gpu.capture)
        engine = Engine(graphs=graphs, batch_invariant=is_half)
        generator, stats = make_generator([verifier], task, how, moved_drafter, engine=engine, **search)
        generator.weights_are_fixed = True  # as in commands
        generator.drafts = lambda sample: drafts
        for _ in range(2):
            gpu.waits = 0
            assert ids(generator.generate([verifier], moved(sample))) == expected
        iterations = max(sentence.iterations for sentence in stats.recorded[-batch:])
        # At the beginning, in each iteration, and at the end; more where hypotheses end, and sentences join.
        assert gpu.waits <= iterations + 12 or "some" in name or how.spec.searches_beams
        assert graphs.captures and not graphs.failed


@pytest.mark.usefixtures("device_guard")
def test_mixed_devices_waits_and_captures_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    host = torch.ones(3)
    with pretended_gpu(monkeypatch) as gpu, torch.cuda.device(CUDA):
        on_gpu = moved(torch.ones(3))
        with pytest.raises(RuntimeError, match="same device: add"):
            on_gpu + host
        assert (on_gpu + on_gpu).tolist() == [2, 2, 2]
        with pytest.raises(AssertionError, match="waits in a capture"):
            gpu.capture(lambda: (on_gpu[: int(on_gpu.sum())], None))


@pytest.mark.usefixtures("device_guard")
def test_a_graph_runs_again_on_the_same_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_gpu(monkeypatch) as gpu, torch.cuda.device(CUDA):
        value, kept = moved(torch.ones(2)), moved(torch.zeros(2))
        replay = gpu.capture(lambda: (kept.copy_(value * 2 + 1), None))
        value.fill_(4)
        assert replay()[0].tolist() == [9, 9]
        # Results that were not copied are lost.
        lost = gpu.capture(lambda: (value * 2, None))()[0]
        assert lost.isnan().all()

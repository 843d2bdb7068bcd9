"""Generators have their own engines: settings of one do not affect another."""

from typing import Any

import pytest

from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.weights import Precision
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.support import assert_same_output, fairseq_greedy, ids, make_args, make_sample, make_task, make_transformer


def make_generator(task: SpecDecTask, model: Any, **options: Any) -> Any:
    """Return a generator built by the task with these options."""
    for name, value in {"decoding_method": "greedy", **options}.items():
        setattr(task.cfg, name, value)
    return task.build_generator([model], make_args(beam=1, max_len_b=30))


@pytest.mark.parametrize("compiled_first", [True, False])
def test_two_generators_keep_their_backends(compiled_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators decode alternately, also after the weights have been written anew."""
    steps: list[CachedDecoder] = []
    step = CachedDecoder.step
    monkeypatch.setattr(CachedDecoder, "step", lambda self, *args, **kw: steps.append(self) or step(self, *args, **kw))
    task = make_task(60)
    model = make_transformer(task, 8)
    choices = [compiled_first, not compiled_first]
    generators = [make_generator(task, model, no_compiled_steps=not compiled) for compiled in choices]
    for seed in range(4):
        sample = make_sample(task, [5, 9, 0, 2], seed)
        expected = fairseq_greedy([model], task, sample, max_len_b=30)
        for compiled, generator in zip(choices, generators, strict=True):
            if seed == 2:
                model.load_state_dict(model.state_dict())
            steps.clear()
            assert_same_output(generator.generate([model], sample), expected)
            assert bool(steps) == (not compiled), "steps of PyTorch"
            assert generator.backend.name == ("native" if compiled else "torch")
            assert compiled or generator.backend.reason == "--no-compiled-steps"


def test_precision_and_copies_are_a_generators_own() -> None:
    task = make_task(200)
    model = make_transformer(task, 1)
    sample = make_sample(task, [9, 4, 12, 7, 20, 15, 3, 30], 1)
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    plain = make_generator(task, model)
    rounded = make_generator(task, model, int8=True, no_packed_weights=True)
    for _ in range(2):
        assert ids(plain.generate([model], sample)) == ids(expected)
        assert ids(rounded.generate([model], sample)) != ids(expected)
    weights = [generator.backend.method.weights for generator in (plain, rounded)]
    assert [held.precision for held in weights] == [Precision.FP32, Precision.INT8]
    assert [held.packed for held in weights] == [True, False]


def test_giving_up_on_graphs_is_an_engines_own() -> None:
    engines = [Engine(graphs=Graphs()) for _ in range(2)]
    engines[0].graphs.give_up(RuntimeError("no"))
    assert [engine.graphs.failed for engine in engines] == [True, False]

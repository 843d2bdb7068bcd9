"""Generators have their own engines: settings of one do not affect another."""

from typing import Any

from fairseq_plugins.decoding.weights import Precision
from fairseq_plugins.tasks.spec_dec import SpecDecTask
from tests.support import fairseq_greedy, ids, make_args, make_sample, make_task, make_transformer


def make_generator(task: SpecDecTask, model: Any, **options: Any) -> Any:
    """Return a generator built by the task with these options."""
    for name, value in {"decoding_method": "greedy", **options}.items():
        setattr(task.cfg, name, value)
    return task.build_generator([model], make_args(beam=1, max_len_b=30))


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

"""Checks of the device's use: synchronisations, graphs, and what fixed shapes cost."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fairseq_plugins.benchmarks.gpu_check.environment import GAD, GREEDY, PASSES, Environment, decode
from fairseq_plugins.benchmarks.gpu_check.report import Outcome, passed_if
from fairseq_plugins.benchmarks.measuring import graphs_of
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import Method, MethodContext
from fairseq_plugins.decoding.reference.backend import TorchBackend


def one_synchronisation(env: Environment) -> Outcome:
    """Check how often an iteration synchronises with the device, by PyTorch's warnings."""
    bench = env.bench()
    rows, good = [["decoder", "iterations", "waits per iteration, most"]], True
    for contender in (GREEDY, GAD):
        generator = bench.generator(contender)
        # Captures synchronise, too.
        for _ in range(PASSES):
            decode(bench, generator, bench.order, env.batch_sizes[1])
        sample = bench.session.batch(bench.dataset, bench.order[: env.batch_sizes[1]])
        backend = generator.backend
        assert isinstance(backend, TorchBackend)
        set_mode = torch.cuda.set_sync_debug_mode if env.is_gpu else lambda mode: None
        set_mode("warn")
        try:
            with torch.inference_mode():
                counts = count_synchronisations(backend.advances(*generator.request(sample)))
        finally:
            set_mode("default")
        good &= max(counts) == 1 or not env.is_gpu
        rows.append([contender.name, str(len(counts)), str(max(counts))])
    return passed_if(good, "once an iteration" if good else "not once an iteration", rows=rows)


def count_synchronisations(iterations: Iterator[Any]) -> list[int]:
    """Return the number of synchronisation warnings of every iteration but the first, which starts the batch."""
    counts: list[int] = []
    next(iterations)
    while True:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            if next(iterations, None) is None:
                return counts
        counts.append(sum("synchronizing" in str(warning.message) for warning in given))


def captures(env: Environment) -> Outcome:
    """Check how many graphs a run over many batch sizes captures and drops."""
    bench = env.bench("--fp16")
    generator = bench.generator(GAD)
    smallest, largest = env.batch_sizes
    size = smallest
    while size <= largest:
        decode(bench, generator, bench.order, size)
        size *= 2
    graphs = graphs_of(generator)
    assert graphs is not None
    good = not env.is_gpu or (graphs.are_on and graphs.replays > graphs.launched)
    numbers = {"captures": graphs.captures, "dropped": graphs.dropped, "replays": graphs.replays}
    return passed_if(good, str(graphs), numbers={**numbers, "launched": graphs.launched})


def fixed_shapes_over_a_run(env: Environment) -> Outcome:
    """Time fp16 runs in fixed shapes, which must take at most 1.5 times those of PyTorch's own operations."""
    bench, good = env.bench("--fp16"), True
    rows = [["decoder", "batch", "ours, ms per sentence", "PyTorch's", "times"]]
    for contender in (GREEDY, GAD):
        for size in env.batch_sizes:
            times = []
            for is_fixed in (True, False):
                generator = bench.generator(contender)
                if not is_fixed:
                    _use_plain_shapes(generator)
                # Without graphs one pass is as the next.
                for _ in range(PASSES if env.is_gpu else 0):
                    decode(bench, generator, bench.order, size)
                run = partial(decode, bench, generator, bench.order, size)
                times.append(env.milliseconds(run) / len(bench.order))
            fixed, plain = times
            good &= fixed <= 1.5 * plain or not env.is_gpu
            rows.append([contender.name, str(size), f"{fixed:.2f}", f"{plain:.2f}", f"{fixed / plain:.2f}"])
    return passed_if(good, "at most 1.5 times" if good else "more than 1.5 times", rows=rows)


def _use_plain_shapes(generator: DraftVerifyGenerator) -> None:
    """Make a generator in half precision run PyTorch's own operations."""
    spec = generator.spec

    def build(context: MethodContext, options: Any) -> Method:
        assert spec.build is not None
        return spec.build(replace(context, engine=replace(context.engine, batch_invariant=False)), options)

    generator.spec = replace(spec, build=build)

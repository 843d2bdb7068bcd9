"""Checks of Triton's engine (SPEC_DEC_GPU=triton): it runs, ids and bits, speed, and which settings are faster.

They need a GPU; with TRITON_INTERPRET=1 they run on a CPU, with small models.
"""

import os
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import BEAM_5, BLOCKWISE, CONTENDERS, CTRANSLATE2_ON_GPU, Contender
from fairseq_plugins.benchmarks.gpu_check.environment import (
    Environment,
    Generated,
    decode,
    largest_difference,
    same_ids,
)
from fairseq_plugins.benchmarks.gpu_check.released import options_of, random_bench, released_benches
from fairseq_plugins.benchmarks.gpu_check.report import PASSED, Outcome, passed_if
from fairseq_plugins.benchmarks.gpu_check.worker import Check, CheckProcess
from fairseq_plugins.decoding.gpu.backend import GpuBackend

NAMES = ("greedy", "gad", "fast-beam")
_BY_NAME = {contender.name: contender for contender in CONTENDERS}
# Most seconds of a process that compiles.
_LONGEST = 150.0


@contextmanager
def triton_engine() -> Iterator[None]:
    """Choose Triton's engine for the generators that decode first inside."""
    with mock.patch.dict(os.environ, SPEC_DEC_GPU="triton"):
        yield


def _benches(env: Environment, precision: str, only_largest: bool = False) -> Iterator[tuple[str, Bench]]:
    """Yield the released models and random ones, in a precision; of the released ones only the largest."""
    yield from released_benches(env, precision, only_largest)
    yield f"random {env.shape}", random_bench(env, *options_of(precision))


# -------------------------------------------------------------------------------------------------- does it run


@dataclass(frozen=True)
class Variant:
    """Settings of the engine.

    Attributes:
        ahead: iterations in flight; None for the usual.
        depends: whether launches overlap (programmatic dependent launch).
        replays: whether graphs are replayed; otherwise every kernel is launched.
        tiles: fields of `runner.Tiles` that differ.
    """

    ahead: int | None = None
    depends: bool = True
    replays: bool = True
    tiles: tuple[tuple[str, int], ...] = ()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Use these settings for the generators that decode first inside."""
        from fairseq_plugins.decoding.gpu import host_loop, runner
        from fairseq_plugins.decoding.reference.captured.graph_capture import Replayed

        usual = runner.Tiles.of

        def of(*given: Any) -> runner.Tiles:
            return replace(usual(*given), **dict(self.tiles))

        with ExitStack() as changes:
            changes.enter_context(mock.patch.object(runner.Tiles, "of", staticmethod(of)))
            if self.ahead is not None:
                changes.enter_context(mock.patch.object(host_loop, "AHEAD", self.ahead))
            if not self.depends:
                changes.enter_context(mock.patch.object(runner, "uses_dependent_launch", lambda device: False))
            if not self.replays:
                changes.enter_context(mock.patch.object(Replayed, "__call__", lambda graph: graph.launch()))
            yield


USUAL = Variant()
VARIANTS = {
    "as it is": USUAL,
    "2 iterations ahead": Variant(ahead=2),
    "8 iterations ahead": Variant(ahead=8),
    "no dependent launch": Variant(depends=False),
    "16 outputs a program": Variant(tiles=(("outputs", 16),)),
    "64 outputs a program": Variant(tiles=(("outputs", 64),)),
    "4 warps a program": Variant(tiles=(("warps", 4),)),
    "output projection in 1 part": Variant(tiles=(("out_tiles", 1),)),
    "output projection in 8 parts": Variant(tiles=(("out_tiles", 8),)),
}
# What may be at fault where ids or bits differ.
SUSPECTS = {
    "without dependent launch": Variant(depends=False),
    "without graphs": Variant(replays=False),
    "one iteration at a time": Variant(ahead=1),
}


def first_run(env: Environment, precision: str, name: str, variant: Variant = USUAL) -> Outcome:
    """Decode for the first time, which compiles the kernels: the compiler keeps them for later processes."""
    captured = 0
    for _, bench in _benches(env, precision, variant is not USUAL):
        for size in env.sizes:
            with triton_engine(), variant.used():
                generator = bench.generator(_BY_NAME[name])
                decode(bench, generator, bench.order[:size], size)
            captured += _captured(generator)
    return Outcome(PASSED, f"{captured} graphs")


def _in_processes(env: Environment, checks: Sequence[Check]) -> list[Outcome]:
    """Run checks at the same time, each in a process of its own: one that crashes harms no other."""

    def run(check: Check) -> Outcome:
        process = CheckProcess()
        try:
            return process.run(check, env, min(_LONGEST, env.left))
        finally:
            process.stop()

    with ThreadPoolExecutor(min(len(checks), os.cpu_count() or 1)) as pool:
        return list(pool.map(run, checks))


def _summed(outcomes: Sequence[Outcome], verb: str, rows: list[list[str]]) -> Outcome:
    """Return the outcome of a check that consists of others, with its table."""
    good = [outcome.state == PASSED for outcome in outcomes]
    details = "\n".join(outcome.details for outcome in outcomes if outcome.details)
    return passed_if(all(good), f"{sum(good)} of {len(good)} {verb}", rows=rows, details=details)


def runs(env: Environment) -> Outcome:
    """Run each decoder in each precision for the first time, in processes of their own."""
    jobs = [(precision, name) for precision in ("fp16", "bf16", "fp32") for name in NAMES]
    outcomes = _in_processes(env, [partial(first_run, precision=precision, name=name) for precision, name in jobs])
    rows = [["precision", "decoder", "result"]]
    rows += [[*job, f"{outcome.state}: {outcome.summary}"] for job, outcome in zip(jobs, outcomes, strict=True)]
    return _summed(outcomes, "run", rows)


# --------------------------------------------------------------------------------------------------- ids and bits


def ids(env: Environment) -> Outcome:
    """Compare models: fp32 with fairseq's searches, fp16 and bf16 bit by bit with `greedy` at batch 1.

    The first row of a precision that differs also has the result without each suspect.
    """
    rows = [["model", "decoder", "batch", "identical", "largest difference"]]
    wrong: set[str] = set()  # precisions
    for folder, bench in _benches(env, "fp32"):
        for name in NAMES:
            ours = _BY_NAME[name]
            expected = decode(bench, bench.generator(_BY_NAME[ours.reference]), bench.order, 32)
            for size in env.sizes:
                cells, is_right = _compared(bench, ours, expected, size, None, "fp32" not in wrong)
                rows.append([folder, f"{name} fp32", str(size), *cells])
                wrong |= set() if is_right else {"fp32"}
    for precision in ("fp16", "bf16"):
        for folder, bench in _benches(env, precision):
            with triton_engine():
                expected = decode(bench, bench.generator(_BY_NAME["greedy"]), bench.order, 1)
            for name in ("greedy", "gad"):
                for size in env.sizes:
                    cells, is_right = _compared(bench, _BY_NAME[name], expected, size, 0.0, precision not in wrong)
                    rows.append([folder, f"{name} {precision}", str(size), *cells])
                    wrong |= set() if is_right else {precision}
    return passed_if(not wrong, "ids or bits differ" if wrong else "all identical", rows=rows)


def _compared(
    bench: Bench, contender: Contender, expected: Generated, size: int, allowed: float | None, explains: bool
) -> tuple[list[str], bool]:
    """Return the cells of a row, and whether ids are equal and scores at most `allowed` apart (None: any)."""
    with triton_engine():
        generator = bench.generator(contender)
        # The second pass captures nothing.
        for number in range(2):
            output = decode(bench, generator, bench.order, size)
            captured = _captured(generator)
            if number == 0:
                before = captured
    same, difference = same_ids(output, expected), largest_difference(output, expected)
    is_right = same == len(expected) and captured == before and (allowed is None or difference <= allowed)
    notes = [f"{same} of {len(expected)}"]
    if captured != before:
        notes.append(f"{captured - before} graphs captured late")
    for title, suspect in SUSPECTS.items() if explains and not is_right else ():
        with triton_engine(), suspect.used():
            output = decode(bench, bench.generator(contender), bench.order, size)
        notes.append(f"{same_ids(output, expected)} ({largest_difference(output, expected):.1e}) {title}")
    return [", ".join(notes), f"{difference:.1e}"], is_right


def _captured(generator: Any) -> int:
    assert isinstance(generator.backend, GpuBackend), generator.backend.reason
    engine: Any = generator.backend.generator
    return len(engine.iterations) + len(engine.encoders)


def all_decoders(env: Environment) -> Outcome:
    """Compare all lossless decoders of random models with fairseq's search in fp32."""
    rows, good = [["decoder", "engine", "identical"]], True
    bench, size = random_bench(env), env.batch_size
    lossless = [contender for contender in CONTENDERS if contender.lossless and contender.needs != BLOCKWISE]
    expected: dict[str, Generated] = {}
    for contender in bench.runnable(lossless):
        reference = contender.reference
        if reference not in expected:
            expected[reference] = decode(bench, bench.generator(_BY_NAME[reference]), bench.order, size)
        with triton_engine():
            generator = bench.generator(contender)
            output = decode(bench, generator, bench.order, size)
        same = same_ids(output, expected[reference])
        good &= same == len(output)
        backend = generator.backend
        engine = backend.name if isinstance(backend, GpuBackend) else f"{backend.name}: {backend.reason}"
        rows.append([contender.name, engine, f"{same} of {len(output)}"])
    return passed_if(good, "all identical" if good else "ids differ", rows=rows)


# --------------------------------------------------------------------------------------------------------- speed


def speed(env: Environment) -> Outcome:
    """Time sentences in fp16, beside the captured loop in PyTorch, which must be slower, CTranslate2 and fairseq."""
    rows = [["model", "decoder", "engine", "batch", "ms a sentence", "over fairseq beam 5"]]
    slower = []
    for folder, bench in _benches(env, "fp16", only_largest=True):
        for size in env.timed_sizes:
            base = _milliseconds(env, bench, bench.generator(_BY_NAME[BEAM_5]), size, passes=1)
            rows.append([folder, BEAM_5, "fairseq", str(size), f"{base:.2f}", "1.0"])
            for other in bench.runnable(CTRANSLATE2_ON_GPU) if env.is_gpu else ():
                taken = _milliseconds(env, bench, bench.generator(other), size)
                rows.append([folder, other.name, "CTranslate2", str(size), f"{taken:.3f}", f"{base / taken:.1f}"])
            for name in NAMES:
                generator = bench.generator(_BY_NAME[name])
                captured = _milliseconds(env, bench, generator, size)
                with triton_engine():
                    taken = _milliseconds(env, bench, bench.generator(_BY_NAME[name]), size)
                for engine, time in ((generator.backend.name, captured), ("triton", taken)):
                    rows.append([folder, name, engine, str(size), f"{time:.3f}", f"{base / time:.1f}"])
                if taken > captured:
                    slower.append(f"{name} at batch {size} ({folder})")
    summary = f"slower than the captured loop: {', '.join(slower)}" if slower else "faster than the captured loop"
    # An interpreter is slow.
    return passed_if(not slower or not env.is_gpu, summary, rows=rows)


def _milliseconds(env: Environment, bench: Bench, generator: Any, size: int, passes: int = 5) -> float:
    """Return the median of passes over some sentences, per sentence; two more passes, or one, warm up."""
    numbers = bench.order[: 24 if size == 1 else 3 * size]
    warm_ups = min(2, passes)
    times = [bench.decode(generator, numbers, size)[1] for _ in range(warm_ups + (passes if env.is_gpu else 1))]
    return 1000 * statistics.median(times[warm_ups:]) / len(numbers)


def variants(env: Environment) -> Outcome:
    """Time `greedy` and `gad` in fp16 with other settings: a row for each, to choose the best."""
    chosen = VARIANTS if env.is_gpu else {name: VARIANTS[name] for name in list(VARIANTS)[-2:]}
    jobs = [(title, name) for title in chosen for name in NAMES[:2]]
    outcomes = _in_processes(
        env, [partial(first_run, precision="fp16", name=name, variant=chosen[title]) for title, name in jobs]
    )
    can_run = dict(zip(jobs, outcomes, strict=True))
    rows = [["model", "settings", "decoder", "batch", "ms a sentence"]]
    for folder, bench in _benches(env, "fp16", only_largest=True):
        for title, name in jobs:
            for size in env.timed_sizes:
                cell = can_run[title, name].summary
                if can_run[title, name].state == PASSED:
                    with triton_engine(), chosen[title].used():
                        cell = f"{_milliseconds(env, bench, bench.generator(_BY_NAME[name]), size):.3f}"
                rows.append([folder, title, name, str(size), cell])
    return _summed(outcomes, "ran, see the table", rows)


def profile(env: Environment) -> Outcome:
    """Add up the time of each kernel in fp16; the rest of a sentence's time the device waits for the host."""
    rows = [["model", "decoder", "batch", "kernel", "launches an iteration", "us an iteration"]]
    activity = ProfilerActivity.CUDA if env.is_gpu else ProfilerActivity.CPU
    for folder, bench in _benches(env, "fp16", only_largest=True):
        for name in NAMES:
            for size in env.timed_sizes:
                with triton_engine():
                    generator = bench.generator(_BY_NAME[name])
                    run = partial(bench.decode, generator, bench.order[: 3 * size], size)
                    run()
                    milliseconds = 1000 * run()[1]
                    with torch.profiler.profile(activities=[activity]) as profiler:
                        run()
                found = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
                found.sort(key=lambda event: -event.self_device_time_total)
                steps = sum(event.count for event in found if event.key.startswith(("accept", "advance_beams")))
                busy = sum(event.self_device_time_total for event in found)
                of_all = f"{busy / 1000:.2f} of {milliseconds:.2f} ms are kernels", "", f"{busy / max(steps, 1):.0f}"
                rows.append([folder, name, str(size), *of_all])
                for event in found[:8]:
                    cells = f"{event.count / max(steps, 1):.1f}", f"{event.self_device_time_total / max(steps, 1):.1f}"
                    rows.append([folder, name, str(size), event.key[:40], *cells])
    return passed_if(True, "see the table", rows=rows)

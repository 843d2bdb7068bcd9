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
from itertools import product
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
    first_difference,
    largest_difference,
    same_ids,
)
from fairseq_plugins.benchmarks.gpu_check.released import options_of, random_bench, released_benches
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, NOT_RUN, PASSED, Outcome, failed_by, passed_if
from fairseq_plugins.benchmarks.gpu_check.worker import Check, CheckProcess
from fairseq_plugins.decoding.gpu.backend import GpuBackend

NAMES = ("greedy", "gad", "fast-beam")
PRECISIONS = ("fp32", "fp16", "bf16")
# Each takes some gigabytes of the GPU's memory; a container often shows more cores than it has.
_MOST_PROCESSES = 16
_BY_NAME = {contender.name: contender for contender in CONTENDERS}


@contextmanager
def triton_engine() -> Iterator[None]:
    """Choose Triton's engine for the generators that decode first inside."""
    with mock.patch.dict(os.environ, SPEC_DEC_GPU="triton"):
        yield


def _benches(
    env: Environment, precision: str, only_largest: bool = False, only: str | None = None
) -> Iterator[tuple[str, Bench]]:
    """Yield the released models and random ones, in a precision; of the released ones only the largest.

    With `only` this name is the only one whose models are loaded.
    """
    yield from released_benches(env, precision, only_largest, only)
    name = f"random {env.shape}"
    if only in (None, name):
        yield name, random_bench(env, *options_of(precision))


def _tabulated(env: Environment, header: list[str], rows: Iterator[list[str]]) -> Outcome:
    """Collect the rows of a check; an error or the end of its time leaves those before."""
    table = [header]
    try:
        for row in rows:
            table.append(row)
            if env.left == 0:
                return Outcome(FAILED, f"the time was up after {len(table) - 1} rows", table)
    except Exception as error:
        return failed_by(error, rows=table)
    return Outcome(PASSED, "see the table", table)


# -------------------------------------------------------------------------------------------------- does it run


@dataclass(frozen=True)
class Variant:
    """Settings of the engine.

    Attributes:
        ahead: iterations in flight; None for the usual.
        depends: whether launches overlap (programmatic dependent launch).
        replays: whether graphs are captured and replayed; otherwise every kernel is launched.
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
                changes.enter_context(mock.patch.object(host_loop, "replayed", lambda launch, device: launch))
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
ONE_BY_ONE = Variant(replays=False)
_COMPARED = ["model", "decoder", "batch", "identical", "largest difference"]
# What may be at fault where ids or bits differ.
SUSPECTS = {
    "without dependent launch": Variant(depends=False),
    "without graphs": ONE_BY_ONE,
    "one iteration at a time": Variant(ahead=1),
}


def first_run(
    env: Environment,
    precision: str,
    name: str,
    variant: Variant = USUAL,
    only_largest: bool = False,
    only: str | None = None,
) -> Outcome:
    """Decode with all models, or one, for the first time, which compiles the kernels: later processes find them."""
    captured = 0
    with triton_engine(), variant.used():
        for _, bench in _benches(env, precision, only_largest, only):
            for size in env.sizes:
                generator = bench.generator(_BY_NAME[name])
                decode(bench, generator, bench.order[:size], size)
                captured += _captured(generator)
    return Outcome(PASSED, f"{captured} graphs")


def _in_processes(env: Environment, checks: Sequence[Check]) -> list[Outcome]:
    """Run checks at the same time, each in a process of its own: one that crashes harms no other."""

    def run(check: Check) -> Outcome:
        if env.left == 0:
            return Outcome(NOT_RUN, "the time was up")
        process = CheckProcess()
        try:
            return process.run(check, env, env.left + 5)
        finally:
            process.stop()

    with ThreadPoolExecutor(min(_MOST_PROCESSES, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(run, checks))


def _summed(outcomes: Sequence[Outcome], verb: str, rows: list[list[str]]) -> Outcome:
    """Return the outcome of a check that consists of others, with its table."""
    good = [outcome.state == PASSED for outcome in outcomes]
    details = "\n".join(outcome.details for outcome in outcomes if outcome.details)
    return passed_if(all(good), f"{sum(good)} of {len(good)} {verb}", rows=rows, details=details)


def runs(env: Environment) -> Outcome:
    """Run each decoder of each model in each precision for the first time, in processes of their own.

    One that fails runs once more, kernel by kernel: an error of the device is otherwise raised somewhere later.
    """
    # This makes models and data, too: several processes would make them at once.
    models = [folder for folder, _ in _benches(env, "fp32")]
    jobs = list(product(PRECISIONS, NAMES, models))
    checks = [partial(first_run, precision=precision, name=name, only=model) for precision, name, model in jobs]
    outcomes = _in_processes(env, checks)
    failed = [number for number, outcome in enumerate(outcomes) if outcome.state == FAILED]
    # CUDA reads this when a process begins to use it: the host waits for every kernel.
    with mock.patch.dict(os.environ, CUDA_LAUNCH_BLOCKING="1"):
        again = _in_processes(env, [partial(checks[number], variant=ONE_BY_ONE) for number in failed])
    for number, outcome in zip(failed, again, strict=True):
        outcomes[number].summary += f"; kernel by kernel: {outcome.state}: {outcome.summary}"
        outcomes[number].details += outcome.details
    rows = [["precision", "decoder", "model", "result"]]
    rows += [[*job, f"{outcome.state}: {outcome.summary}"] for job, outcome in zip(jobs, outcomes, strict=True)]
    return _summed(outcomes, "run", rows)


# --------------------------------------------------------------------------------------------------- ids and bits


def ids(env: Environment) -> Outcome:
    """Compare models, each decoder and precision in a process of its own."""
    jobs = [(precision, name) for precision in PRECISIONS for name in _compared_in(precision)]
    outcomes = _in_processes(env, [partial(compare, precision=precision, name=name) for precision, name in jobs])
    rows = [_COMPARED, *(row for outcome in outcomes for row in outcome.rows[1:])]
    return _summed(outcomes, "identical", rows)


def _compared_in(precision: str) -> tuple[str, ...]:
    """Return the decoders whose output is known: that of fairseq in fp32, of `greedy` otherwise."""
    return NAMES if precision == "fp32" else ("greedy", "gad")


def compare(env: Environment, precision: str, name: str) -> Outcome:
    """Compare a decoder's output: fp32 with fairseq's search, fp16 and bf16 bit by bit with `greedy` at batch 1.

    The first row that differs also has the result without each suspect.
    """
    ours, wrong = _BY_NAME[name], 0

    def rows() -> Iterator[list[str]]:
        nonlocal wrong
        for folder, bench in _benches(env, precision):
            if precision == "fp32":
                expected = decode(bench, bench.generator(_BY_NAME[ours.reference]), bench.order, 32)
            else:
                with triton_engine():
                    expected = decode(bench, bench.generator(_BY_NAME["greedy"]), bench.order, 1)
            for size in env.sizes:
                allowed = None if precision == "fp32" else 0.0
                cells, is_right = _compared(bench, ours, expected, size, allowed, explains=not wrong)
                wrong += not is_right
                yield [folder, f"{name} {precision}", str(size), *cells]

    outcome = _tabulated(env, _COMPARED, rows())
    return replace(outcome, state=FAILED, summary=f"{wrong} rows differ; {outcome.summary}") if wrong else outcome


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
    first = first_difference(output, expected)
    if first:
        notes.append(first)
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
    """Compare all lossless decoders of random models with fairseq's search in fp32, each in a process of its own."""
    lossless = [contender for contender in CONTENDERS if contender.lossless and contender.needs != BLOCKWISE]
    names = [contender.name for contender in random_bench(env).runnable(lossless)]
    outcomes = _in_processes(env, [partial(one_decoder, name=name) for name in names])
    rows = [["decoder", "engine and identical sentences"]]
    rows += [[name, outcome.summary] for name, outcome in zip(names, outcomes, strict=True)]
    return _summed(outcomes, "identical", rows)


def one_decoder(env: Environment, name: str) -> Outcome:
    """Compare a decoder of random models with fairseq's search in fp32."""
    bench, size, contender = random_bench(env), env.batch_size, _BY_NAME[name]
    expected = decode(bench, bench.generator(_BY_NAME[contender.reference]), bench.order, size)
    with triton_engine():
        generator = bench.generator(contender)
        output = decode(bench, generator, bench.order, size)
    same, backend = same_ids(output, expected), generator.backend
    engine = backend.name if isinstance(backend, GpuBackend) else f"{backend.name} ({backend.reason})"
    where = first_difference(output, expected)
    return passed_if(same == len(output), f"{engine}: {same} of {len(output)}{where and f', {where}'}")


# --------------------------------------------------------------------------------------------------------- speed


def speed(env: Environment) -> Outcome:
    """Time sentences in fp16, beside the captured loop in PyTorch, which must be slower, CTranslate2 and fairseq."""
    slower: list[str] = []

    def rows() -> Iterator[list[str]]:
        for folder, bench in _benches(env, "fp16", only_largest=True):
            for size in env.timed_sizes:
                base = _milliseconds(env, bench, bench.generator(_BY_NAME[BEAM_5]), size, passes=1)
                yield [folder, BEAM_5, "fairseq", str(size), f"{base:.2f}", "1.0"]
                for other in bench.runnable(CTRANSLATE2_ON_GPU) if env.is_gpu else ():
                    taken = _milliseconds(env, bench, bench.generator(other), size)
                    yield [folder, other.name, "CTranslate2", str(size), f"{taken:.3f}", f"{base / taken:.1f}"]
                for name in NAMES:
                    generator = bench.generator(_BY_NAME[name])
                    captured = _milliseconds(env, bench, generator, size)
                    with triton_engine():
                        taken = _milliseconds(env, bench, bench.generator(_BY_NAME[name]), size)
                    if taken > captured:
                        slower.append(f"{name} at batch {size} ({folder})")
                    for engine, time in ((generator.backend.name, captured), ("triton", taken)):
                        yield [folder, name, engine, str(size), f"{time:.3f}", f"{base / time:.1f}"]

    header = ["model", "decoder", "engine", "batch", "ms a sentence", "over fairseq beam 5"]
    outcome = _tabulated(env, header, rows())
    if outcome.state != PASSED:
        return outcome
    summary = f"slower than the captured loop: {', '.join(slower)}" if slower else "faster than the captured loop"
    # An interpreter is slow.
    return passed_if(not slower or not env.is_gpu, summary, rows=outcome.rows)


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
    first_in_fp16 = partial(first_run, precision="fp16", only_largest=True)
    outcomes = _in_processes(env, [partial(first_in_fp16, name=name, variant=chosen[title]) for title, name in jobs])
    can_run = dict(zip(jobs, outcomes, strict=True))

    def rows() -> Iterator[list[str]]:
        for folder, bench in _benches(env, "fp16", only_largest=True):
            for title, name in jobs:
                for size in env.timed_sizes:
                    cell = can_run[title, name].summary
                    if can_run[title, name].state == PASSED:
                        with triton_engine(), chosen[title].used():
                            cell = f"{_milliseconds(env, bench, bench.generator(_BY_NAME[name]), size):.3f}"
                    yield [folder, title, name, str(size), cell]

    timed = _tabulated(env, ["model", "settings", "decoder", "batch", "ms a sentence"], rows())
    return _summed([*outcomes, timed], "ran, see the table", timed.rows)


def profile(env: Environment) -> Outcome:
    """Add up the time of each kernel in fp16; the rest of a sentence's time the device waits for the host."""
    activity = ProfilerActivity.CUDA if env.is_gpu else ProfilerActivity.CPU

    def rows() -> Iterator[list[str]]:
        for folder, bench in _benches(env, "fp16", only_largest=True):
            for name, size in product(NAMES, env.timed_sizes):
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
                yield [folder, name, str(size), *of_all]
                for event in found[:8]:
                    cells = f"{event.count / max(steps, 1):.1f}", f"{event.self_device_time_total / max(steps, 1):.1f}"
                    yield [folder, name, str(size), event.key[:40], *cells]

    header = ["model", "decoder", "batch", "kernel", "launches an iteration", "us an iteration"]
    return _tabulated(env, header, rows())

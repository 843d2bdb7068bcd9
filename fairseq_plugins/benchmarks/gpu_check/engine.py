"""Checks of Triton's engine (SPEC_DEC_GPU=triton): ids, bits, graphs, and the time of an iteration and a sentence."""

import itertools
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import BEAM_5, CONTENDERS, CTRANSLATE2_ON_GPU, Contender
from fairseq_plugins.benchmarks.gpu_check.environment import Environment, decode, largest_difference, same_ids
from fairseq_plugins.benchmarks.gpu_check.released import NO_MODELS, released_benches
from fairseq_plugins.benchmarks.gpu_check.report import NOT_RUN, Outcome, passed_if
from fairseq_plugins.decoding.gpu.backend import GpuBackend

_NAMES = ("greedy", "gad", "fast-beam")
_BY_NAME = {contender.name: contender for contender in CONTENDERS}
_BATCHES = (1, 7, 48)
_NEEDS_GPU = "Triton's engine needs a GPU; its interpreter is slow"


@contextmanager
def triton_engine() -> Iterator[None]:
    """Choose Triton's engine for the generators that decode first inside."""
    before = os.environ.get("SPEC_DEC_GPU")
    os.environ["SPEC_DEC_GPU"] = "triton"
    try:
        yield
    finally:
        if before is None:
            del os.environ["SPEC_DEC_GPU"]
        else:
            os.environ["SPEC_DEC_GPU"] = before


def ids(env: Environment) -> Outcome:
    """Compare released models: fp32 with fairseq's searches, fp16 and bf16 bit by bit with `greedy` at batch 1."""
    if not env.is_gpu:
        return Outcome(NOT_RUN, _NEEDS_GPU)
    rows, good = [["model", "decoder", "batch", "identical", "largest difference"]], True
    for folder, bench in released_benches(env, "fp32"):
        for name in _NAMES:
            ours = _BY_NAME[name]
            expected = decode(bench, bench.generator(_BY_NAME[ours.reference]), bench.order, 32)
            for size in _BATCHES:
                cells, is_right = _compared(bench, ours, expected, size, None)
                rows.append([folder, f"{name} fp32", str(size), *cells])
                good &= is_right
    for precision in ("fp16", "bf16"):
        for folder, bench in released_benches(env, precision):
            with triton_engine():
                expected = decode(bench, bench.generator(_BY_NAME["greedy"]), bench.order, 1)
            for name in ("greedy", "gad"):
                for size in _BATCHES:
                    cells, is_right = _compared(bench, _BY_NAME[name], expected, size, 0.0)
                    rows.append([folder, f"{name} {precision}", str(size), *cells])
                    good &= is_right
    if len(rows) == 1:
        return Outcome(NOT_RUN, NO_MODELS)
    return passed_if(good, "all identical" if good else "ids or bits differ", rows=rows)


def _compared(
    bench: Bench, contender: Contender, expected: Any, size: int, allowed: float | None
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
    graphs = "" if captured == before else f", {captured - before} graphs captured late"
    return [f"{same} of {len(expected)}{graphs}", f"{difference:.1e}"], is_right


def _captured(generator: Any) -> int:
    """Return the number of captured graphs."""
    assert isinstance(generator.backend, GpuBackend), generator.backend.reason
    engine: Any = generator.backend.generator
    return len(engine.iterations) + len(engine.encoders)


def speed(env: Environment) -> Outcome:
    """Time sentences at batch 1 and 48 in fp16, beside the captured loop in PyTorch, CTranslate2 and fairseq."""
    if not env.is_gpu:
        return Outcome(NOT_RUN, _NEEDS_GPU)
    rows = [["model", "decoder", "engine", "batch", "ms a sentence", "over fairseq beam 5", "us an iteration"]]
    for folder, bench in released_benches(env, "fp16"):
        others = [_BY_NAME[BEAM_5], *bench.runnable(CTRANSLATE2_ON_GPU)]
        for size in (1, 48):
            numbers = bench.order[: 24 if size == 1 else 144]
            base = _milliseconds(bench, bench.generator(others[0]), numbers, size, passes=1)
            rows.append([folder, BEAM_5, "fairseq", str(size), f"{base:.2f}", "1.0", ""])
            for other in others[1:]:
                taken = _milliseconds(bench, bench.generator(other), numbers, size)
                rows.append([folder, other.name, "CTranslate2", str(size), f"{taken:.3f}", f"{base / taken:.1f}", ""])
            for name, engine in itertools.product(_NAMES, ("graphs", "triton")):
                with triton_engine() if engine == "triton" else nullcontext():
                    generator = bench.generator(_BY_NAME[name])
                    bench.decode(generator, numbers, size)
                taken = _milliseconds(bench, generator, numbers, size)
                cost = _iteration(generator) if engine == "triton" else ""
                rows.append([folder, name, engine, str(size), f"{taken:.3f}", f"{base / taken:.1f}", cost])
    return passed_if(len(rows) > 1, "see the table", rows=rows)


def _milliseconds(bench: Bench, generator: Any, numbers: list[int], size: int, passes: int = 5) -> float:
    """Return the median of passes over sentences, per sentence; two more passes warm up."""
    times = [bench.decode(generator, numbers, size)[1] for _ in range(passes + 2)]
    return 1000 * statistics.median(times[2:]) / len(numbers)


def _iteration(generator: Any) -> str:
    """Return the microseconds of an iteration by places and rows of a sentence; empty for beam search."""
    if generator.spec.searches_beams:
        return ""
    loop = generator.backend.generator
    # As at the start of a batch, whose graphs have been captured.
    loop.batch.parts = loop.search.sizes.parts(1, loop.longest)
    costs = {width: loop.seconds_of(loop.places, width) for width in loop.used}
    return ", ".join(f"{loop.places}x{width + 1}: {1e6 * seconds:.0f}" for width, seconds in costs.items())

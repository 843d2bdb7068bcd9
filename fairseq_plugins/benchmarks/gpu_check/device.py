"""Checks of the device's use: attention, synchronisations, graphs, kernels, idle time, memory."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from fairseq_plugins.benchmarks.gpu_check.environment import GAD, GREEDY, PASSES, Environment, decode
from fairseq_plugins.benchmarks.gpu_check.report import Outcome, passed_if
from fairseq_plugins.benchmarks.gpu_use import graphs_of
from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import Method, MethodContext
from fairseq_plugins.decoding.recording.profile import Profile
from fairseq_plugins.decoding.reference.arithmetic import exact_arithmetic
from fairseq_plugins.decoding.reference.backend import TorchBackend
from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.captured import fixed_shapes
from fairseq_plugins.decoding.reference.captured.attention_backend import attention_used
from fairseq_plugins.decoding.reference.verifier import Verifier

HEADS, HEAD_WIDTH = 8, 64
# Batch, rows of a sentence and slots, different from those of all other checks.
SHAPES = ((3, 1, 64), (24, 8, 128), (24, 32, 256))


def attention(env: Environment) -> Outcome:
    """Check which attention runs with a mask, and time first and second call at a new shape, ours and PyTorch's."""
    header = ["precision", "batch x rows x slots", "attention", "first, ms", "second, ms"]
    rows, good = [[*header, "PyTorch's choice", "first, ms", "second, ms"]], True
    device = torch.device(env.device)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for batch, width, slots in SHAPES:
            cells = [str(dtype).removeprefix("torch."), f"{batch} x {width} x {slots}"]
            for extra, context in ((0, exact_arithmetic(device)), (8, contextlib.nullcontext())):
                # Eight more slots make a new shape.
                query = torch.randn(batch, HEADS, width, HEAD_WIDTH, device=device, dtype=dtype)
                key = torch.randn(batch, HEADS, slots + extra, HEAD_WIDTH, device=device, dtype=dtype)
                mask = torch.zeros(batch, 1, width, slots + extra, device=device, dtype=dtype)

                def attend(query: Any = query, key: Any = key, mask: Any = mask) -> None:
                    F.scaled_dot_product_attention(query, key, key, attn_mask=mask)

                with torch.inference_mode(), context:
                    times = [env.milliseconds(attend) for _ in range(2)]
                    name = attention_used(attend)
                cells += [name, *(f"{time:.3f}" for time in times)]
                good &= bool(extra) or not env.is_gpu or name in ("flash", "efficient")
            rows.append(cells)
    summary = "flash or efficient everywhere" if good else "cuDNN's or PyTorch's plain attention runs"
    return passed_if(good, summary, rows=rows)


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


def idle_time(env: Environment) -> Outcome:
    """Profile batch size 1, and measure how long the device is idle."""
    bench = env.bench("--fp16")
    generator = bench.generator(GAD)
    numbers = bench.order[: max(1, env.sentences // 4)]
    for _ in range(PASSES):
        decode(bench, generator, numbers, 1)
    with _profiler(env) as recorded:
        milliseconds = env.milliseconds(lambda: decode(bench, generator, numbers, 1))
    busy = sum(event.self_device_time_total for event in _kernels(recorded)) / 1000
    # Measured afterwards: a profile synchronises at every part.
    profile = Profile()
    profile.attach(generator)
    decode(bench, generator, numbers, 1)
    rows = [["part", "ms per sentence", "%"]]
    rows += [[part, f"{each:.2f}", f"{percent:.1f}"] for part, each, percent in profile.rows()]
    idle = 100 * (1 - min(1.0, busy / milliseconds))
    summary = f"batch 1, fp16 gad: the device is idle for {idle:.0f} % of the time (PyTorch's profiler counted along)"
    return passed_if(not env.is_gpu or busy > 0, summary, rows=rows, numbers={"idle_percent": idle})


def iterations(env: Environment) -> Outcome:
    """Count kernels of an iteration with PyTorch's profiler, and measure their time."""
    bench, device = env.bench("--fp16"), torch.device(env.device)
    rows = [["decoder", "batch", "iterations", "kernels per iteration", "ms of them", "the longest"]]
    for contender in (GREEDY, GAD):
        generator = bench.generator(contender)
        for size in env.batch_sizes:
            for _ in range(PASSES):
                decode(bench, generator, bench.order[:size], size)
            backend, sample = generator.backend, bench.session.batch(bench.dataset, bench.order[:size])
            assert isinstance(backend, TorchBackend)
            with torch.inference_mode(), exact_arithmetic(device), _profiler(env) as recorded:
                count = sum(1 for _ in backend.advances(*generator.request(sample)))
            kernels = sorted(_kernels(recorded), key=lambda event: -event.self_device_time_total)
            launches = sum(event.count for event in kernels) / count
            milliseconds = sum(event.self_device_time_total for event in kernels) / 1000 / count
            longest = ", ".join(event.key[:40] for event in kernels[:3])
            cells = [str(count), f"{launches:.0f}", f"{milliseconds:.3f}", longest]
            rows.append([contender.name, str(size), *cells])
    return passed_if(True, "encoding included: see the table", rows=rows)


def _profiler(env: Environment) -> torch.profiler.profile:
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if env.is_gpu else []
    return torch.profiler.profile(activities=activities)


def _kernels(recorded: torch.profiler.profile) -> list[Any]:
    """Return the kernels that ran: operations include the time of their kernels."""
    events = recorded.key_averages()
    return [event for event in events if event.device_type.name == "CUDA" and not event.is_user_annotation]


def fixed_shapes_cost(env: Environment) -> Outcome:
    """Time our product and attention, whose bits do not depend on the batch, beside PyTorch's."""
    rows = [["fp16", "rows", "ours, ms", "PyTorch's, ms"]]
    calls, device = 50 if env.is_gpu else 1, torch.device(env.device)
    for batch, width in ((1, 1), (1, 26), (32, 1), (32, 26)):
        x, weight = (torch.randn(shape, device=device).half() for shape in ((batch, width, 512), (2048, 512)))
        query = torch.randn(batch, width, HEADS, HEAD_WIDTH, device=device).half()
        cache = torch.randn(batch, 64, 2, HEADS, HEAD_WIDTH, device=device).half()
        last = torch.full((batch, width), 63, device=device)
        key, value = cache.permute(2, 0, 3, 1, 4)
        mask = torch.zeros(batch, 1, width, 64, device=device).half()
        pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "product": (partial(fixed_shapes.linear, x, weight, None), partial(F.linear, x, weight)),
            "attention": (
                partial(fixed_shapes.attention, query, cache, last),
                partial(F.scaled_dot_product_attention, query.transpose(1, 2), key, value, attn_mask=mask),
            ),
        }
        for name, functions in pairs.items():
            times = []
            for function in functions:
                with torch.inference_mode(), exact_arithmetic(device):
                    function()
                    times.append(env.milliseconds(partial(_repeat, function, calls)) / calls)
            rows.append([name, f"{batch} x {width}", *(f"{time:.4f}" for time in times)])
    return passed_if(True, "see the table", rows=rows)


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


def _repeat(function: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        function()


def retirements(env: Environment) -> Outcome:
    """Check how often rows of a large batch are removed when its sentences end, and the memory."""
    bench = env.bench("--fp16")
    generator = bench.generator(GAD)
    size = env.batch_sizes[1]
    for _ in range(PASSES):
        decode(bench, generator, bench.order, size)
    assert isinstance(generator.backend, TorchBackend)
    verifier, removals = generator.backend.method.verifier, list[int]()
    assert isinstance(verifier, Verifier)
    for decoder in verifier.decoders:
        _count_selections(decoder, removals)
    if env.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    milliseconds = env.milliseconds(lambda: decode(bench, generator, bench.order, size))
    allocated, reserved = (
        (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if env.is_gpu else (0, 0)
    )
    sentences = len(bench.order)
    summary = (
        f"batch {size}, fp16 gad: {sentences} sentences, rows removed {len(removals)} times, "
        f"{1000 * sentences / milliseconds:.1f} sentences/s, "
        f"{allocated / 1e6:.0f} MB allocated and {reserved / 1e6:.0f} MB reserved at most"
    )
    numbers = {"removals": len(removals), "allocated": allocated, "reserved": reserved}
    return passed_if(len(removals) < sentences, summary, numbers=numbers)


def _count_selections(decoder: CachedDecoder, removals: list[int]) -> None:
    select = decoder.select_rows

    def counted(rows: torch.Tensor) -> None:
        removals.append(len(rows))
        select(rows)

    decoder.select_rows = counted  # type: ignore[method-assign]

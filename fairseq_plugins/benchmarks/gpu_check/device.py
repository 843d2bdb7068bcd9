"""Checks of how the device is used: attention, synchronisations, graphs, idle time, memory."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from fairseq_plugins.benchmarks.gpu_check.place import GAD, GREEDY, PASSES, Place, decoded
from fairseq_plugins.benchmarks.gpu_check.report import Outcome, judged
from fairseq_plugins.benchmarks.gpu_use import graphs_of
from fairseq_plugins.decoding.engine.arithmetic import exact_arithmetic
from fairseq_plugins.decoding.engine.attention_backend import attention_seen
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.profile import Profile
from fairseq_plugins.decoding.torch_backend import TorchBackend
from fairseq_plugins.decoding.verifier import Verifier

HEADS, HEAD_WIDTH = 8, 64
# Batch, rows of a sentence and slots, none of which any other check has.
SHAPES = ((3, 1, 64), (24, 8, 128), (24, 32, 256))


def attention(place: Place) -> Outcome:
    """Which attention runs with a mask, and the first and the second call at a new shape, ours and PyTorch's choice."""
    header = ["precision", "batch x rows x slots", "attention", "first, ms", "second, ms"]
    rows, good = [[*header, "PyTorch's choice", "first, ms", "second, ms"]], True
    device = torch.device(place.device)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for batch, width, slots in SHAPES:
            cells = [str(dtype).removeprefix("torch."), f"{batch} x {width} x {slots}"]
            for extra, context in ((0, exact_arithmetic(device)), (8, contextlib.nullcontext())):
                # Eight slots more are a shape that has not been seen.
                query = torch.randn(batch, HEADS, width, HEAD_WIDTH, device=device, dtype=dtype)
                key = torch.randn(batch, HEADS, slots + extra, HEAD_WIDTH, device=device, dtype=dtype)
                mask = torch.zeros(batch, 1, width, slots + extra, device=device, dtype=dtype)

                def attend(query: Any = query, key: Any = key, mask: Any = mask) -> None:
                    F.scaled_dot_product_attention(query, key, key, attn_mask=mask)

                with torch.inference_mode(), context:
                    times = [place.milliseconds(attend) for _ in range(2)]
                    name = attention_seen(attend)
                cells += [name, *(f"{time:.3f}" for time in times)]
                good &= bool(extra) or not place.is_gpu or name in ("flash", "efficient")
            rows.append(cells)
    summary = "flash or efficient everywhere" if good else "cuDNN's or PyTorch's plain attention runs"
    return judged(good, summary, rows=rows)


def one_synchronisation(place: Place) -> Outcome:
    """How often an iteration waits for the device: PyTorch warns of every time."""
    bench = place.bench()
    rows, good = [["decoder", "iterations", "waits per iteration, most"]], True
    for contender in (GREEDY, GAD):
        generator = bench.generator(contender)
        # A capture waits, too.
        for _ in range(PASSES):
            decoded(bench, generator, bench.order, place.batch_sizes[1])
        sample = bench.session.batch(bench.dataset, bench.order[: place.batch_sizes[1]])
        backend = generator.backend
        assert isinstance(backend, TorchBackend)
        set_mode = torch.cuda.set_sync_debug_mode if place.is_gpu else lambda mode: None
        set_mode("warn")
        try:
            with torch.inference_mode():
                counts = count_waits(backend.advances(*generator.request(sample)))
        finally:
            set_mode("default")
        good &= max(counts) == 1 or not place.is_gpu
        rows.append([contender.name, str(len(counts)), str(max(counts))])
    return judged(good, "once an iteration" if good else "not once an iteration", rows=rows)


def count_waits(iterations: Iterator[Any]) -> list[int]:
    """Of every iteration but the first, which begins the batch, how many warnings of waiting it gave."""
    counts: list[int] = []
    next(iterations)
    while True:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            if next(iterations, None) is None:
                return counts
        counts.append(sum("synchronizing" in str(warning.message) for warning in given))


def captures(place: Place) -> Outcome:
    """How many graphs a run over batches of many sizes makes, and how many of them have to go."""
    bench = place.bench("--fp16")
    generator = bench.generator(GAD)
    smallest, largest = place.batch_sizes
    size = smallest
    while size <= largest:
        decoded(bench, generator, bench.order, size)
        size *= 2
    graphs = graphs_of(generator)
    assert graphs is not None
    good = not place.is_gpu or (graphs.are_on and graphs.replays > graphs.launched)
    numbers = {"captures": graphs.captures, "dropped": graphs.dropped, "replays": graphs.replays}
    return judged(good, str(graphs), numbers={**numbers, "launched": graphs.launched})


def idle_time(place: Place) -> Outcome:
    """Where the time goes at batch 1, and how much of it the device is idle."""
    bench = place.bench("--fp16")
    generator = bench.generator(GAD)
    numbers = bench.order[: max(1, place.sentences // 4)]
    for _ in range(PASSES):
        decoded(bench, generator, numbers, 1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if place.is_gpu else []
    with torch.profiler.profile(activities=activities) as recorded:
        milliseconds = place.milliseconds(lambda: decoded(bench, generator, numbers, 1))
    # Kernels by themselves: operations have the time of theirs, too.
    kernels = [event for event in recorded.key_averages() if event.device_type.name == "CUDA"]
    busy = sum(event.self_device_time_total for event in kernels if not event.is_user_annotation) / 1000
    # After that: a profile waits for the device at every part.
    profile = Profile()
    profile.attach(generator)
    decoded(bench, generator, numbers, 1)
    rows = [["part", "ms per sentence", "%"]]
    rows += [[part, f"{each:.2f}", f"{percent:.1f}"] for part, each, percent in profile.rows()]
    idle = 100 * (1 - min(1.0, busy / milliseconds))
    summary = f"batch 1, fp16 gad: the device is idle for {idle:.0f} % of the time (PyTorch's profiler counted along)"
    return judged(not place.is_gpu or busy > 0, summary, rows=rows, numbers={"idle_percent": idle})


def retirements(place: Place) -> Outcome:
    """A large batch whose sentences end one after the other: how often rows are taken out, and the memory."""
    bench = place.bench("--fp16")
    generator = bench.generator(GAD)
    size = place.batch_sizes[1]
    for _ in range(PASSES):
        decoded(bench, generator, bench.order, size)
    assert isinstance(generator.backend, TorchBackend)
    verifier, taken = generator.backend.method.verifier, list[int]()
    assert isinstance(verifier, Verifier)
    for decoder in verifier.decoders:
        _count_selections(decoder, taken)
    if place.is_gpu:
        torch.cuda.reset_peak_memory_stats()
    milliseconds = place.milliseconds(lambda: decoded(bench, generator, bench.order, size))
    allocated, reserved = (
        (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()) if place.is_gpu else (0, 0)
    )
    sentences = len(bench.order)
    summary = (
        f"batch {size}, fp16 gad: {sentences} sentences, rows taken out {len(taken)} times, "
        f"{1000 * sentences / milliseconds:.1f} sentences/s, "
        f"{allocated / 1e6:.0f} MB allocated and {reserved / 1e6:.0f} MB reserved at most"
    )
    numbers = {"taken_out": len(taken), "allocated": allocated, "reserved": reserved}
    return judged(len(taken) < sentences, summary, numbers=numbers)


def _count_selections(decoder: CachedDecoder, taken: list[int]) -> None:
    select = decoder.select_rows

    def counted(rows: torch.Tensor) -> None:
        taken.append(len(rows))
        select(rows)

    decoder.select_rows = counted  # type: ignore[method-assign]

"""Checks of token ids and bits: fairseq's in fp32, our `greedy`'s in half precision, with and without graphs."""

from collections.abc import Callable
from functools import partial
from inspect import signature

import torch
from torch import Tensor

from fairseq_plugins.benchmarks.contenders import BLOCKWISE, CONTENDERS, DRAFTER
from fairseq_plugins.benchmarks.gpu_check.environment import (
    BEAM_1,
    GAD,
    GREEDY,
    PASSES,
    Environment,
    decode,
    largest_difference,
    same_ids,
)
from fairseq_plugins.benchmarks.gpu_check.report import NOT_RUN, Outcome, passed_if
from fairseq_plugins.benchmarks.measuring import graphs_of
from fairseq_plugins.decoding.reference.captured import fixed_shapes
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs, capture_on_cuda

# The library may choose another product while a graph is captured.
_FP32_DIFFERENCE = 1e-4


def fp32_equals_fairseq(env: Environment) -> Outcome:
    """Compare fp32 `greedy` and `gad` with fairseq's beam 1 at both batch sizes, in several passes."""
    bench = env.bench()
    rows, good = [["fp32", "batch", "pass", "identical", "captures", "steps from graphs"]], True
    for size in env.batch_sizes:
        numbers = bench.order
        expected = decode(bench, bench.generator(BEAM_1), numbers, size)
        for contender in (GREEDY, GAD):
            generator = bench.generator(contender)
            graphs: Graphs | None = None
            for number in range(PASSES):
                same = same_ids(decode(bench, generator, numbers, size), expected)
                graphs = graphs_of(generator)
                assert graphs is not None
                good &= same == len(numbers)
                cells = [f"{same} of {len(numbers)}", graphs.captures, graphs.replays]
                rows.append(list(map(str, [contender.name, size, number + 1, *cells])))
            good &= not env.is_gpu or (graphs is not None and graphs.are_on and graphs.replays > 0)
    return passed_if(good, "all identical, graphs on" if good else "ids differ, or no graph ran", rows=rows)


def graphs_change_nothing(env: Environment) -> Outcome:
    """Compare `gad` with and without graphs: ids, and scores, which must be equal in fp16."""
    largest, same, total, good = 0.0, 0, 0, True
    for options, allowed in (((), _FP32_DIFFERENCE), (("--fp16",), 0.0)):
        outputs = []
        for more in ((), ("--no-cuda-graphs",)):
            bench = env.bench(*options, *more)
            generator = bench.generator(GAD)
            for _ in range(PASSES):
                output = decode(bench, generator, bench.order, env.batch_sizes[1])
            outputs.append(output)
        same, total = same + same_ids(*outputs), total + len(outputs[0])
        difference = largest_difference(*outputs)
        good &= difference <= allowed
        largest = max(largest, difference)
    summary = f"fp32 and fp16: {same} of {total} identical, scores at most {largest:.1e} apart"
    return passed_if(good and same == total, summary, numbers={"largest_difference": largest})


def half_equals_greedy(env: Environment) -> Outcome:
    """Compare fp16 and bf16 `gad` at both batch sizes with `greedy` one sentence at a time, scores bit by bit."""
    rows, good = [["precision", "batch", "identical to greedy at batch 1", "largest difference of scores"]], True
    for kind in ("fp16", "bf16"):
        # The maximum length must not depend on the longest source of a batch.
        bench = env.bench(f"--{kind}", "--max-len-a", "0", "--max-len-b", str(env.lengths[1]))
        expected = decode(bench, bench.generator(GREEDY), bench.order, 1)
        for contender in (GREEDY, GAD):
            for size in env.batch_sizes:
                output = decode(bench, bench.generator(contender), bench.order, size)
                same, difference = same_ids(output, expected), largest_difference(output, expected)
                good &= same == len(expected) and difference == 0
                cells = [str(size), f"{same} of {len(expected)}", f"{difference:.1e}"]
                rows.append([f"{contender.name} {kind}", *cells])
    return passed_if(good, "all identical" if good else "ids or scores differ", rows=rows)


def all_decoders(env: Environment) -> Outcome:
    """Compare all lossless decoders with fairseq's search in fp32: with both drafters, and some sentences at a time."""
    lossless = [contender for contender in CONTENDERS if contender.lossless and contender.needs != BLOCKWISE]
    drafting = [contender for contender in lossless if contender.needs == DRAFTER]
    rows, good = [["decoder", "settings", "identical"]], True
    for contenders, options in (
        (lossless, []),
        (lossless, ["--active-sentences", str(env.batch_sizes[1] // 2)]),
        (drafting, ["--replay-drafter", "features"]),
    ):
        bench = env.bench(*options)
        expected = {
            contender.name: decode(bench, bench.generator(contender), bench.order, env.batch_sizes[1])
            for contender in CONTENDERS
            if contender.decoder == "beam"
        }
        for contender in bench.runnable(contenders):
            output = decode(bench, bench.generator(contender), bench.order, env.batch_sizes[1])
            same = same_ids(output, expected[contender.reference])
            good &= same == len(output)
            rows.append([contender.name, " ".join(options), f"{same} of {len(output)}"])
    return passed_if(good, "all identical" if good else "ids differ", rows=rows)


def bits(env: Environment) -> Outcome:
    """Compare products and attention bit by bit: rows alone and among others, launched and captured."""
    rows, good = [["precision", "operation", "rows", "equal"]], True
    few = slice(0, 1), slice(6, 7), slice(2, 5)
    for dtype in (torch.float16, torch.bfloat16):

        def numbers(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randn(*shape, device=env.device).to(dtype)

        last = torch.randint(128, (7, 30), device=env.device)
        product = partial(fixed_shapes.linear, weight=numbers(2048, 512), bias=numbers(2048))
        operations: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
            "product": (product, (numbers(7, 30, 512),)),
            "attention": (fixed_shapes.attention, (numbers(7, 30, 8, 64), numbers(7, 128, 2, 8, 64), last)),
        }
        for name, (function, values) in operations.items():
            whole = function(*values)
            equal = [torch.equal(function(*(value[part] for value in values)), whole[part]) for part in few]
            if env.is_gpu:
                # Outside of the memory of graphs.
                result = torch.empty_like(whole)
                capture_on_cuda(lambda f=function, v=values, r=result: (r.copy_(f(*v)),))()  # type: ignore[misc]
                equal.append(torch.equal(result, whole))
            good &= all(equal)
            rows.append([str(dtype).removeprefix("torch."), name, "7 x 30", f"{sum(equal)} of {len(equal)}"])
    return passed_if(good, "equal bits" if good else "bits depend on the batch", rows=rows)


def inputs_stay(env: Environment) -> Outcome:
    """Decode with PyTorch's check that no graph reads freed memory; launched and replayed passes give equal scores."""
    bench, good = env.bench("--fp16"), True
    # PyTorch 2.11 does not have it yet.
    has_check = "check_input_liveness" in signature(torch.cuda.graph).parameters
    for contender in (GREEDY, GAD):
        generator = bench.generator(contender)
        graphs = graphs_of(generator)
        assert graphs is not None
        if env.is_gpu and has_check:
            graphs.capture = partial(capture_on_cuda, check_input_liveness=True)
        first, *others = [decode(bench, generator, bench.order, env.batch_sizes[1]) for _ in range(PASSES)]
        good &= all(output == first for output in others)
    if good and env.is_gpu and not has_check:
        return Outcome(NOT_RUN, f"PyTorch {torch.__version__} cannot check it; equal in all passes")
    return passed_if(good, "no freed memory read, equal in all passes" if good else "passes differ")

"""Checks of token ids: equal to fairseq's in fp32, to our `greedy` in half precision, with and without graphs."""

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
from fairseq_plugins.benchmarks.gpu_check.report import Outcome, passed_if
from fairseq_plugins.benchmarks.gpu_use import graphs_of
from fairseq_plugins.decoding.engine.graph_capture import Graphs


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
    """Compare `gad` with and without graphs: ids, and the largest difference of scores."""
    largest, same, total = 0.0, 0, 0
    for options in ((), ("--fp16",)):
        outputs = []
        for more in ((), ("--no-cuda-graphs",)):
            bench = env.bench(*options, *more)
            generator = bench.generator(GAD)
            for _ in range(PASSES):
                output = decode(bench, generator, bench.order, env.batch_sizes[1])
            outputs.append(output)
        same, total = same + same_ids(*outputs), total + len(outputs[0])
        largest = max(largest, largest_difference(*outputs))
    summary = f"fp32 and fp16: {same} of {total} identical, scores at most {largest:.1e} apart"
    return passed_if(same == total, summary, numbers={"largest_difference": largest})


def half_equals_greedy(env: Environment) -> Outcome:
    """Compare fp16 and bf16 `gad` at both batch sizes with `greedy` one sentence at a time."""
    rows, good = [["precision", "batch", "identical to greedy at batch 1"]], True
    for kind in ("fp16", "bf16"):
        # The maximum length must not depend on the longest source of a batch.
        bench = env.bench(f"--{kind}", "--max-len-a", "0", "--max-len-b", str(env.lengths[1]))
        expected = decode(bench, bench.generator(GREEDY), bench.order, 1)
        for contender in (GREEDY, GAD):
            for size in env.batch_sizes:
                same = same_ids(decode(bench, bench.generator(contender), bench.order, size), expected)
                good &= same == len(expected)
                rows.append([f"{contender.name} {kind}", str(size), f"{same} of {len(expected)}"])
    return passed_if(good, "all identical" if good else "ids differ", rows=rows)

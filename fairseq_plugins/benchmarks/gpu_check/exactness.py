"""Checks of what is said: the same ids as fairseq, with graphs and without, and in half precision as our `greedy`."""

from fairseq_plugins.benchmarks.gpu_check.place import (
    BEAM_1,
    GAD,
    GREEDY,
    PASSES,
    Place,
    decoded,
    largest_difference,
    same_ids,
)
from fairseq_plugins.benchmarks.gpu_check.report import Outcome, judged
from fairseq_plugins.benchmarks.gpu_use import graphs_of
from fairseq_plugins.decoding.engine.graph_capture import Graphs


def fp32_is_fairseqs(place: Place) -> Outcome:
    """fp32 `greedy` and `gad` against fairseq's beam 1 at both batch sizes, pass after pass."""
    bench = place.bench()
    rows, good = [["fp32", "batch", "pass", "identical", "captures", "steps from graphs"]], True
    for size in place.batch_sizes:
        numbers = bench.order
        expected = decoded(bench, bench.generator(BEAM_1), numbers, size)
        for contender in (GREEDY, GAD):
            generator = bench.generator(contender)
            graphs: Graphs | None = None
            for number in range(PASSES):
                same = same_ids(decoded(bench, generator, numbers, size), expected)
                graphs = graphs_of(generator)
                assert graphs is not None
                good &= same == len(numbers)
                cells = [f"{same} of {len(numbers)}", graphs.captures, graphs.replays]
                rows.append(list(map(str, [contender.name, size, number + 1, *cells])))
            good &= not place.is_gpu or (graphs is not None and graphs.are_on and graphs.replays > 0)
    return judged(good, "all identical, graphs on" if good else "ids differ, or no graph ran", rows=rows)


def graphs_change_nothing(place: Place) -> Outcome:
    """`gad` with graphs and with --no-cuda-graphs: ids, and the largest difference of a score."""
    largest, same, total = 0.0, 0, 0
    for options in ((), ("--fp16",)):
        outputs = []
        for more in ((), ("--no-cuda-graphs",)):
            bench = place.bench(*options, *more)
            generator = bench.generator(GAD)
            for _ in range(PASSES):
                output = decoded(bench, generator, bench.order, place.batch_sizes[1])
            outputs.append(output)
        same, total = same + same_ids(*outputs), total + len(outputs[0])
        largest = max(largest, largest_difference(*outputs))
    summary = f"fp32 and fp16: {same} of {total} identical, scores at most {largest:.1e} apart"
    return judged(same == total, summary, numbers={"largest_difference": largest})


def half_is_greedys(place: Place) -> Outcome:
    """fp16 and bf16: `gad` at both batch sizes against `greedy` one sentence at a time."""
    rows, good = [["precision", "batch", "identical to greedy at batch 1"]], True
    for kind in ("fp16", "bf16"):
        # The longest output is not to depend on the longest source of a batch.
        bench = place.bench(f"--{kind}", "--max-len-a", "0", "--max-len-b", str(place.lengths[1]))
        expected = decoded(bench, bench.generator(GREEDY), bench.order, 1)
        for contender in (GREEDY, GAD):
            for size in place.batch_sizes:
                same = same_ids(decoded(bench, bench.generator(contender), bench.order, size), expected)
                good &= same == len(expected)
                rows.append([f"{contender.name} {kind}", str(size), f"{same} of {len(expected)}"])
    return judged(good, "all identical" if good else "ids differ", rows=rows)

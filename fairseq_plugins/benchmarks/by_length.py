"""Cost against length: milliseconds per sentence for sentences of a few stated lengths, drafting beside greedy.

spec-dec-bench --replay base --by-length 10,50,100,200,500 --results FOLDER
"""

import json
import statistics
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import Contender
from fairseq_plugins.commands.progress import progress_bar

# length -> row -> seconds per sentence of every repetition
Times = Mapping[int, Mapping[str, Sequence[float]]]


def measure(bench: Bench, contenders: Sequence[Contender], lengths: Sequence[int], repeats: int) -> Times:
    """Decode the sentences of each length one by one, the contenders taking turns, after a sentence for warm-up.

    Args:
        bench: its data has sentences of these lengths: see `replay.prepare`.
        contenders: rows.
        lengths: of sources in tokens, the end of the sentence included.
        repeats: how often every sentence is decoded.
    """
    numbers = {length: [n for n in bench.order if bench.dataset.src_sizes[n] == length] for length in lengths}
    total = repeats * len(contenders) * sum(map(len, numbers.values()))
    times: dict[int, dict[str, list[float]]] = {}
    with progress_bar(total) as bar:
        generators = {contender.name: bench.generator(contender) for contender in contenders}
        for length, chosen in numbers.items():
            bar.set_description(f"{length} tokens", refresh=False)
            times[length] = {name: [] for name in generators}
            for generator in generators.values():
                bench.decode(generator, chosen[:1], 1)
            for _ in range(repeats):
                for name, generator in generators.items():
                    times[length][name].append(bench.decode(generator, chosen, 1, bar)[1] / len(chosen))
    return times


def table(times: Times) -> str:
    """Milliseconds per sentence by length, what a further token adds to that, and shares of the first row's time.

    What a token adds is the slope since the length above it.
    """
    first, *others = names = list(next(iter(times.values())))
    header = ["tokens", *(f"{name}, ms" for name in names), *(f"{name}, ms per further token" for name in names)]
    header += [f"{name} / {first}" for name in others]
    body = []
    before: tuple[int, dict[str, float]] | None = None
    for length, rows in times.items():
        medians = {name: 1000 * statistics.median(seconds) for name, seconds in rows.items()}
        slopes = [""] * len(names)
        if before is not None:
            slopes = [f"{(medians[name] - before[1][name]) / (length - before[0]):.2f}" for name in names]
        shares = [f"{medians[name] / medians[first]:.3f}" for name in others]
        body.append([str(length), *(f"{value:.2f}" for value in medians.values()), *slopes, *shares])
        before = length, medians
    return tabulate(body, header, tablefmt="github", colalign=["right"] * len(header), disable_numparse=True)


def as_json(times: Times, lines: Sequence[str]) -> str:
    """Seconds per sentence of every repetition."""
    rows = [{"tokens": length, "seconds": dict(rows)} for length, rows in times.items()]
    return json.dumps({"rows": rows, "notes": list(lines)}, indent=2, ensure_ascii=False) + "\n"

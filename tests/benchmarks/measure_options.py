"""Measure sampling, alignments and fairseq's other searches on captions: `python -m tests.benchmarks.measure_options`.

    python -m tests.benchmarks.measure_options SOURCES REFERENCES [PART...]

SOURCES and REFERENCES are captions in English and German, a line each, such as the test set of Multi30k. Each part
prints rows of a Markdown table: `samples`, `distribution`, `speed`, `searches`.
"""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fairseq.search import Sampling as FairseqSampling
from fairseq.sequence_generator import SequenceGenerator

from fairseq_plugins import Translation
from tests.benchmarks.captions import BASE, CLDR, cut, model, row, shown
from tests.benchmarks.measure_searches import searches

Ids = list[list[tuple[str, ...]]]
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.7}, {"temperature": 0.5}, {"temperature": 1.5}, {"sampling_topk": 10}, {"sampling_topp": 0.9},
    {}, {"sampling_topp": 0.8, "temperature": 1.5},
)  # fmt: skip


def hypotheses(translations: Sequence[Translation]) -> Ids:
    """Return the subwords of all hypotheses of each sentence."""
    return [[tuple(each.tokens) for each in (one, *one.alternatives)] for one in translations]


# Sampled ids


def samples(sources: list[str], _: list[str]) -> None:
    """Compare sampled ids of decoders, batches, threads, and of the kernels with PyTorch."""
    texts = cut(sources)
    ways: list[dict[str, Any]] = [
        {"decoder": decoder, "threads": threads, "batch_size": size}
        for decoder in ("greedy", "gad", "gs-jacobi")
        for threads in (1, 2)
        for size in (1, 7, 32)
    ]
    in_torch: list[dict[str, Any]] = [
        {"decoder": "greedy", "batch_size": 32, "no_compiled_steps": True},
        {"decoder": "gad", "batch_size": 7, "threads": 2, "no_compiled_steps": True},
    ]
    for number, options in enumerate(SAMPLINGS):
        # All ways with one of the options; with the others four, and one in PyTorch, which is slow.
        found = [drawn(texts, options, **way) for way in (ways[::5] if number else ways)]
        torchs = [drawn(texts, options, **way) for way in ([in_torch[number % 2]] if number else in_torch)]
        row(
            f"sampled ids, {shown(options)}", f"{len(texts)} sentences",
            f"kernels: {sum(one == found[0] for one in found)} of {len(found)} runs equal",
            f"PyTorch: {sum(one == torchs[0] for one in torchs)} of {len(torchs)} runs equal",
            f"kernels and PyTorch: {equal(found[0], torchs[0])} sentences equal",
        )  # fmt: skip


def drawn(
    texts: list[list[str]], options: dict[str, Any], decoder: str, batch_size: int, threads: int = 1, **how: Any
) -> Ids:
    own = model(decoder, threads=threads, **how)
    return hypotheses(own.translate_batch(texts, sampling=True, seed=1, batch_size=batch_size, **options))


def equal(first: Ids, second: Ids) -> str:
    return f"{sum(one == other for one, other in zip(first, second, strict=True))} of {len(first)}"


# Distribution


def distribution(*_: list[str], count: int = 100_000) -> None:
    """Compare samples with the model's softmax, and with fairseq's sampler, by chi-square."""
    own = model("gad", CLDR)
    # Many tokens may begin its translation.
    words = own.tokenize("On Sundays, the assistants visit Laura.")
    session = own._session
    (verifier,), target = session.models, session.task.target_dictionary
    for options in ({}, {"sampling_topk": 10}, {"sampling_topp": 0.9, "temperature": 1.2}, {"temperature": 0.7}):
        for longest in (1, 3):
            outputs = f"{longest} token" if longest == 1 else f"outputs of up to {longest} tokens"
            limits = {"max_len_a": 0, "max_len_b": longest}
            ours: Counter[tuple[int, ...]] = Counter()
            for begin in range(0, count, 5000):
                (best,) = own.translate_batch(
                    [words], numbers=[begin], sampling=True, num_hypotheses=5000, **limits, **options
                )
                for each in (best, *best.alternatives):
                    ours[tuple(target.index(token) for token in each.tokens)] += 1
            ids = own._text.source(words)
            expected = probabilities(verifier, ids, list(ours), longest, target, options)
            theirs = fairseqs(verifier, ids, target, longest, count, options)
            row(
                f"{count:,} samples of {outputs}, {shown(options)}",
                f"against the model's softmax: {against(ours, expected, count)}",
                f"against fairseq's sampler: {between(ours, theirs)}",
            )  # fmt: skip


def batched(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of up to `size` values."""
    left = iter(values)
    while batch := list(islice(left, size)):
        yield batch


@torch.no_grad()
def probabilities(
    verifier: Any,
    source: torch.Tensor,
    outputs: list[tuple[int, ...]],
    longest: int,
    target: Any,
    options: dict[str, Any],
) -> dict[tuple[int, ...], float]:
    """Return the probability of each output by fairseq's own model; outputs end with EOS, forced after `longest`."""
    encoded = verifier.encoder(source[None], torch.tensor([len(source)]))
    topk, topp = options.get("sampling_topk", 0), options.get("sampling_topp", 0.0)
    steps = {output: (*output, target.eos())[:longest] for output in outputs}
    found = dict.fromkeys(outputs, 1.0)
    for length in range(longest):
        by_prefix: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for output, tokens in steps.items():
            if len(tokens) > length:
                by_prefix.setdefault(tokens[:length], []).append(output)
        for prefixes in batched(by_prefix, 500):
            inputs = torch.tensor([[target.eos(), *prefix] for prefix in prefixes])
            rows = verifier.encoder.reorder_encoder_out(encoded, torch.zeros(len(prefixes), dtype=torch.long))
            logits = verifier.decoder(inputs, encoder_out=rows)[0][:, -1].double()
            log_probs = (logits / options.get("temperature", 1.0)).log_softmax(-1)
            log_probs[:, target.pad()] = -torch.inf
            if length == 0:
                log_probs[:, target.eos()] = -torch.inf
            ordered = log_probs.exp().sort(descending=True)
            kept = torch.full((len(prefixes), 1), topk or log_probs.size(1))
            if topp:
                kept = (ordered.values.cumsum(1) < topp).sum(1, keepdim=True) + 1
            values = ordered.values * (torch.arange(log_probs.size(1)) < kept)
            allowed = torch.zeros_like(log_probs).scatter_(1, ordered.indices, values / values.sum(1, keepdim=True))
            for of_prefix, prefix in zip(allowed, prefixes, strict=True):
                for output in by_prefix[prefix]:
                    found[output] *= float(of_prefix[steps[output][length]])
    return found


def fairseqs(
    verifier: Any, source: torch.Tensor, target: Any, longest: int, count: int, options: dict[str, Any]
) -> Counter[tuple[int, ...]]:
    """Return samples of fairseq's own generator."""
    search = FairseqSampling(target, options.get("sampling_topk", -1), options.get("sampling_topp", -1.0))
    generator = SequenceGenerator(
        [verifier], target, beam_size=5, max_len_a=0, max_len_b=longest, search_strategy=search,
        temperature=options.get("temperature", 1.0),
    )  # fmt: skip
    torch.manual_seed(1)
    size = 500
    sample = {"net_input": {"src_tokens": source.repeat(size, 1), "src_lengths": torch.tensor([len(source)] * size)}}
    drawn_ids: Counter[tuple[int, ...]] = Counter()
    for _ in range(count // (5 * size)):
        for of_sentence in generator.generate([verifier], sample):
            drawn_ids.update(tuple(each["tokens"].tolist()[:-1]) for each in of_sentence)
    return drawn_ids


def chi_square(terms: list[float], freedom: int) -> str:
    statistic = torch.tensor(sum(terms), dtype=torch.double)
    p = float(torch.special.gammaincc(torch.tensor(freedom / 2, dtype=torch.double), statistic / 2))
    return f"chi-square {float(statistic):.0f} with {freedom} degrees of freedom, p = {p:.3f}"


def against(ours: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], count: int) -> str:
    """Return chi-square of counts against probabilities; outputs expected fewer than 10 times are one cell."""
    common = [output for output in ours if expected[output] * count >= 10]
    observed = [ours[output] for output in common]
    wanted = [expected[output] * count for output in common]
    # Also those that were never drawn; with few tokens to draw there are none.
    left, rest = count - sum(observed), count - sum(wanted)
    if rest > 1e-3:
        observed.append(left)
        wanted.append(rest)
    elif left:
        raise RuntimeError(f"{left} samples are outputs that cannot be drawn")
    return chi_square([(a - b) ** 2 / b for a, b in zip(observed, wanted, strict=True)], len(wanted) - 1)


def between(ours: Counter[tuple[int, ...]], theirs: Counter[tuple[int, ...]]) -> str:
    """Return chi-square of two sets of as many samples; outputs found fewer than 20 times are one cell."""
    common = [output for output in ours | theirs if ours[output] + theirs[output] >= 20]
    pairs = [(ours[output], theirs[output]) for output in common]
    pairs.append((ours.total() - sum(a for a, _ in pairs), theirs.total() - sum(b for _, b in pairs)))
    return chi_square([(a - b) ** 2 / (a + b) for a, b in pairs if a + b], len(pairs) - 1)


# Speed


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def speed(sources: list[str], _: list[str], repeats: int = 5) -> None:
    """Time sentences one by one on one thread with the base pair; print medians of the ratios of interleaved runs."""
    texts = cut(sources[:40], BASE)

    def translate(decoder: str, **options: Any) -> Callable[[], Any]:
        return lambda: model(decoder, BASE).translate_batch(texts, batch_size=1, max_len_b=60, **options)

    drawing = {"sampling": True, "seed": 1}
    runs = {"greedy": translate("greedy"), "greedy, sampling": translate("greedy", **drawing)}
    for temperature in (0.5, 0.7, 1.0):
        warm = {**drawing, "temperature": temperature}
        runs[f"greedy, {temperature}"] = translate("greedy", **warm)
        runs[f"gad, {temperature}"] = translate("gad", **warm)
    # fairseq's own sampler draws other outputs of the same model: seconds a token are compared.
    runs["fairseq, 0.7"] = translate("beam", sampling=True, temperature=0.7, beam=1)
    tokens, times = {}, {name: [] for name in runs}
    for number in range(repeats + 1):
        for name, run in runs.items():
            before = time.perf_counter()
            translations = run()
            if number:  # the first run warms up
                times[name].append(time.perf_counter() - before)
                tokens[name] = sum(len(one.tokens) + 1 for one in translations)

    def ratio(slow: str, fast: str) -> str:
        ratios = [a / tokens[slow] / (b / tokens[fast]) for a, b in zip(times[slow], times[fast], strict=True)]
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"

    place = "base pair, batch 1, one thread, tokens per second"
    row("sampling / greedy, without drafts", place, ratio("greedy", "greedy, sampling"))
    for temperature in (0.5, 0.7, 1.0):
        translations = runs[f"gad, {temperature}"]()
        emitted = sum(len(one.tokens) + 1 for one in translations) / sum(one.iterations or 0 for one in translations)
        row(
            f"`gad` sampling / sampling without drafts, temperature {temperature}", place,
            f"{ratio(f'greedy, {temperature}', f'gad, {temperature}')}; {emitted:.2f} tokens per iteration",
        )  # fmt: skip
    row("`gad` sampling / fairseq `--sampling`, temperature 0.7", place, ratio("fairseq, 0.7", "gad, 0.7"))
    row("sampling without drafts / fairseq `--sampling`, temperature 0.7", place, ratio("fairseq, 0.7", "greedy, 0.7"))


PARTS = {"samples": samples, "distribution": distribution, "speed": speed, "searches": searches}


def main() -> None:
    """Measure the parts named on the command line; default: all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("references", type=Path)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--sentences", type=int, default=1000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    both = (
        file.read_text(encoding="utf-8").splitlines()[: arguments.sentences]
        for file in (arguments.sources, arguments.references)
    )
    sources, references = both
    for name in arguments.parts or PARTS:
        PARTS[name](sources, references)


if __name__ == "__main__":
    main()

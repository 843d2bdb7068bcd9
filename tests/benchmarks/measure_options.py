"""Time sampling, and alignments and fairseq's other searches, on captions.

    python -m tests.benchmarks.measure_options SOURCES REFERENCES [PART...]

SOURCES and REFERENCES are captions in English and German, a line each, such as the test set of Multi30k. Each part
prints rows of a Markdown table: `speed` of sampling, `searches`. The programs use one thread.
"""

import argparse
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

import fairseq_plugins
from fairseq_plugins import Model, Translation
from fairseq_plugins.decoding.reference.beam_verifier import BeamVerifier
from fairseq_plugins.decoding.reference.search.strategy import SearchStrategy
from tests.language_model import write_language_model
from tests.support import REPOSITORY

SMALL, BASE = (REPOSITORY / "checkpoints" / name for name in ("multi30k.en-de", "multi30k-base.en-de"))


@cache
def model(decoder: str, folder: Path = SMALL, **options: Any) -> Model:
    """Return a model of the repository on one thread of the CPU."""
    return fairseq_plugins.load(folder, decoder=decoder, device="cpu", threads=1, **options)


def cut(texts: Sequence[str], folder: Path = SMALL) -> list[list[str]]:
    """Return texts as subwords."""
    return [model("greedy", folder).tokenize(text) for text in texts]


def row(*cells: object) -> None:
    """Print a row of the table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


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


def searches(sources: list[str], references: list[str], count: int = 461, size: int = 16) -> None:
    """Compare all hypotheses and alignments with those of fairseq's own search, beam 5, in batches of a size.

    Speeds are ratios of processor time, which other programs do not change. Sentences with other hypotheses are near
    ties if fairseq's own differ there, too, in double precision.
    """
    texts, words = cut(sources[:count]), cut(references[:count])
    # Up to two phrases of each reference, in the order in which it has them: words 2 to 3, and the last one.
    phrases = [phrases_of(one) for one in words]
    with TemporaryDirectory() as folder:
        # fairseq reads the dictionary of the language model in the folder of the model.
        for name in ("dict.en.txt", "dict.de.txt", "subwords.model", "verifier.pt"):
            shutil.copy(SMALL / name, folder)
        language_model = str(write_language_model(Path(folder), SMALL / "dict.de.txt", 256))
        languages = {"folder": Path(folder), "source_lang": "en", "target_lang": "de"}
        cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
            "alignments (hard)": ({}, {"alignments": True}),
            "alignments (hard) of the best output": ({}, {"alignments": True, "num_hypotheses": 1}),
            "constraints, ordered": ({}, {"constraints": phrases}),
            "constraints, unordered": (
                {}, {"constraints": [one[::-1] for one in phrases], "constraint_order": "unordered"}
            ),
            "diverse beams, 5 groups": ({"diverse_beam_groups": 5}, {}),
            "diverse siblings, rate 0.5": ({"diversity_rate": 0.5}, {}),
            "lengths of sources": ({"match_source_len": True}, {}),
            "a random language model, weight 0.2": (
                {"lm_path": language_model, "lm_weight": 0.2, **languages}, {}
            ),
            "suppressed tokens": ({}, {"suppress_tokens": ["\u2581Ein", "\u2581ein", "."]}),
        }  # fmt: skip
        for name, (of_load, of_call) in cases.items():
            compare(name, texts, size, of_load, of_call)


def compare(
    name: str, texts: list[list[str]], size: int, of_load: dict[str, Any], of_call: dict[str, Any], repeats: int = 2
) -> None:
    """Print the row of one search."""
    ours, theirs = (model(decoder, **of_load) for decoder in ("fast-beam", "beam"))
    found: dict[str, list[Translation]] = {}
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    with ExitStack() as stack:
        # The parts of our loop in PyTorch that are fairseq's code, and the decoder.
        parts = {
            "fairseq's search object": stack.enter_context(timed(SearchStrategy, "candidates")),
            "fairseq's language model": stack.enter_context(timed(SearchStrategy, "add_language_model")),
            "the decoder": stack.enter_context(timed(BeamVerifier, "log_probs")),
        }
        for _ in range(repeats):
            for who, own in (("ours", ours), ("theirs", theirs)):
                began = time.process_time()
                found[who] = in_batches(own, texts, size, of_call)
                times[who].append(time.process_time() - began)
    whole = sum(times["ours"])
    shares = [f"{sum(spent) / whole:.0%} {part}" for part, spent in parts.items() if sum(spent) > 0.01 * whole]
    both = list(zip(found["ours"], found["theirs"], strict=True))
    others = [number for number, (one, other) in enumerate(both) if hypotheses(one) != hypotheses(other)]
    best = sum(one.tokens == other.tokens for one, other in both)
    for one in theirs._session.models:
        one.double()
    exact = in_batches(theirs, [texts[n] for n in others], 1, of_numbers(of_call, others))
    unstable = sum(hypotheses(one) != hypotheses(both[n][1]) for n, one in zip(others, exact, strict=True))
    for one in theirs._session.models:
        one.float()
    ties = f"; of the other {len(others)}, {unstable} are near ties: in float64 fairseq's own are others"
    ties = ties if others else ""
    row(
        name, f"best outputs of {best} of {len(texts)}, all hypotheses of {len(texts) - len(others)}{ties}",
        f"batches of {size}: {min(times['theirs']) / min(times['ours']):.1f} times fairseq's speed"
        + (f"; of our time {', '.join(shares)}" if shares else ""),
    )  # fmt: skip


@contextmanager
def timed(owner: type, name: str) -> Iterator[list[float]]:
    """Measure the seconds of each call of a method."""
    seconds: list[float] = []
    method = getattr(owner, name)

    def run(*arguments: Any, **options: Any) -> Any:
        began = time.process_time()
        result = method(*arguments, **options)
        seconds.append(time.process_time() - began)
        return result

    with patch.object(owner, name, run):
        yield seconds


def hypotheses(one: Translation) -> tuple[Any, ...]:
    """Return the tokens of all hypotheses, and the alignment of the best."""
    return one.alignment, *(each.tokens for each in (one, *one.alternatives))


def of_numbers(options: dict[str, Any], numbers: list[int]) -> dict[str, Any]:
    """Return the options of a call for these sentences."""
    if "constraints" not in options:
        return options
    return {**options, "constraints": [options["constraints"][number] for number in numbers]}


def in_batches(own: Model, texts: list[list[str]], size: int, options: dict[str, Any]) -> list[Translation]:
    """Decode batch by batch: fairseq's diverse beams fail where the number of a sentence exceeds those of its batch."""
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    plain: dict[str, Any] = {"beam": 5, "num_hypotheses": 5, "batch_size": size}
    found: dict[int, Translation] = {}
    for begin in range(0, len(order), size):
        numbers = order[begin : begin + size]
        given = of_numbers(options, numbers)
        found |= zip(numbers, own.translate_batch([texts[n] for n in numbers], **{**plain, **given}), strict=True)
    return [found[number] for number in range(len(texts))]


def phrases_of(words: list[str]) -> list[list[str]]:
    """Return two phrases of a sentence given as subwords: whole words."""
    begins = [n for n, word in enumerate(words) if word.startswith("\u2581")]
    if len(begins) < 4:
        return []
    return [words[begins[1] : begins[3]], words[begins[-1] :]]


PARTS = {"speed": speed, "searches": searches}


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

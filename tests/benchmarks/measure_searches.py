"""Time alignments and fairseq's other searches on captions, with one thread; print rows of a Markdown table.

    python -m tests.benchmarks.measure_searches SOURCES REFERENCES

SOURCES and REFERENCES are captions in English and German, a line each, such as the test set of Multi30k.
"""

import argparse
import shutil
import time
from collections.abc import Iterator, Sequence
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

SMALL = REPOSITORY / "checkpoints" / "multi30k.en-de"


@cache
def model(decoder: str, folder: Path = SMALL, **options: Any) -> Model:
    """Return a model of the repository on one thread of the CPU."""
    return fairseq_plugins.load(folder, decoder=decoder, device="cpu", threads=1, **options)


def cut(texts: Sequence[str]) -> list[list[str]]:
    """Return texts as subwords."""
    return [model("greedy").tokenize(text) for text in texts]


def searches(sources: list[str], references: list[str], count: int = 461, size: int = 16) -> None:
    """Compare with fairseq's own search, beam 5, in batches of a size.

    Speeds are ratios of processor time, which other programs do not change.
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
    same = sum(one.tokens == other.tokens for one, other in zip(found["ours"], found["theirs"], strict=True))
    ratio = min(times["theirs"]) / min(times["ours"])
    print(f"| {name} | {ratio:.1f} | {same} of {len(texts)} best outputs | {', '.join(shares)} |", flush=True)


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


def in_batches(own: Model, texts: list[list[str]], size: int, options: dict[str, Any]) -> list[Translation]:
    """Decode batch by batch: fairseq's diverse beams fail where the number of a sentence exceeds those of its batch."""
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    plain: dict[str, Any] = {"beam": 5, "num_hypotheses": 5, "batch_size": size}
    found: dict[int, Translation] = {}
    for begin in range(0, len(order), size):
        numbers = order[begin : begin + size]
        given = {**plain, **options}
        if "constraints" in options:
            given["constraints"] = [options["constraints"][number] for number in numbers]
        found |= zip(numbers, own.translate_batch([texts[n] for n in numbers], **given), strict=True)
    return [found[number] for number in range(len(texts))]


def phrases_of(words: list[str]) -> list[list[str]]:
    """Return two phrases of a sentence given as subwords: whole words."""
    begins = [n for n, word in enumerate(words) if word.startswith("\u2581")]
    if len(begins) < 4:
        return []
    return [words[begins[1] : begins[3]], words[begins[-1] :]]


def main() -> None:
    """Measure all searches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("references", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    searches(*(file.read_text(encoding="utf-8").splitlines() for file in (arguments.sources, arguments.references)))


if __name__ == "__main__":
    main()

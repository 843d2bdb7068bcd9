"""Synthetic traces for tests of their pages."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_plugins.decoding.recording.trace import FORMAT, VERSION

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
EOS = 2

# The papers' first example, by SpecDec++: k = 10, top-3, tau = 1.0.
SOURCE = "According to the details provided , the tunnel had not yet been put into use ."
REFERENCE = "Nach den vorliegenden Einzelheiten war der Tunnel noch nicht in Betrieb genommen worden ."
OUTPUT = "Nach den vorliegenden Angaben war der Tunnel noch nicht in Betrieb genommen worden ."


def header(source: Sequence[str], target: Sequence[str], **options: Any) -> dict[str, Any]:
    """The first line of a trace."""
    names = {"source_symbols": list(source), "target_symbols": list(target)}
    return {"format": FORMAT, "version": VERSION, "decoder": "gad++", "options": options, **names}


def note(draft: list[int], verifier: list[int], accepted: int, emitted: int) -> dict[str, Any]:
    """Return an iteration; accepted tokens that are not the verifier's are top-beta."""
    why = ["top-1" if draft[i] == verifier[i] else "top-beta" for i in range(accepted)]
    return {
        "draft": draft,
        "draft_log_probs": [-0.25 if token == best else -1.0 for token, best in zip(draft, verifier, strict=False)],
        "verifier": verifier,
        "verifier_log_probs": [-0.25] * len(verifier),
        "accepted": accepted,
        "bifurcation": accepted if accepted < min(emitted, len(draft)) else None,
        "why": why + ["verifier"] * (emitted - accepted),
        "drafter_log_probs": None,
    }


def sentence(
    number: int, source: list[int], output: list[int], iterations: list[dict], target: list[int] | None = None
) -> dict[str, Any]:
    """A sentence's line."""
    return {
        "id": number,
        "source": source,
        "target": target,
        "output": output,
        "log_probs": [-0.25] * len(output),
        "iterations": iterations,
    }


def write(path: Path, records: Sequence[dict[str, Any]]) -> str:
    """Write a trace; return its path as text."""
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    return str(path)


def case_study(path: Path) -> str:
    """The papers' example with its two iterations up to the relaxed token, and the rest."""
    words = sorted({*OUTPUT.split(), *REFERENCE.split(), *SOURCE.split()})
    symbols = [*SPECIAL, *words]

    def tokens(text: str) -> list[int]:
        return [symbols.index(word) for word in text.split()]

    first = note(
        tokens("Nach den Angaben Angaben war der Tunnel noch nicht in"),
        tokens("Nach den vorliegenden war war der Tunnel noch nicht in Betrieb"),
        accepted=2,
        emitted=3,
    )
    second = note(
        [*tokens("Angaben war der Tunnel noch nicht in Betrieb genommen"), EOS],
        [*tokens("Einzelheiten war der Tunnel noch nicht in Betrieb genommen worden"), EOS],
        accepted=9,
        emitted=10,
    )
    third = note([*tokens("."), EOS, EOS], [*tokens("."), EOS, EOS, EOS], accepted=2, emitted=2)
    record = sentence(
        7, [*tokens(SOURCE), EOS], [*tokens(OUTPUT), EOS], [first, second, third], [*tokens(REFERENCE), EOS]
    )
    return write(path, [header(symbols, symbols, block_size=10, top_beta=3, tau=1.0), record])


def random_trace(path: Path, count: int) -> str:
    """A trace of many sentences; the source of sentence n begins with the word `first<n>`."""
    length, block_size = 24, 10
    generator = random.Random(0)
    ordinary = [f"▁word{number}" for number in range(2000)]
    symbols = [*SPECIAL, *ordinary, *(f"▁first{number}" for number in range(count))]
    records: list[dict[str, Any]] = [header(symbols, symbols, block_size=block_size, top_beta=3, tau=1.0)]
    begin = len(SPECIAL)

    def word() -> int:
        return generator.randrange(begin, begin + len(ordinary))

    for number in range(count):
        output = [word() for _ in range(generator.randrange(length // 2, length + length // 2))] + [EOS]
        iterations = []
        done = 0
        while done < len(output):
            best = (output[done : done + block_size + 1] + [EOS] * block_size)[: block_size + 1]
            left = len(output) - done
            accepted = min(generator.randrange(block_size + 1), left)
            draft = best[:accepted] + [word() for _ in range(block_size - accepted)]
            if accepted > 1 and generator.random() < 0.3:
                best[accepted // 2] = word()  # accepted all the same
            emitted = min(accepted + 1, left)
            iterations.append(note(draft, best, accepted, emitted))
            done += emitted
        source = [begin + len(ordinary) + number, *(word() for _ in range(length)), EOS]
        records.append(sentence(number, source, output, iterations, [word() for _ in range(length)] + [EOS]))
    return write(path, records)

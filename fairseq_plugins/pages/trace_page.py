"""The page of a trace: one self-contained HTML file."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.recording.trace import REASONS, Trace, TracedSentence, count_sentences
from fairseq_plugins.metrics.edits import edit_ratio
from fairseq_plugins.pages.template import page_json, template
from fairseq_plugins.process.output import counted

# Larger pages are too slow in a browser.
MAX_SENTENCES = 20_000
MAX_BYTES = 200_000_000

# Kinds of edit ratios.
EDITS = {"source": "output against source", "reference": "output against reference"}
# A task rewrites its input if the median edit ratio against the source is below this.
_REWRITING = 0.5


def sample_evenly(count: int, keep: int) -> set[int]:
    """Return `keep` evenly spaced numbers from 0 to `count` - 1, or all of these if there are at most `keep`."""
    if keep >= count:
        return set(range(count))
    return {number * count // keep for number in range(keep)}


def how_many_fit(path: str, limit: int | None = None) -> tuple[int, int]:
    """Return the number of sentences in a trace, and of those that a page can hold, at most `limit`.

    Raises ConfigurationError for a file that cannot be read or is truncated.
    """
    count, size = count_sentences(path)
    fitting = min(count, MAX_SENTENCES, count * MAX_BYTES // max(size, 1))
    return count, min(fitting, count if limit is None else limit)


def describe(trace: Trace) -> str:
    """Return decoder and settings as text, without defaults."""
    defaults = {"temperature": 1.0, **asdict(methods.find(trace.decoder).options())}
    settings = [
        name.replace("_", "-") + ("" if value is True else f" {value}")
        for name, value in trace.options.items()
        if value not in (None, "none", False) and value != defaults.get(name)
    ]
    return " · ".join([f"decoder {trace.decoder}", *settings])


def edit_ratios(sentence: TracedSentence, joined: bool) -> dict[str, float]:
    """Return a sentence's edit ratios without EOS: against the source with `joined` dictionaries, and the reference."""
    before = {"source": sentence.source if joined else None, "reference": sentence.target}
    return {kind: edit_ratio(one[:-1], sentence.output[:-1]) for kind, one in before.items() if one is not None}


def edit_basis(decoder: str, ratios: Sequence[Mapping[str, float]], wanted: str = "auto") -> str | None:
    """Return the kind of edit ratio to show: the wanted one, or for "auto" the task's; None if it is unavailable."""
    known = [kind for kind in EDITS if ratios and all(kind in of_sentence for of_sentence in ratios)]
    if wanted != "auto":
        return wanted if wanted in known else None
    spec = methods.find(decoder)
    if "source" in known and (
        spec.copies_source(spec.options()) is not None
        or statistics.median(of_sentence["source"] for of_sentence in ratios) < _REWRITING
    ):
        return "source"
    return "reference" if "reference" in known else None


def acceptance(ends: Counter[tuple[int, bool]]) -> list[float]:
    """Return the probability that a drafted token and all before it are accepted, by position in the draft.

    `ends` counts iterations by their accepted tokens, and whether the next one was rejected: what follows the end of a
    sentence is not verified (an estimate of Kaplan and Meier, 1958).
    """
    survival: list[float] = []
    for position in range(max((accepted for accepted, _ in ends), default=0)):
        reached = sum(count for (accepted, _), count in ends.items() if accepted > position)
        rejected = ends[position, True]
        survival.append((survival[-1] if survival else 1.0) * reached / (reached + rejected))
    return survival


class _Symbols:
    """Numbers symbols by their first use, so that a page contains only symbols that it uses."""

    def __init__(self, symbols: list[str]) -> None:
        self._symbols = symbols
        self._numbers: dict[int, int] = {}

    def number(self, tokens: list[int]) -> list[int]:
        numbers = self._numbers
        return [numbers.setdefault(token, len(numbers)) for token in tokens]

    def used(self) -> list[str]:
        return [self._symbols[token] for token in self._numbers]


def page(
    name: str, trace: Trace, sentences: Iterable[TracedSentence], total: int, edits: str = "auto"
) -> tuple[str, str | None]:
    """Return the page, and the kind of edit ratio that it shows.

    Args:
        name: name of the trace's file.
        trace: header of the trace.
        sentences: sentences to show.
        total: number of sentences of the trace; the page says if it shows fewer.
        edits: kind of edit ratio: "source", "reference" or "auto".
    """
    source, target = _Symbols(trace.source_symbols), _Symbols(trace.target_symbols)
    reasons = {reason: number for number, reason in enumerate(sorted(REASONS))}
    joined = trace.source_symbols == trace.target_symbols
    ratios: list[dict[str, float]] = []
    texts, iterations = [], []
    ids, token_counts, iteration_counts = [], [], []
    ends: Counter[tuple[int, bool]] = Counter()
    eos = "</s>"
    for sentence in sentences:
        ids.append(sentence.id)
        token_counts.append(len(sentence.output))
        iteration_counts.append(len(sentence.iterations))
        ratios.append(edit_ratios(sentence, joined))
        ends.update((note.accepted, note.bifurcation is not None) for note in sentence.iterations)
        eos = trace.target_symbols[sentence.output[-1]] if sentence.output else eos
        reference = None if sentence.target is None else target.number(sentence.target)
        tokens = source.number(sentence.source), reference, target.number(sentence.output)
        text = [*tokens, sentence.log_probs, *([] if sentence.alignment is None else [sentence.alignment])]
        texts.append(page_json(text))
        iterations.append(
            page_json(
                [
                    [
                        target.number(note.draft),
                        note.draft_log_probs,
                        target.number(note.verifier),
                        note.verifier_log_probs,
                        note.accepted,
                        note.bifurcation,
                        [reasons[reason] for reason in note.why],
                    ]
                    for note in sentence.iterations
                ]
            )
        )
    basis = edit_basis(trace.decoder, ratios, edits)
    summary: dict[str, Any] = {
        "title": f"How {trace.decoder} decoded {counted(len(ids), 'sentence')}",
        "about": f"{name} · {_about(trace, len(ids), sum(token_counts), sum(iteration_counts), ends)}",
        "sampled": sampling_note(len(ids), total),
        "reasons": list(reasons),
        "eos": eos,
        "source": source.used(),
        "target": target.used(),
        "ids": ids,
        "tokens": token_counts,
        "iterations": iteration_counts,
        "edits": None if basis is None else EDITS[basis],
        "editRatios": [] if basis is None else [round(of_sentence[basis], 4) for of_sentence in ratios],
    }
    parts = {"@@SUMMARY@@": page_json(summary), "@@TEXTS@@": "\n".join(texts), "@@ITERATIONS@@": "\n".join(iterations)}
    filled = template("trace_page.html")
    pieces = []
    for marker, part in parts.items():
        before, filled = filled.split(marker)
        pieces += [before, part]
    return "".join([*pieces, filled]), basis


def sampling_note(shown: int, total: int) -> str:
    """Return a note if only some of the sentences are shown, else ""."""
    if shown >= total:
        return ""
    return f"A sample: {shown:,} of the {total:,} sentences of the trace, taken at even distances"


def _about(trace: Trace, sentences: int, tokens: int, iterations: int, ends: Counter[tuple[int, bool]]) -> str:
    mean, survival = tokens / max(iterations, 1), acceptance(ends)
    shares = ", ".join(f"{position}: {share:.0%}" for position, share in enumerate(survival, 1))
    return (
        f"{describe(trace)} · {counted(sentences, 'sentence')} · {tokens:,} tokens · {mean:.2f} tokens per iteration"
        + (f" · drafts accepted up to position {shares}" if shares else "")
    )

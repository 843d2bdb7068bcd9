"""The page of a trace: one self-contained HTML file."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.recording.trace import REASONS, Iteration, Trace, TracedSentence
from fairseq_plugins.pages.template import page_json, template
from fairseq_plugins.process.output import counted

# Larger pages are too slow in a browser.
MAX_SENTENCES = 20_000
MAX_BYTES = 200_000_000


def describe(trace: Trace) -> str:
    """Return decoder and settings as text, without defaults."""
    defaults = {"temperature": 1.0, **asdict(methods.find(trace.decoder).options())}
    settings = [
        name.replace("_", "-") + ("" if value is True else f" {value}")
        for name, value in trace.options.items()
        if value not in (None, "none", False) and value != defaults.get(name)
    ]
    return " · ".join([f"decoder {trace.decoder}", *settings])


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


class _Numbers(dict[int, int]):
    """Numbers of tokens by their first use, so that a page contains only symbols that it uses."""

    def of(self, tokens: list[int]) -> list[int]:
        return [self.setdefault(token, len(self)) for token in tokens]


class _Sentences:
    """Sentences as the page has them: JSON of each, and totals of all."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.source, self.target = _Numbers(), _Numbers()
        self.reasons = {reason: number for number, reason in enumerate(sorted(REASONS))}
        self.texts: list[str] = []
        self.iterations: list[str] = []
        self.size = 0
        self.ids: list[int] = []
        self.token_counts: list[int] = []
        self.iteration_counts: list[int] = []
        self.ends: Counter[tuple[int, bool]] = Counter()  # see `acceptance`
        self.eos = "</s>"

    def add(self, sentence: TracedSentence) -> None:
        self.ids.append(sentence.id)
        self.token_counts.append(len(sentence.output))
        self.iteration_counts.append(len(sentence.iterations))
        self.ends.update((step.accepted, step.bifurcation is not None) for step in sentence.iterations)
        if sentence.output:
            self.eos = self.trace.target_symbols[sentence.output[-1]]
        reference = None if sentence.target is None else self.target.of(sentence.target)
        tokens = self.source.of(sentence.source), reference, self.target.of(sentence.output)
        self.texts.append(page_json([*tokens, sentence.log_probs]))
        self.iterations.append(page_json([self._iteration(step) for step in sentence.iterations]))
        self.size += len(self.texts[-1]) + len(self.iterations[-1])

    def _iteration(self, step: Iteration) -> list[Any]:
        return [
            self.target.of(step.draft),
            step.draft_log_probs,
            self.target.of(step.verifier),
            step.verifier_log_probs,
            step.accepted,
            step.bifurcation,
            [self.reasons[reason] for reason in step.why],
        ]

    def about(self) -> str:
        """Return the settings and totals as text."""
        tokens, iterations = sum(self.token_counts), sum(self.iteration_counts)
        mean, survival = tokens / max(iterations, 1), acceptance(self.ends)
        shares = ", ".join(f"{position}: {share:.0%}" for position, share in enumerate(survival, 1))
        return (
            f"{describe(self.trace)} · {counted(len(self.ids), 'sentence')} · {tokens:,} tokens"
            f" · {mean:.2f} tokens per iteration" + (f" · drafts accepted up to position {shares}" if shares else "")
        )


def page(name: str, trace: Trace, sentences: Iterable[TracedSentence]) -> tuple[str, str]:
    """Return the page of the first sentences that a browser can handle, and a note if these are not all, else "".

    `name` is that of the trace's file.
    """
    shown, note = _Sentences(trace), ""
    for sentence in sentences:
        if len(shown.ids) == MAX_SENTENCES or shown.size > MAX_BYTES:
            note = f"The first {len(shown.ids):,} sentences: a browser takes no more"
            break
        shown.add(sentence)
    summary: dict[str, Any] = {
        "title": f"How {trace.decoder} decoded {counted(len(shown.ids), 'sentence')}",
        "about": f"{name} · {shown.about()}",
        "note": note,
        "reasons": list(shown.reasons),
        "eos": shown.eos,
        "source": [trace.source_symbols[token] for token in shown.source],
        "target": [trace.target_symbols[token] for token in shown.target],
        "ids": shown.ids,
        "tokens": shown.token_counts,
        "iterations": shown.iteration_counts,
    }
    parts = {
        "@@SUMMARY@@": page_json(summary),
        "@@TEXTS@@": "\n".join(shown.texts),
        "@@ITERATIONS@@": "\n".join(shown.iterations),
    }
    filled = template("trace_page.html")
    pieces = []
    for marker, part in parts.items():
        before, filled = filled.split(marker)
        pieces += [before, part]
    return "".join([*pieces, filled]), note

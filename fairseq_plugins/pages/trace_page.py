"""The page of a trace: one self-contained HTML file."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.recording.trace import REASONS, Trace, TracedSentence
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


def page(name: str, trace: Trace, sentences: Iterable[TracedSentence]) -> tuple[str, str]:
    """Return the page of the first sentences that a browser can handle, and a note if these are not all, else "".

    `name` is that of the trace's file.
    """
    source, target = _Numbers(), _Numbers()
    reasons = {reason: number for number, reason in enumerate(sorted(REASONS))}
    texts, iterations, size, note = [], [], 0, ""
    ids: list[int] = []
    token_counts, iteration_counts = [], []
    ends: Counter[tuple[int, bool]] = Counter()
    eos = "</s>"
    for sentence in sentences:
        if len(ids) == MAX_SENTENCES or size > MAX_BYTES:
            note = f"The first {len(ids):,} sentences: a browser takes no more"
            break
        ids.append(sentence.id)
        token_counts.append(len(sentence.output))
        iteration_counts.append(len(sentence.iterations))
        ends.update((step.accepted, step.bifurcation is not None) for step in sentence.iterations)
        eos = trace.target_symbols[sentence.output[-1]] if sentence.output else eos
        reference = None if sentence.target is None else target.of(sentence.target)
        tokens = source.of(sentence.source), reference, target.of(sentence.output)
        texts.append(page_json([*tokens, sentence.log_probs]))
        iterations.append(
            page_json(
                [
                    [
                        target.of(step.draft),
                        step.draft_log_probs,
                        target.of(step.verifier),
                        step.verifier_log_probs,
                        step.accepted,
                        step.bifurcation,
                        [reasons[reason] for reason in step.why],
                    ]
                    for step in sentence.iterations
                ]
            )
        )
        size += len(texts[-1]) + len(iterations[-1])
    summary: dict[str, Any] = {
        "title": f"How {trace.decoder} decoded {counted(len(ids), 'sentence')}",
        "about": f"{name} · {_about(trace, len(ids), sum(token_counts), sum(iteration_counts), ends)}",
        "note": note,
        "reasons": list(reasons),
        "eos": eos,
        "source": [trace.source_symbols[token] for token in source],
        "target": [trace.target_symbols[token] for token in target],
        "ids": ids,
        "tokens": token_counts,
        "iterations": iteration_counts,
    }
    parts = {"@@SUMMARY@@": page_json(summary), "@@TEXTS@@": "\n".join(texts), "@@ITERATIONS@@": "\n".join(iterations)}
    filled = template("trace_page.html")
    pieces = []
    for marker, part in parts.items():
        before, filled = filled.split(marker)
        pieces += [before, part]
    return "".join([*pieces, filled]), note


def _about(trace: Trace, sentences: int, tokens: int, iterations: int, ends: Counter[tuple[int, bool]]) -> str:
    mean, survival = tokens / max(iterations, 1), acceptance(ends)
    shares = ", ".join(f"{position}: {share:.0%}" for position, share in enumerate(survival, 1))
    return (
        f"{describe(trace)} · {counted(sentences, 'sentence')} · {tokens:,} tokens · {mean:.2f} tokens per iteration"
        + (f" · drafts accepted up to position {shares}" if shares else "")
    )

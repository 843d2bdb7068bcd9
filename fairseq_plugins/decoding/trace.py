"""What happened in decoding, token by token: `--trace-file` writes it, `read_trace` reads it.

A trace is a text file of JSON lines. The first is the header: format, version, decoder, its options and the symbols of
both dictionaries. Every other line is a sentence, see `TracedSentence`; tokens are indices into these symbols.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.decoding.drafters import Draft
from fairseq_plugins.decoding.partial_file import PartialFile
from fairseq_plugins.decoding.verifier import Verification
from fairseq_plugins.errors import ConfigurationError

FORMAT = "spec-dec-trace"
VERSION = 1
OPTION = "--trace-file"

# Why a token is in the output. A drafted one that is also the verifier's best has the reason of its decoder:
AGREED = {
    "iad": "source copy",
    "jacobi": "fixed point",
    "gs-jacobi": "fixed point",
    "hybrid-jacobi": "fixed point",
    "blockwise": "head",
    "nat": "unverified",
}
TOP_1 = "top-1"
# ... one that is not the verifier's best, but good enough for a relaxed rule:
TOP_BETA = "top-beta"
RELAXED = "relaxed"
# ... one that was not drafted, and one that `--prefix-size` gave:
VERIFIER = "verifier"
GIVEN = "given"
REASONS = {*AGREED.values(), TOP_1, TOP_BETA, RELAXED, VERIFIER, GIVEN}


@dataclass
class Iteration:
    """One draft and its verification.

    Attributes:
        draft: the drafted tokens, K of them.
        draft_scores: the verifier's log-probability of each; None where fairseq's settings forbid the token.
        choice: the verifier's best token at each of these places and at the one behind them, K + 1 (K for `nat`).
        choice_scores: log-probability of each.
        accepted: how many of the drafted tokens went into the output.
        bifurcation: place in `draft` of the first rejected token, None when all that was looked at was accepted.
        why: for each token that went into the output, the reason: one of `REASONS`.
    """

    draft: list[int]
    draft_scores: list[float | None]
    choice: list[int]
    choice_scores: list[float | None]
    accepted: int
    bifurcation: int | None
    why: list[str]

    @property
    def relaxed(self) -> list[bool]:
        """For each token that went into the output: was it drafted and not the verifier's best?"""
        return [reason in (TOP_BETA, RELAXED) for reason in self.why]


@dataclass
class TracedSentence:
    """One decoded sentence; token lists end with EOS.

    Attributes:
        id: its number in the data set.
        source: source tokens.
        target: tokens of the reference, None where the data has none.
        output: output tokens.
        scores: log-probability of each output token.
        iterations: what was drafted and verified, in order.
    """

    id: int
    source: list[int]
    target: list[int] | None
    output: list[int]
    scores: list[float | None]
    iterations: list[Iteration]

    @property
    def speed_up(self) -> float:
        """Tokens per iteration: 1 for greedy decoding."""
        return len(self.output) / max(len(self.iterations), 1)


@dataclass
class Trace:
    """A trace that was read: the header's fields, and the sentences."""

    decoder: str
    options: dict[str, Any]
    source_symbols: list[str]
    target_symbols: list[str]
    sentences: list[TracedSentence] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------------ writing


def check_traceable(file: str, decoder: str, scores_reference: bool, is_one_run: bool) -> None:
    """Refuse `--trace-file` where there is nothing to trace, or no single run to trace.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    if scores_reference:
        raise ConfigurationError(f"{OPTION} {file}: --score-reference decodes nothing; leave one of them out")
    if not is_one_run:
        raise ConfigurationError(f"{OPTION} {file}: holds one run; use it with fairseq-generate or fairseq-interactive")
    if decoder == "beam":
        raise ConfigurationError(f"{OPTION} {file}: --decoder beam drafts nothing to look at; add --decoder gad")


class TraceWriter:
    """Takes notes while a generator decodes, and writes a line for every sentence.

    Args:
        path: where to write. The file appears under that name when the run has ended well, until then and after an
            interruption with `.partial` behind it.
        source: source dictionary.
        target: target dictionary.
        decoder: name of the decoder.
        options: its settings, for the header.

    Raises:
        ConfigurationError: when the file cannot be written.
    """

    def __init__(
        self, path: str, source: Dictionary, target: Dictionary, decoder: str, options: dict[str, Any]
    ) -> None:
        self.decoder = decoder
        self._has_fallback = options.get("iad_fallback", "none") != "none"
        self._own = VERIFIER if decoder != "nat" else AGREED["nat"]
        self._pads = source.pad(), target.pad()
        self._written = 0
        self._notes: dict[int, list[Iteration]] = {}
        self._file = PartialFile(path, OPTION)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "decoder": decoder,
            "options": {key: value for key, value in options.items() if key != "decoder"},
            "source_symbols": list(source.symbols),
            "target_symbols": list(target.symbols),
        }
        self._file.write(_json(header))

    def iteration(
        self,
        sentences: Sequence[int],
        draft: Draft,
        verification: Verification,
        choice: Tensor,
        accepted: Tensor,
        gained: Sequence[int],
    ) -> None:
        """Note one iteration of a batch.

        Args:
            sentences: for each of the B rows, which sentence of the batch it is.
            draft: what was drafted, K columns.
            verification: the verifier's scores, T columns (K + 1, or K where no verifier runs).
            choice: [B, T], its best tokens.
            accepted: [B], length of the accepted prefix, tokens behind an EOS included.
            gained: for each row, how many tokens its sentence gained.
        """
        drafted_columns, extra = draft.tokens.size(1), choice.size(1) - draft.tokens.size(1)
        drafted = torch.cat([draft.tokens, choice[:, drafted_columns:]], dim=1)
        widths = [drafted_columns] * len(gained) if draft.widths is None else draft.widths.tolist()
        if extra == 0:
            # Without a verifier the last drafted token takes the place of its own, unless the length limit forbids it.
            accepted = accepted + (draft.tokens[:, -1] == choice[:, -1])
        rows = zip(
            sentences,
            drafted.tolist(),
            verification.log_probs(drafted).tolist(),
            choice.tolist(),
            verification.log_probs(choice).tolist(),
            widths,
            torch.minimum(accepted, accepted.new_tensor(gained)).tolist(),
            gained,
            strict=True,
        )
        for sentence, tokens, token_scores, best, best_scores, width, kept, count in rows:
            self._notes.setdefault(sentence, []).append(
                Iteration(
                    draft=tokens[:width],
                    draft_scores=_rounded(token_scores[:width]),
                    choice=best[: width + extra],
                    choice_scores=_rounded(best_scores[: width + extra]),
                    accepted=kept,
                    bifurcation=kept if kept < min(count, width) else None,
                    why=[*map(self._why, tokens[:kept], best[:kept]), *[self._own] * (count - kept)],
                )
            )

    def _why(self, drafted: int, best: int) -> str:
        if drafted == best or self.decoder == "nat":
            return AGREED.get(self.decoder, TOP_1)
        return TOP_BETA if self.decoder == "gad++" else RELAXED

    def write(self, sample: dict[str, Any], hypotheses: list[list[dict[str, Tensor]]], has_prefix: bool) -> None:
        """Write a decoded batch, with the notes taken on the way.

        Args:
            sample: the fairseq batch. Without ids, as in fairseq-interactive, sentences are numbered as they come.
            hypotheses: what the generator returns.
            has_prefix: the first draft was given by `--prefix-size`.
        """
        source_pad, target_pad = self._pads
        sources = sample["net_input"]["src_tokens"].tolist()
        size = len(sources)
        ids = sample["id"].tolist() if "id" in sample else range(self._written, self._written + size)
        targets = [None] * size if sample.get("target") is None else sample["target"].tolist()
        for row, (number, source, target) in enumerate(zip(ids, sources, targets, strict=True)):
            best = hypotheses[row][0]
            iterations = self._notes.pop(row)
            if has_prefix:
                iterations[0].why[: iterations[0].accepted] = [GIVEN] * iterations[0].accepted
            sentence = TracedSentence(
                id=number,
                source=[token for token in source if token != source_pad],
                target=None if target is None else [token for token in target if token != target_pad],
                output=best["tokens"].tolist(),
                scores=_rounded(best["positional_scores"].tolist()),
                iterations=iterations,
            )
            if self.decoder == "iad" and self._has_fallback:
                _tell_copies_from_guesses(sentence)
            self._file.write(_json({**vars(sentence), "iterations": [vars(note) for note in iterations]}))
        self._written += size

    def close(self) -> None:
        """End the file and give it its name, unless the run broke off."""
        self._file.close()


def _tell_copies_from_guesses(sentence: TracedSentence) -> None:
    """Where another drafter helps out, only drafts that stand in source or output are copies."""
    done = 0
    for note in sentence.iterations:
        texts = sentence.source, sentence.output[:done]
        if not any(_contains(text, note.draft) for text in texts):
            note.why = [TOP_1 if reason == AGREED["iad"] else reason for reason in note.why]
        done += len(note.why)


def _contains(text: list[int], part: list[int]) -> bool:
    return any(text[start : start + len(part)] == part for start in range(len(text) - len(part) + 1))


def _rounded(scores: list[float]) -> list[float | None]:
    return [round(score, 4) if math.isfinite(score) else None for score in scores]


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


# ------------------------------------------------------------------------------------------------------ reading


def count_sentences(path: str) -> tuple[int, int]:
    """How many sentences a trace has, and how many bytes they take, without looking at them."""
    lines = [len(line) for _, line in _lines(path)]
    return len(lines) - 1, sum(lines[1:])


def read_trace(path: str) -> Trace:
    """Read a trace and check that it is whole.

    Raises:
        ConfigurationError: naming file, line and remedy, for a file that is missing, truncated or not a trace.
    """
    trace, sentences = stream_trace(path)
    trace.sentences = list(sentences)
    return trace


def stream_trace(path: str, wanted: Callable[[int], bool] | None = None) -> tuple[Trace, Iterator[TracedSentence]]:
    """Read the header of a trace, and its sentences one by one as they are asked for.

    Args:
        path: what `--trace-file` wrote.
        wanted: says of the n-th sentence of the file (from 0) whether to read it; None for all.

    Raises:
        ConfigurationError: as for `read_trace`, also while sentences are asked for.
    """
    lines = _lines(path)
    trace = _header(path, next(lines, (1, b""))[1])

    def sentences() -> Iterator[TracedSentence]:
        for number, line in lines:
            if wanted is not None and not wanted(number - 2):
                continue
            try:
                yield _sentence(json.loads(line), trace)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise _unreadable(path, number, "not a sentence of a trace", error) from error

    return trace, sentences()


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and bytes of every line; the last one must be whole."""
    number = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):  # noqa: B007
                if not line.endswith(b"\n"):
                    raise _unreadable(path, number, "breaks off in the middle")
                yield number, line
    except OSError as error:
        hint = f"give a file that {OPTION} wrote"
        if Path(f"{path}.partial").exists():
            hint += f"; the run that wrote {path}.partial did not end well, decode again"
        raise ConfigurationError(f"{path}: cannot be read ({error.strerror}); {hint}") from error


def _header(path: str, line: bytes) -> Trace:
    try:
        header = json.loads(line)
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}")
        version = header["version"]
        if version == VERSION:
            symbols = header["source_symbols"], header["target_symbols"]
            if not all(isinstance(symbol, str) for side in symbols for symbol in side):
                raise ValueError("symbols are not text")
            return Trace(str(header["decoder"]), dict(header["options"]), *symbols)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _unreadable(path, 1, "not the header of a trace", error) from error
    raise ConfigurationError(
        f"{path}, line 1: a trace of version {version}, read is version {VERSION}; decode again with {OPTION}"
    )


def _sentence(record: dict[str, Any], trace: Trace) -> TracedSentence:
    """Make the sentence of a line; errors of any kind mean that it is none."""
    iterations = [Iteration(**note) for note in record["iterations"]]
    sentence = TracedSentence(**{**record, "iterations": iterations})
    _require(isinstance(sentence.id, int), "id is not a number")
    source_size, target_size = len(trace.source_symbols), len(trace.target_symbols)
    _require_tokens(sentence.source, source_size, "source")
    _require_tokens(sentence.target or [], target_size, "target")
    _require_tokens(sentence.output, target_size, "output")
    _require(len(sentence.scores) == len(sentence.output), "scores do not fit the output")
    _require(sum(len(note.why) for note in iterations) == len(sentence.output), "iterations do not fit the output")
    for note in iterations:
        _require_tokens(note.draft, target_size, "draft")
        _require_tokens(note.choice, target_size, "choice")
        _require(len(note.draft) == len(note.draft_scores), "scores do not fit the draft")
        _require(len(note.choice) == len(note.choice_scores), "scores do not fit the choice")
        _require(0 <= len(note.choice) - len(note.draft) <= 1, "choice does not fit the draft")
        _require(0 <= note.accepted <= min(len(note.draft), len(note.why)), "accepted is out of range")
        _require(len(note.why) <= len(note.choice), "more tokens than were chosen")
        _require(bool(note.why), "an iteration without a token")
        _require(note.bifurcation in (None, note.accepted), "bifurcation is not behind the accepted tokens")
        _require(REASONS.issuperset(note.why), "unknown reason")
    return sentence


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _require_tokens(tokens: list[int], size: int, name: str) -> None:
    _require(
        isinstance(tokens, list) and all(type(token) is int for token in tokens), f"{name} is not a list of tokens"
    )
    _require(not tokens or (min(tokens) >= 0 and max(tokens) < size), f"{name} has a token without a symbol")


def _unreadable(path: str, line: int, what: str, error: Exception | None = None) -> ConfigurationError:
    reason = ""
    if error is not None:
        reason = f" (no {error})" if isinstance(error, KeyError) else f" ({error})"
    return ConfigurationError(f"{path}, line {line}: {what}{reason}; copy it again or decode again with {OPTION}")

"""What happened in decoding, token by token: `--trace-file` writes it, `read_trace` reads it.

A trace is a text file of JSON lines. The first is the header: format, version, decoder, its options and the symbols of
both dictionaries. Every other line is a sentence, see `TracedSentence`; tokens are indices into these symbols.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.decoding.method import GIVEN, TOP_1, VERIFIER, MethodSpec
from fairseq_plugins.decoding.methods import DECODERS, METHODS
from fairseq_plugins.decoding.partial_file import PartialFile
from fairseq_plugins.decoding.search import Search
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, Verification
from fairseq_plugins.errors import ConfigurationError

FORMAT = "spec-dec-trace"
VERSION = 3
OPTION = "--trace-file"

# Every reason that a token of any method may have.
REASONS = set[str]().union(*(spec.reasons for spec in METHODS))
# Those of drafted tokens that are not the verifier's best.
RELAXED_REASONS = {spec.relaxed for spec in METHODS if spec.runs_verifier}


@dataclass
class Iteration:
    """One draft and its verification.

    Attributes:
        draft: the drafted tokens, K of them.
        draft_log_probs: the verifier's, of each; None where fairseq's settings forbid the token.
        verifier: the verifier's best token at each of these positions and at the one after them, K + 1 (K where no
            verifier runs).
        verifier_log_probs: of each.
        accepted: how many of the drafted tokens went into the output.
        bifurcation: index in `draft` of the first rejected token, None when all that was looked at was accepted.
        why: for each emitted token the reason: one of `REASONS`.
        drafter_log_probs: the drafter's own, of each drafted token given those before it; None as a whole where no
            trained drafter says them, and of a token where they are too small for a number.
    """

    draft: list[int]
    draft_log_probs: list[float | None]
    verifier: list[int]
    verifier_log_probs: list[float | None]
    accepted: int
    bifurcation: int | None
    why: list[str]
    drafter_log_probs: list[float | None] | None

    @property
    def relaxed(self) -> list[bool]:
        """For each emitted token: was it drafted and not the verifier's best?"""
        return [reason in RELAXED_REASONS for reason in self.why]


@dataclass
class TracedSentence:
    """One decoded sentence; token lists end with EOS.

    Attributes:
        id: its number in the data set.
        source: source tokens.
        target: tokens of the reference, None where the data has none.
        output: output tokens.
        log_probs: of each output token.
        iterations: what was drafted and verified, in order.
    """

    id: int
    source: list[int]
    target: list[int] | None
    output: list[int]
    log_probs: list[float | None]
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


def check_traceable(file: str, spec: MethodSpec, scores_reference: bool, is_one_run: bool) -> None:
    """Refuse `--trace-file` where there is nothing to trace, or no single run to trace.

    Raises:
        ConfigurationError: naming option, value and remedy.
    """
    if scores_reference:
        raise ConfigurationError(f"{OPTION} {file}: --score-reference decodes nothing; leave one of them out")
    if not is_one_run:
        raise ConfigurationError(f"{OPTION} {file}: holds one run; use it with fairseq-generate or fairseq-interactive")
    if spec.build is None or spec.searches_beams:
        raise ConfigurationError(f"{OPTION} {file}: --decoder {spec.name} drafts nothing to look at; add --decoder gad")


class Tracer(Protocol):
    """Takes notes while a generator decodes."""

    def iteration(self, sentences: Sequence[int], advance: Advance) -> None:
        """Note one iteration of a batch.

        Args:
            sentences: for each of the B rows, which sentence of the batch it is.
            advance: what the iteration added, with the draft and the verification that it came from.
        """

    def write(self, sample: dict[str, Any], hypotheses: list[list[dict[str, Tensor]]], has_prefix: bool) -> None:
        """End a batch.

        Args:
            sample: the fairseq batch. Without ids, as in fairseq-interactive, sentences are numbered as they come.
            hypotheses: what the generator returns.
            has_prefix: the first draft was given by `--prefix-size`.
        """


class TraceWriter:
    """Takes notes while a generator decodes, and writes a line for every sentence.

    Args:
        path: where to write. The file appears under that name when the run has ended well, until then and after an
            interruption with `.partial` after it.
        source: source dictionary.
        target: target dictionary.
        spec: the method.
        settings: its options, for the header.

    Raises:
        ConfigurationError: when the file cannot be written.
    """

    def __init__(
        self, path: str, source: Dictionary, target: Dictionary, spec: MethodSpec, settings: dict[str, Any]
    ) -> None:
        self._spec = spec
        self._own = VERIFIER if spec.runs_verifier else spec.agreed
        self._pads = source.pad(), target.pad()
        self._written = 0
        self._notes: dict[int, list[Iteration]] = {}
        self._file = PartialFile(path, OPTION)
        header = {
            "format": FORMAT,
            "version": VERSION,
            "decoder": spec.name,
            "options": settings,
            "source_symbols": list(source.symbols),
            "target_symbols": list(target.symbols),
        }
        self._file.write(_json(header))

    def iteration(self, sentences: Sequence[int], advance: Advance) -> None:
        """As `Tracer.iteration`."""
        draft, verification, emitted = advance.draft, advance.verification, advance.host_emitted
        best = verification.best
        drafted_columns, extra = draft.tokens.size(1), best.size(1) - draft.tokens.size(1)
        drafted = torch.cat([draft.tokens, best[:, drafted_columns:]], dim=1)
        widths = [drafted_columns] * len(emitted) if draft.num_drafted is None else draft.num_drafted.tolist()
        guessed = [False] * len(emitted) if draft.from_fallback is None else draft.from_fallback.tolist()
        said = [None] * len(emitted) if draft.survival is None else _conditional(draft.survival).tolist()
        accepted = advance.num_accepted
        if extra == 0:
            # Without a verifier the last emitted token was drafted, too, unless fairseq's constraints forbid that one.
            last = (advance.num_emitted - 1).clamp(min=0)[:, None]
            was_drafted = draft.tokens.gather(1, last) == advance.tokens.gather(1, last)
            accepted = torch.minimum(accepted + was_drafted[:, 0], advance.num_emitted)
        rows = zip(
            sentences,
            drafted.tolist(),
            verification.log_probs_of(drafted).tolist(),
            best.tolist(),
            verification.log_probs_of(best).tolist(),
            widths,
            accepted.tolist(),
            emitted,
            guessed,
            said,
            strict=True,
        )
        for sentence, tokens, token_scores, own, own_scores, width, kept, count, is_guess, its_scores in rows:
            if count == 0:
                continue  # it had ended before
            agreed = TOP_1 if is_guess else self._spec.agreed
            why = [agreed if token == right else self._spec.relaxed for token, right in zip(tokens, own, strict=True)]
            self._notes.setdefault(sentence, []).append(
                Iteration(
                    draft=tokens[:width],
                    draft_log_probs=_rounded(token_scores[:width]),
                    verifier=own[: width + extra],
                    verifier_log_probs=_rounded(own_scores[: width + extra]),
                    accepted=kept,
                    bifurcation=kept if kept < min(count, width) else None,
                    why=[*why[:kept], *[self._own] * (count - kept)],
                    drafter_log_probs=None if its_scores is None else _rounded(its_scores[:width]),
                )
            )

    def write(self, sample: dict[str, Any], hypotheses: list[list[dict[str, Tensor]]], has_prefix: bool) -> None:
        """Write a decoded batch, with the notes taken on the way; as `Tracer.write`."""
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
                log_probs=_rounded(best["positional_scores"].tolist()),
                iterations=iterations,
            )
            self._file.write(_json({**vars(sentence), "iterations": [vars(note) for note in iterations]}))
        self._written += size

    def close(self) -> None:
        """End the file and give it its name, unless the run broke off."""
        self._file.close()


class TracedSearch:
    """A search whose every advance is noted.

    Args:
        search: decides.
        trace: takes the notes.
    """

    def __init__(self, search: Search, trace: Tracer) -> None:
        self.search = search
        self.trace = trace

    def advance(self, state: DecodingState, draft: Draft, verification: Verification) -> Advance:
        """What the search says."""
        advance = self.search.advance(state, draft, verification)
        assert isinstance(advance, Advance), "beam search is not traced"
        self.trace.iteration(state.sentences, advance)
        return advance


def _conditional(survival: Tensor) -> Tensor:
    """Log-probabilities [B, K] of tokens given those before them, of `Draft.survival` [B, K]."""
    together = survival.double().log()
    return together.diff(dim=1, prepend=together.new_zeros(len(together), 1))


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
            if header["decoder"] not in DECODERS:
                raise ValueError(f"unknown decoder {header['decoder']}")
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
    _require(len(sentence.log_probs) == len(sentence.output), "log-probabilities do not fit the output")
    _require(sum(len(note.why) for note in iterations) == len(sentence.output), "iterations do not fit the output")
    for note in iterations:
        _require_tokens(note.draft, target_size, "draft")
        _require_tokens(note.verifier, target_size, "verifier")
        _require(len(note.draft) == len(note.draft_log_probs), "log-probabilities do not fit the draft")
        _require(len(note.verifier) == len(note.verifier_log_probs), "log-probabilities do not fit the verifier")
        said = note.drafter_log_probs
        _require(said is None or len(said) == len(note.draft), "the drafter's log-probabilities do not fit the draft")
        numbers = all(score is None or isinstance(score, int | float) for score in said or [])
        _require(numbers, "the drafter's log-probabilities are not numbers")
        _require(0 <= len(note.verifier) - len(note.draft) <= 1, "verifier does not fit the draft")
        _require(0 <= note.accepted <= min(len(note.draft), len(note.why)), "accepted is out of range")
        _require(len(note.why) <= len(note.verifier), "more tokens than the verifier has")
        _require(bool(note.why), "an iteration without a token")
        _require(note.bifurcation in (None, note.accepted), "bifurcation is not after the accepted tokens")
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

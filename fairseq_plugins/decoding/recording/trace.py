"""Define and read the format of traces; trace_writer.py writes them.

A trace is a file of JSON lines. The first is the header: format, version, decoder, its options and the symbols of both
dictionaries. Every other line is a sentence (`TracedSentence`); tokens are indices into these symbols.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_plugins.decoding.methods import DECODERS, METHODS
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.typed_values import parse_json

FORMAT = "spec-dec-trace"
VERSION = 3
OPTION = "--trace-file"

# Reasons of tokens, of all methods.
REASONS = set[str]().union(*(spec.reasons for spec in METHODS))


@dataclass
class Iteration:
    """One draft and its verification; a log-probability of None is minus infinity."""

    draft: list[int]  # the drafted tokens, K of them
    draft_log_probs: list[float | None]  # the verifier's, of each drafted token
    verifier: list[int]  # the verifier tokens there and after the draft, K + 1 of them (K without a verifier)
    verifier_log_probs: list[float | None]  # of each verifier token
    accepted: int  # number of accepted tokens
    bifurcation: int | None  # index in `draft` of the first rejected token, None if no verified token was rejected
    why: list[str]  # reason for each emitted token, one of `REASONS`
    # The drafter's, of each drafted token given those before it; None as a whole without a trained drafter.
    drafter_log_probs: list[float | None] | None


@dataclass
class TracedSentence:
    """One decoded sentence; token lists end with EOS."""

    id: int  # its number in the data set
    source: list[int]
    target: list[int] | None  # the reference, None without one
    output: list[int]
    log_probs: list[float | None]  # of each output token
    iterations: list[Iteration]


@dataclass
class Trace:
    """The fields of a trace's header, and its sentences."""

    decoder: str
    options: dict[str, Any]
    source_symbols: list[str]
    target_symbols: list[str]
    sentences: list[TracedSentence] = field(default_factory=list)


def read_trace(path: str) -> Trace:
    """Read a trace; raise ConfigurationError for a file that is missing, truncated or not a trace."""
    trace, sentences = stream_trace(path)
    trace.sentences = list(sentences)
    return trace


def stream_trace(path: str) -> tuple[Trace, Iterator[TracedSentence]]:
    """Read the header of a trace, and lazily its sentences.

    Raises ConfigurationError as `read_trace` does, also during iteration.
    """
    lines = _lines(path)
    trace = _header(path, next(lines, (1, b""))[1])

    def sentences() -> Iterator[TracedSentence]:
        for number, line in lines:
            try:
                yield parse_json(line, TracedSentence)
            except ValueError as error:
                raise _unreadable(path, number, "not a sentence of a trace", error) from error

    return trace, sentences()


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield number, from 1, and bytes of every line; the last one must be complete."""
    number = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):  # noqa: B007
                if not line.endswith(b"\n"):
                    raise _unreadable(path, number, "is truncated")
                yield number, line
    except OSError as error:
        hint = f"give a file that {{{OPTION}}} wrote"
        if Path(f"{path}.partial").exists():
            hint += f"; the run that wrote {path}.partial was interrupted or failed, decode again"
        raise ConfigurationError(None, path, f"cannot be read ({error.strerror})", hint) from error


def _header(path: str, line: bytes) -> Trace:
    try:
        header: dict[str, Any] = parse_json(line, dict[str, Any])
        if header.get("format") != FORMAT:
            raise ValueError(f"format {header.get('format')}")
        version = header.get("version")
        if version == VERSION:
            trace: Trace = parse_json(line, Trace)
            if trace.decoder not in DECODERS:
                raise ValueError(f"unknown decoder {trace.decoder}")
            return trace
    except ValueError as error:
        raise _unreadable(path, 1, "not the header of a trace", error) from error
    problem = f"a trace of version {version}, but only version {VERSION} can be read"
    raise ConfigurationError(None, f"{path}, line 1", problem, f"decode again with {{{OPTION}}}")


def _unreadable(path: str, line: int, what: str, error: Exception | None = None) -> ConfigurationError:
    reason = "" if error is None else f" ({error})"
    return ConfigurationError(
        None, f"{path}, line {line}", what + reason, f"copy it again or decode again with {{{OPTION}}}"
    )

"""Write what happened in decoding, token by token: `--trace-file`. The format is that of trace.py."""

import json
import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.decoding.method import GIVEN, TOP_1, VERIFIER, MethodSpec
from fairseq_plugins.decoding.partial_file import PartialFile
from fairseq_plugins.decoding.search import Search
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, Verification
from fairseq_plugins.decoding.trace import FORMAT, OPTION, VERSION, Iteration, TracedSentence
from fairseq_plugins.errors import ConfigurationError


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
        self._own = VERIFIER if spec.runs_verifier else spec.accept_reason
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
            agreed = TOP_1 if is_guess else self._spec.accept_reason
            why = [
                agreed if token == right else self._spec.relaxed_reason
                for token, right in zip(tokens, own, strict=True)
            ]
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

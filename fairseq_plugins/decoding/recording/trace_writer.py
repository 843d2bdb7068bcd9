"""Write `--trace-file`: every draft and verification, in the format of trace.py."""

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.decoding.method import GIVEN, TOP_1, VERIFIER, MethodSpec
from fairseq_plugins.decoding.recording.trace import FORMAT, OPTION, VERSION, Iteration, Trace, TracedSentence
from fairseq_plugins.decoding.reference.state import Advance
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.partial_file import PartialFile


def check_traceable(file: str, spec: MethodSpec, scores_reference: bool, is_one_run: bool) -> None:
    """Raise ConfigurationError for methods without drafts, and for commands that decode several times."""
    if scores_reference:
        raise ConfigurationError(OPTION, file, "{--score-reference} decodes nothing", "leave one of them out")
    if not is_one_run:
        raise ConfigurationError(OPTION, file, "holds one run", "use it with fairseq-generate or fairseq-interactive")
    if spec.build is None or spec.searches_beams:
        raise ConfigurationError(OPTION, file, f"{{--decoder {spec.name}}} does not draft", "add {--decoder gad}")


class TraceWriter:
    """Record the iterations of a generator, and write a line for every sentence to a `PartialFile`.

    The header has the `settings`, options of the method.
    """

    def __init__(
        self, path: str, source: Dictionary, target: Dictionary, spec: MethodSpec, settings: dict[str, Any]
    ) -> None:
        self._spec = spec
        self._own = VERIFIER if spec.runs_verifier else spec.accept_reason
        self._pads = source.pad(), target.pad()
        self._written = 0
        self._iterations: dict[int, list[Iteration]] = {}
        self._file = PartialFile(path, OPTION)
        # JSON has no infinite numbers, such as that of --tau inf.
        settings = {name: str(value) if value == math.inf else value for name, value in settings.items()}
        trace = Trace(spec.name, settings, source.symbols, target.symbols)
        header = {name: value for name, value in vars(trace).items() if name != "sentences"}
        self._file.write(_json({"format": FORMAT, "version": VERSION, **header}))

    def iteration(self, sentences: Sequence[int], advance: Advance) -> None:
        """Record an iteration; `sentences` are the indices in the batch of the rows' sentences."""
        draft, verification, emitted = advance.draft, advance.verification, advance.host_emitted
        best = verification.best
        drafted_columns, extra = draft.tokens.size(1), best.size(1) - draft.tokens.size(1)
        drafted = torch.cat([draft.tokens, best[:, drafted_columns:]], dim=1)
        fallback = [False] * len(emitted) if draft.from_fallback is None else draft.from_fallback.tolist()
        drafter_scores = [None] * len(emitted) if draft.survival is None else _conditional(draft.survival).tolist()
        accepted = advance.num_accepted
        if extra == 0:
            # Without a verifier the last emitted token was drafted, too, unless fairseq's constraints forbade it.
            last = (advance.num_emitted - 1).clamp(min=0)[:, None]
            was_drafted = draft.tokens.gather(1, last) == advance.tokens.gather(1, last)
            accepted = torch.minimum(accepted + was_drafted[:, 0], advance.num_emitted)
        rows = zip(
            sentences,
            drafted.tolist(),
            verification.log_probs_of(drafted).tolist(),
            best.tolist(),
            verification.log_probs_of(best).tolist(),
            draft.counts().tolist(),
            accepted.tolist(),
            emitted,
            fallback,
            drafter_scores,
            strict=True,
        )
        for sentence, tokens, token_scores, own, own_scores, width, kept, count, is_fallback, its_scores in rows:
            if count == 0:
                continue  # the sentence had already ended
            reason, relaxed = TOP_1 if is_fallback else self._spec.accept_reason, self._spec.relaxed_reason
            why = [reason if token == best_token else relaxed for token, best_token in zip(tokens, own, strict=True)]
            self._iterations.setdefault(sentence, []).append(
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
        """Write a decoded batch; sentences without ids, as in fairseq-interactive, are numbered in order.

        `has_prefix`: the first draft is the given prefix of `--prefix-size`.
        """
        source_pad, target_pad = self._pads
        sources = sample["net_input"]["src_tokens"].tolist()
        size = len(sources)
        ids = sample["id"].tolist() if "id" in sample else range(self._written, self._written + size)
        targets = [None] * size if sample.get("target") is None else sample["target"].tolist()
        for row, (number, source, target) in enumerate(zip(ids, sources, targets, strict=True)):
            best = hypotheses[row][0]
            iterations = self._iterations.pop(row)
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
        """Close the file and give it its final name, unless the run was interrupted."""
        self._file.close()


def _conditional(survival: Tensor) -> Tensor:
    """Return log-probabilities [B, K] of tokens given those before them, from `Draft.survival` [B, K]."""
    joint = survival.double().log()
    return joint.diff(dim=1, prepend=joint.new_zeros(len(joint), 1))


def _rounded(scores: list[float]) -> list[float | None]:
    return [round(score, 4) if math.isfinite(score) else None for score in scores]


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"

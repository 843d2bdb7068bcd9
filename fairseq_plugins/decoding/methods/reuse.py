"""Reuse: the drafts are texts that users bring, such as an earlier translation of the same source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.method import Method, MethodContext, MethodOptions, MethodSpec, NativeMethod, option
from fairseq_plugins.decoding.search import GreedySearch
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.decoding.suffix_match import continuation, suffix_match
from fairseq_plugins.decoding.verifier import Verifier
from fairseq_plugins.errors import ConfigurationError

DEFAULT_WIDTH = 32
"""The most tokens of a draft, where no option says it."""

# As in csrc/drafters/reuse.cpp: a common suffix counts up to MAX_MATCH tokens, each of which outweighs a shift by
# WORTH positions.
MAX_MATCH, WORTH = 4, 8


class ReuseDrafter:
    """Copy the drafts of a batch, `sample["drafts"]`, each from the position where the output is in it.

    At first that is the beginning. Later it is the position with the best score, 8 for every token of the common suffix
    of output and draft, less the distance from where the last copy would be had every token been replaced by another.
    Of several drafts the one with the best score is copied. After an insertion or deletion a match finds the way back.

    Args:
        target: dictionary of the outputs.
        width: the most tokens of a draft.
    """

    def __init__(self, target: Dictionary, width: int) -> None:
        self.target, self.width = target, width
        self.texts = torch.empty(0, 0, 0, dtype=torch.long)  # [B, M, N], begin and end marked by -1
        self.ends = torch.empty(0, 0, dtype=torch.long)  # [B, M], tokens of each draft before its position
        self.lengths = torch.empty(0, dtype=torch.long)  # [B], of the outputs when the positions were found

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        source = sample["net_input"]["src_tokens"]
        drafts = drafts_of(sample, self.target)
        most = max(1, *map(len, drafts))
        longest = max([len(draft) for some in drafts for draft in some], default=0)
        texts = torch.full((len(drafts), most, longest + 2), -1)
        for row, some in enumerate(drafts):
            for number, draft in enumerate(some):
                texts[row, number, 1 : len(draft) + 1] = torch.tensor(draft)
        self.texts = texts.to(source.device)
        self.ends = self.texts.new_zeros(len(drafts), most)
        self.lengths = self.texts.new_zeros(len(drafts))

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        texts, ends, lengths = self.texts, self.ends, self.lengths
        self.start(sample, encoder_out)
        most, longest = (max(texts.size(dim), self.texts.size(dim)) for dim in (1, 2))
        self.texts = torch.cat(
            [F.pad(some, (0, longest - some.size(2), 0, most - some.size(1)), value=-1) for some in (texts, self.texts)]
        )
        self.ends = torch.cat([F.pad(some, (0, most - some.size(1))) for some in (ends, self.ends)])
        self.lengths = torch.cat([lengths, self.lengths])

    def draft(self, state: DecodingState) -> Draft:
        width = min(self.width, state.max_len - state.span.shortest)
        if width <= 0:
            return no_draft(state)
        batch, most, size = self.texts.shape
        text = self.texts.flatten(1)
        output = state.tokens[:, : state.span.longest + 1].clone()
        output[:, 0] = -1
        match = suffix_match(text, output, state.lengths, MAX_MATCH).view(batch, most, size)
        expected = self.ends + (state.lengths - self.lengths)[:, None]
        distance = (torch.arange(size, device=text.device) - expected[:, :, None]).abs()
        is_last = F.pad(self.texts[:, :, 1:], (0, 1), value=-1) < 0
        score, ends = (WORTH * match - distance).masked_fill(is_last, -1).max(2)
        self.ends, self.lengths = torch.where(score >= 0, ends, expected), state.lengths.clone()
        best, number = score.max(1)
        position = number * size + ends.gather(1, number[:, None])[:, 0]
        return Draft(*continuation(text, position, best >= 0, width))

    def observe(self, advance: Advance) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        self.texts, self.ends, self.lengths = self.texts[rows], self.ends[rows], self.lengths[rows]


def drafts_of(sample: Mapping[str, Any], target: Dictionary) -> list[list[list[int]]]:
    """Return the drafts of every sentence of a batch, each up to its EOS; empty ones are left out.

    Args:
        sample: a fairseq batch; `sample["drafts"]` are token ids of every draft of every sentence.
        target: dictionary of the outputs.

    Raises:
        ConfigurationError: for ids that the dictionary lacks.
    """
    eos = target.eos()
    given: Sequence[Sequence[Sequence[int]]] | None = sample.get("drafts")
    if given is None:
        return [[] for _ in range(len(sample["net_input"]["src_tokens"]))]
    found = []
    for some in given:
        cut = [list(draft[: draft.index(eos)] if eos in draft else draft) for draft in some]
        found.append([[*draft, eos] for draft in cut if draft])
        for draft in found[-1]:
            for token in draft:
                if not 0 <= token < len(target):
                    raise ConfigurationError(f"drafts: token {token} is not in the dictionary of {len(target)} symbols")
    return found


@dataclass(frozen=True)
class ReuseOptions(MethodOptions):
    """Options of `reuse`."""

    block_size: Optional[int] = option(None)
    drafts: Optional[str] = option(
        None,
        "drafts of the sentences of --gen-subset, a line for each, cut into subwords as the target is; several files "
        "with colons between them are several drafts; an empty line is no draft",
    )
    fixed_width: bool = option(
        False, "verify all tokens that are copied; without it, on a CPU, only those that pay (the output is the same)"
    )


def _check(options: ReuseOptions) -> None:
    for path in () if options.drafts is None else str(options.drafts).split(":"):
        if not Path(path).is_file():
            raise ConfigurationError(f"--drafts {path}: no such file; give a draft a line")


def _build(context: MethodContext, options: ReuseOptions) -> Method:
    drafter = ReuseDrafter(context.target, options.block_size or DEFAULT_WIDTH)
    return Method(Verifier(context.models, context.engine, context.temperature), drafter, GreedySearch())


def _build_native(context: MethodContext, options: ReuseOptions) -> NativeMethod:
    module, width = context.native_weights.module, options.block_size or DEFAULT_WIDTH
    drafter = module.ReuseDrafter(width)
    return NativeMethod(
        context.native_weights,
        drafter,
        policy=None if options.fixed_width else module.Policy(width),
        on_batch=lambda sample: drafter.take(drafts_of(sample, context.target)),
    )


METHODS = [
    MethodSpec(
        name="reuse",
        summary="copy drafts that users bring, such as an earlier translation, the output of --beam 1",
        drafts="copy of drafts that users bring, from where the output is in them",
        accepts="exact top-1",
        paper="this project",
        options=ReuseOptions,
        check=_check,
        build=_build,
        build_native=_build_native,
        accept_reason="reused draft",
        rows={},
        order=40,
    )
]

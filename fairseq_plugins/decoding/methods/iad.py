"""Input-guided aggressive decoding: the draft is the rest of the source, for tasks that rewrite their input."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from fairseq_plugins.decoding.drafters import Drafter
from fairseq_plugins.decoding.drafters.trained import (
    TrainedDrafterOptions,
    check_draft_vocabulary,
    check_drafter,
    feature_layers,
    native_drafter,
    trained_drafter,
)
from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.engine.rows import cat_padded
from fairseq_plugins.decoding.method import Method, MethodContext, MethodSpec, NativeMethod, option
from fairseq_plugins.decoding.search import GreedySearch
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.decoding.suffix_match import MAX_MATCH, continuation, latest_match, suffix_match, unique_match
from fairseq_plugins.decoding.verifier import Verifier
from fairseq_plugins.errors import ConfigurationError

_BEGIN = 1 << 40  # stands for the beginning of source and output, which no dictionary symbol equals


class SourceCopyDrafter:
    """Copy the source after the position that a suffix of the output matches uniquely (Aggressive Decoding, Alg. 1).

    The first draft is the whole source, as if the beginnings of both matched. Where nothing matches, nothing is
    drafted and decoding goes on one token at a time.

    Args:
        pad: padding symbol.
        recent: beyond the paper: look in the source and the output so far, and follow the most recent of the longest
            matches instead of a unique one.
        fallback: beyond the paper: who drafts where nothing matches.
    """

    def __init__(self, pad: int, recent: bool = False, fallback: Drafter | None = None) -> None:
        self.pad = pad
        self.recent = recent
        self.fallback = fallback
        self.source = torch.empty(0, 0, dtype=torch.long)

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.source = self._text(sample["net_input"]["src_tokens"])
        if self.fallback is not None:
            self.fallback.start(sample, encoder_out)

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.source = cat_padded(self.source, self._text(sample["net_input"]["src_tokens"]), dim=1, value=-1)
        if self.fallback is not None:
            self.fallback.append_rows(sample, encoder_out)

    def draft(self, state: DecodingState) -> Draft:
        width = state.max_len - state.span.shortest
        if width <= 0:
            return no_draft(state)
        output = state.tokens[:, : state.span.longest + 1].clone()
        output[:, 0] = _BEGIN
        text = self.source
        if self.recent:
            # Without its beginning, which ends what can be copied, and its last token, which would match itself.
            column = torch.arange(output.size(1), device=output.device)
            outside = (column == 0) | (column >= state.lengths[:, None])
            text = torch.cat([text, output.masked_fill(outside, -1)], dim=1)
        match = suffix_match(text, output, state.lengths)
        end, found = latest_match(match) if self.recent else unique_match(match)
        tokens, num_copied = continuation(text, end, found, width)
        if self.fallback is None:
            return Draft(tokens, num_copied)
        return self._filled_up(tokens, num_copied, self.fallback.draft(state))

    def observe(self, advance: Advance) -> None:
        if self.fallback is not None:
            self.fallback.observe(advance)

    def select_rows(self, rows: Tensor) -> None:
        self.source = self.source.index_select(0, rows)
        if self.fallback is not None:
            self.fallback.select_rows(rows)

    def _text(self, source: Tensor) -> Tensor:
        """Padding to the right, the beginning in front: column 0 matches the beginning of the output only."""
        real = source != self.pad
        if not bool(real.all()):
            order = torch.argsort(~real, dim=1, stable=True)
            source = source.masked_fill(~real, -1).gather(1, order)
        return torch.cat([source.new_full((source.size(0), 1), _BEGIN), source], dim=1)

    def _filled_up(self, tokens: Tensor, num_copied: Tensor, other: Draft) -> Draft:
        """The fallback's draft where nothing was copied."""
        width = max(tokens.size(1), other.tokens.size(1))
        copied = F.pad(tokens, (0, width - tokens.size(1)))
        drafted = F.pad(other.tokens, (0, width - other.tokens.size(1)))
        nothing = num_copied == 0
        num_other = other.num_drafted
        if num_other is None:
            num_other = torch.full_like(num_copied, other.tokens.size(1))
        chosen = torch.where(nothing[:, None], drafted, copied)
        return Draft(chosen, torch.where(nothing, num_other, num_copied), from_fallback=nothing)


@dataclass(frozen=True)
class SourceCopyOptions(TrainedDrafterOptions):
    """Options of `iad`, and of the drafter that helps out."""

    iad_fallback: ChoiceEnum(["none", "gad"]) = option(  # type: ignore[valid-type]
        "none", "who drafts where no suffix matches; gad = the model of --drafter-path"
    )
    iad_lookup: ChoiceEnum(["unique", "recent"]) = option(  # type: ignore[valid-type]
        "unique",
        "unique = copy after a suffix match that stands once in the source (Algorithm 1); recent = after the most "
        "recent of the longest matches in source and output",
    )


def _has_fallback(options: SourceCopyOptions) -> bool:
    return str(options.iad_fallback) == "gad"


def _check(options: SourceCopyOptions) -> None:
    check_draft_vocabulary(options)
    if _has_fallback(options):
        return
    if options.draft_vocabulary is not None:
        raise ConfigurationError(
            f"--draft-vocabulary {options.draft_vocabulary}: is for trained drafters; add --iad-fallback gad, or leave "
            "it out"
        )


def _check_fit(context: MethodContext, options: SourceCopyOptions) -> None:
    if _has_fallback(options):
        check_drafter(context, options.block_size, options.draft_vocabulary)


def _build(context: MethodContext, options: SourceCopyOptions) -> Method:
    fallback = trained_drafter(context, options) if _has_fallback(options) else None
    drafter = SourceCopyDrafter(context.target.pad(), options.iad_lookup == "recent", fallback)
    verifier = Verifier(context.models, context.engine, context.temperature, feature_layers(context.drafter))
    return Method(verifier, drafter, GreedySearch())


def _build_native(context: MethodContext, options: SourceCopyOptions) -> NativeMethod:
    # Where text stays as it is, a whole sentence is verified at once.
    weights = replace(context.native_weights, many_rows=True)
    drafter = weights.module.source_copy_drafter(context.target.pad(), MAX_MATCH, options.iad_lookup == "recent")
    if _has_fallback(options):
        drafter = weights.module.fallback_drafter(drafter, native_drafter(context, options))
    return NativeMethod(weights, drafter)


METHODS = [
    MethodSpec(
        name="iad",
        summary="copy the input, for tasks that rewrite it, the output of --beam 1",
        drafts="copy of the source after a unique suffix match",
        accepts="exact top-1",
        paper="Aggressive Decoding, Algorithm 1",
        options=SourceCopyOptions,
        needs_drafter=_has_fallback,
        copies_source=lambda options: "--decoder iad",
        check=_check,
        check_fit=_check_fit,
        build=_build,
        build_native=_build_native,
        accept_reason="source copy",
        order=41,
    )
]

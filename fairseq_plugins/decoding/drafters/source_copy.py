"""Input-guided aggressive decoding: the draft is the rest of the source, for tasks that rewrite their input."""

from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.cached_decoder import cat_padded
from fairseq_plugins.decoding.drafters import DecodingState, Draft, Drafter, Verdict
from fairseq_plugins.decoding.drafters.lookup import continuation, latest_place, suffix_match, unique_place

_BEGIN = 1 << 40  # stands for the beginning of source and output, which no dictionary symbol equals


class SourceCopyDrafter:
    """Copy the source after the place that a suffix of the output matches uniquely (Aggressive Decoding, Alg. 1).

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

    def start(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        self.source = self._text(sample["net_input"]["src_tokens"])
        if self.fallback is not None:
            self.fallback.start(sample, encoder_out)

    def join(self, sample: dict[str, Any], encoder_out: dict[str, list[Tensor]] | None) -> None:
        self.source = cat_padded(self.source, self._text(sample["net_input"]["src_tokens"]), dim=1, value=-1)
        if self.fallback is not None:
            self.fallback.join(sample, encoder_out)

    def draft(self, state: DecodingState) -> Draft:
        width = state.max_len - state.span.shortest
        if width <= 0:
            return Draft(state.tokens.new_empty(state.tokens.size(0), 0))
        output = state.tokens[:, : state.span.longest + 1].clone()
        output[:, 0] = _BEGIN
        text = self.source
        if self.recent:
            # Without its beginning, which ends what can be copied, and its last token, which would match itself.
            place = torch.arange(output.size(1), device=output.device)
            outside = (place == 0) | (place >= state.lengths[:, None])
            text = torch.cat([text, output.masked_fill(outside, -1)], dim=1)
        match = suffix_match(text, output, state.lengths)
        place, found = latest_place(match) if self.recent else unique_place(match)
        tokens, widths = continuation(text, place, found, width)
        if self.fallback is None:
            return Draft(tokens, widths)
        return self._filled_up(tokens, widths, self.fallback.draft(state))

    def observe(self, verdict: Verdict) -> None:
        if self.fallback is not None:
            self.fallback.observe(verdict)

    def keep(self, rows: Tensor) -> None:
        self.source = self.source.index_select(0, rows)
        if self.fallback is not None:
            self.fallback.keep(rows)

    def _text(self, source: Tensor) -> Tensor:
        """Padding to the right, the beginning in front: column 0 matches the beginning of the output only."""
        real = source != self.pad
        order = torch.argsort(~real, dim=1, stable=True)
        source = source.masked_fill(~real, -1).gather(1, order)
        return torch.cat([source.new_full((source.size(0), 1), _BEGIN), source], dim=1)

    def _filled_up(self, tokens: Tensor, widths: Tensor, other: Draft) -> Draft:
        """The fallback's draft where nothing was copied."""
        width = max(tokens.size(1), other.tokens.size(1))
        copied = torch.nn.functional.pad(tokens, (0, width - tokens.size(1)))
        drafted = torch.nn.functional.pad(other.tokens, (0, width - other.tokens.size(1)))
        empty = widths == 0
        other_widths = torch.full_like(widths, other.tokens.size(1)) if other.widths is None else other.widths
        return Draft(torch.where(empty[:, None], drafted, copied), torch.where(empty, other_widths, widths))

"""Draft by copying texts, such as the source or earlier outputs, after a match with the output."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.encoder import EncoderOut
from fairseq_plugins.decoding.state import Advance, DecodingState, Draft, no_draft
from fairseq_plugins.decoding.suffix_match import continuation, latest_match, suffix_match, unique_match

_BEGIN = 1 << 40  # marks the beginning of texts and outputs; larger than any token id

# As in csrc/drafters/copying.cpp. In a score of `nearest` a matching token outweighs a shift by WORTH positions.
NEAREST_MAX_MATCH, WORTH = 4, 8


class CopyDrafter:
    """Copies texts after a suffix of the output that occurs in them, at first from their beginning.

    Without a match the draft is empty. The position is chosen by `lookup`:

    unique: after the longest suffix that occurs exactly once (Aggressive Decoding, Algorithm 1).
    recent: after the most recent of the longest matches in texts and output.
    nearest: at the best score: 8 for every token of the common suffix (at most 4 tokens), minus the distance to the
        expected position, which assumes that tokens were replaced one by one. After an insertion or a deletion the next
        match corrects the expected position.

    Args:
        texts_of: returns the texts [B, M, N] of a batch's sentences: ids from column 1 on, -1 after the last one.
        lookup: "unique", "recent" or "nearest".
        width: most tokens of a draft; None for no limit.
    """

    def __init__(self, texts_of: Callable[[dict[str, Any]], Tensor], lookup: str, width: int | None = None) -> None:
        self.texts_of, self.lookup, self.width = texts_of, lookup, width
        self.texts = torch.empty(0, 0, 0, dtype=torch.long)
        # [B, M], position of the last match in a text minus that in the output.
        self.shifts = torch.empty(0, 0, dtype=torch.long)

    def start(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        self.texts = self.texts_of(sample)
        self.texts[:, :, 0] = _BEGIN
        self.shifts = self.texts.new_zeros(self.texts.shape[:2])

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        texts, shifts = self.texts, self.shifts
        self.start(sample, encoder_out)
        count, longest = (max(texts.size(dim), self.texts.size(dim)) for dim in (1, 2))
        self.texts = torch.cat(
            [F.pad(ids, (0, longest - ids.size(2), 0, count - ids.size(1)), value=-1) for ids in (texts, self.texts)]
        )
        self.shifts = torch.cat([F.pad(shift, (0, count - shift.size(1))) for shift in (shifts, self.shifts)])

    def draft(self, state: DecodingState) -> Draft:
        width = state.max_len - state.span.shortest
        if self.width is not None:
            width = min(self.width, width)
        if width <= 0:
            return no_draft(state)
        output = state.tokens[:, : state.span.longest + 1].clone()
        output[:, 0] = _BEGIN
        text = self.texts.flatten(1)
        if self.lookup == "nearest":
            position, found = self._nearest(text, output, state.lengths)
        elif self.lookup == "recent":
            # Without the output's first column, which ends a copy, and its last token, which would match itself.
            column = torch.arange(output.size(1), device=output.device)
            outside = (column == 0) | (column >= state.lengths[:, None])
            text = torch.cat([text, output.masked_fill(outside, -1)], dim=1)
            position, found = latest_match(suffix_match(text, output, state.lengths))
        else:
            position, found = unique_match(suffix_match(text, output, state.lengths))
        return Draft(*continuation(text, position, found, width))

    def observe(self, advance: Advance) -> None:
        pass

    def select_rows(self, rows: Tensor) -> None:
        self.texts, self.shifts = self.texts[rows], self.shifts[rows]

    def _nearest(self, text: Tensor, output: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best position [B] in the concatenated texts, and whether there is any [B]."""
        size = self.texts.size(2)
        match = suffix_match(text, output, lengths, NEAREST_MAX_MATCH).view_as(self.texts)
        expected = lengths[:, None, None] + self.shifts[:, :, None]
        distance = (torch.arange(size, device=text.device) - expected).abs()
        is_last = F.pad(self.texts[:, :, 1:], (0, 1), value=-1) < 0
        score, ends = (WORTH * match - distance).masked_fill(is_last, -1).max(2)
        self.shifts = torch.where(score >= 0, ends - lengths[:, None], self.shifts)
        best, number = score.max(1)
        return number * size + ends.gather(1, number[:, None])[:, 0], best >= 0


def source_texts(sample: Mapping[str, Any], pad: int) -> Tensor:
    """Return the sources of a batch [B, 1, N] as texts of a `CopyDrafter`."""
    source = sample["net_input"]["src_tokens"]
    is_pad = source == pad
    if bool(is_pad.any()):
        source = source.masked_fill(is_pad, -1).gather(1, torch.argsort(is_pad, dim=1, stable=True))
    return F.pad(source, (1, 0))[:, None]


def draft_texts(drafts: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Return the drafts of every sentence, [B, M, N] as texts of a `CopyDrafter`."""
    count = max(1, *map(len, drafts))
    longest = max((len(draft) for of_sentence in drafts for draft in of_sentence), default=0)
    texts = torch.full((len(drafts), count, longest + 2), -1)
    for row, of_sentence in enumerate(drafts):
        for number, draft in enumerate(of_sentence):
            texts[row, number, 1 : len(draft) + 1] = torch.tensor(draft)
    return texts

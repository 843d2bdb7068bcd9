"""Draft by copying texts, such as the source or earlier outputs, after a match with the output."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.state import DecodingState, Draft, no_draft

# Longer suffixes count as this many tokens, which bounds the work for long texts.
MAX_MATCH = 64
# On a GPU, this many rows without a copied token cost less than waiting for how many tokens were copied.
MAX_EMPTY_ROWS = 256
_BEGIN = 1 << 40  # marks the beginning of texts and outputs; larger than any token id

# As in csrc/drafters/copying.cpp. In a score of `nearest` a matching token outweighs a shift by MATCH_WEIGHT positions.
NEAREST_MAX_MATCH, MATCH_WEIGHT = 4, 8


class CopyDrafter(Drafter):
    """Copies texts after a suffix of the output that occurs in them, at first from their beginning.

    Without a match the draft is empty. The position is chosen by `lookup`:

    unique: after the longest suffix that occurs exactly once (Aggressive Decoding, Algorithm 1).
    nearest: at the best score: 8 for every token of the common suffix (at most 4 tokens), minus the distance to the
        expected position, which assumes that tokens were replaced one by one. After an insertion or a deletion the next
        match corrects the expected position.

    Args:
        texts_of: returns the texts [B, M, N] of a batch's sentences: ids from column 1 on, then at least one -1.
        lookup: "unique" or "nearest".
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
        self._prepare()

    def append_rows(self, sample: dict[str, Any], encoder_out: EncoderOut | None) -> None:
        texts, shifts = self.texts, self.shifts
        self.start(sample, encoder_out)
        count, longest = (max(texts.size(dim), self.texts.size(dim)) for dim in (1, 2))
        self.texts = torch.cat(
            [F.pad(ids, (0, longest - ids.size(2), 0, count - ids.size(1)), value=-1) for ids in (texts, self.texts)]
        )
        self.shifts = torch.cat([F.pad(shift, (0, count - shift.size(1))) for shift in (shifts, self.shifts)])
        self._prepare()

    def _prepare(self) -> None:
        """Compute what does not depend on the output."""
        self.endings = endings(self.texts.flatten(1), NEAREST_MAX_MATCH if self.lookup == "nearest" else MAX_MATCH)

    def draft(self, state: DecodingState) -> Draft:
        width = state.remaining
        if self.width is not None:
            width = min(self.width, width)
        if width <= 0:
            return no_draft(state)
        output = torch.cat([self.texts[:, 0, :1], state.tokens[:, 1 : state.span.longest + 1]], dim=1)
        if self.lookup == "nearest":
            position, found = self._nearest(output, state.lengths)
        else:
            position, found = unique_match(suffix_match(self.endings, output, state.lengths))
        return Draft(*continuation(self.texts.flatten(1), position, found, width))

    def select_rows(self, rows: Tensor) -> None:
        self.texts, self.shifts, self.endings = self.texts[rows], self.shifts[rows], self.endings[rows]

    def _nearest(self, output: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best position [B] in the concatenated texts, and whether there is any [B]."""
        size = self.texts.size(2)
        match = suffix_match(self.endings, output, lengths).view_as(self.texts)
        expected = lengths[:, None, None] + self.shifts[:, :, None]
        distance = (torch.arange(size, device=output.device) - expected).abs()
        is_last = F.pad(self.texts[:, :, 1:], (0, 1), value=-1) < 0
        score, ends = (MATCH_WEIGHT * match - distance).masked_fill(is_last, -1).max(2)
        self.shifts = torch.where(score >= 0, ends - lengths[:, None], self.shifts)
        best, number = score.max(1)
        return number * size + ends.gather(1, number[:, None])[:, 0], best >= 0


def source_texts(sample: Mapping[str, Any], pad: int) -> Tensor:
    """Return the sources of a batch [B, 1, N] as texts of a `CopyDrafter`."""
    source = sample["net_input"]["src_tokens"]
    is_pad = source == pad
    if bool(is_pad.any()):
        source = source.masked_fill(is_pad, -1).gather(1, torch.argsort(is_pad, dim=1, stable=True))
    return F.pad(source, (1, 1), value=-1)[:, None]


def draft_texts(drafts: Sequence[Sequence[Sequence[int]]]) -> Tensor:
    """Return the drafts of every sentence, [B, M, N] as texts of a `CopyDrafter`."""
    count = max(1, *map(len, drafts))
    longest = max((len(draft) for of_sentence in drafts for draft in of_sentence), default=0)
    texts = torch.full((len(drafts), count, longest + 2), -1)
    for row, of_sentence in enumerate(drafts):
        for number, draft in enumerate(of_sentence):
            texts[row, number, 1 : len(draft) + 1] = torch.tensor(draft)
    return texts


def endings(text: Tensor, max_match: int) -> Tensor:
    """Return the tokens up to every position of texts [B, N], last first: [B, N, K + 1], K <= `max_match`.

    Before the first token, and in the last column, stands -1, which no output has.
    """
    depth = min(max_match, text.size(1))
    return F.pad(F.pad(text, (depth - 1, 0), value=-1).unfold(1, depth, 1).flip(2), (0, 1), value=-1)


def suffix_match(text_endings: Tensor, output: Tensor, lengths: Tensor) -> Tensor:
    """Return how many tokens [B, N] up to every position of a text equal the last tokens of the output.

    Negative ids in the `endings` of the text match nothing. Token `lengths` [B] of the output [B, M] is the last one.
    """
    depth = min(text_endings.size(2), output.size(1) + 1)
    columns = lengths[:, None] + torch.arange(depth - 1, -1, -1, device=output.device)
    last = F.pad(output, (depth - 1, 0), value=-2).gather(1, columns)
    # The first difference; in the last column there is one.
    return (text_endings[:, :, :depth] != last[:, None]).view(torch.uint8).argmax(2)


def unique_match(match: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position [B] of the longest match of [B, N], and whether it is unique [B].

    Longer suffixes match fewer positions, so a suffix with a single match exists exactly if one match is longer than
    all others (Aggressive Decoding, Algorithm 1, line 3).
    """
    if match.size(1) == 1:
        return match.new_zeros(match.size(0)), match[:, 0] > 0
    best = match.topk(2, dim=1)
    return best.indices[:, 0], best.values[:, 0] > best.values[:, 1]


def continuation(text: Tensor, position: Tensor, found: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return at most `width` tokens [B, K] after a position [B] of a text [B, N], and the number of valid ones [B].

    A negative id ends the copy; the text ends with one. Nothing is copied unless the position was `found` [B].
    """
    size = text.size(1)
    columns = position[:, None] + torch.arange(1, min(width + 1, size - 1), device=text.device)
    copied = text.gather(1, columns.clamp(max=size - 1))
    valid = (copied >= 0).long().cumprod(1)
    counts = valid.sum(1) * found
    longest = copied.size(1)
    if text.device.type == "cpu" or copied.numel() > MAX_EMPTY_ROWS:
        # One synchronisation: without any copy the verifier runs a single row.
        longest = int(counts.max())
    return (copied * valid)[:, :longest], counts

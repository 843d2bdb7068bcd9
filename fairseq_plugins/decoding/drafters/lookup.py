"""Find where the end of the output stood before: longest suffix matches, for all sentences at once."""

import torch
from torch import Tensor

# Longer common suffixes than this are as good as equal; it bounds the work for very long texts.
LONGEST_MATCH = 64


def suffix_match(text: Tensor, output: Tensor, lengths: Tensor) -> Tensor:
    """Length of the common suffix of the output and of the text up to every place.

    Args:
        text: [B, N] where to look; negative ids match nothing.
        output: [B, M] what was decoded; token `lengths[b]` is the last of sentence b.
        lengths: [B].

    Returns:
        [B, N]: how many tokens that end at this place of the text equal the last tokens of the output.
    """
    batch, size = text.shape
    depth = min(LONGEST_MATCH, size, int(output.size(1)))
    back = torch.arange(depth, device=text.device)
    # Text and output one step further back at every column of the last dimension; -1 and -2 never equal each other.
    earlier_text = torch.cat([text.new_full((batch, depth - 1), -1), text], dim=1).unfold(1, depth, 1).flip(2)
    place = lengths[:, None] - back
    earlier_output = output.gather(1, place.clamp(min=0)).masked_fill(place < 0, -2)
    equal = (earlier_text == earlier_output[:, None, :]) & (earlier_text >= 0)
    return equal.long().cumprod(2).sum(2)


def unique_place(match: Tensor) -> tuple[Tensor, Tensor]:
    """The place with the longest match, and whether a suffix exists that stands there only.

    The places that match a suffix become fewer as the suffix grows, so one stands alone exactly if the longest match
    is longer than all others (Aggressive Decoding, Algorithm 1, line 3).

    Args:
        match: [B, N] from `suffix_match`.

    Returns:
        place [B] and whether it is unique [B].
    """
    if match.size(1) == 1:
        return match.new_zeros(match.size(0)), match[:, 0] > 0
    best = match.topk(2, dim=1)
    return best.indices[:, 0], best.values[:, 0] > best.values[:, 1]


def latest_place(match: Tensor) -> tuple[Tensor, Tensor]:
    """The last of the places with the longest match [B], and whether there is any match [B]."""
    longest = match.amax(1)
    places = torch.arange(match.size(1), device=match.device)
    return torch.where(match == longest[:, None], places, -1).amax(1), longest > 0


def continuation(text: Tensor, place: Tensor, found: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """What follows a place in the text, as a draft.

    Args:
        text: [B, N]; a negative id ends what can be copied.
        place: [B].
        found: [B] whether the place means anything.
        width: the most tokens to copy.

    Returns:
        tokens [B, K] with K <= width, and how many of them are meant [B].
    """
    size = text.size(1)
    columns = place[:, None] + 1 + torch.arange(min(width, size), device=text.device)
    copied = text.gather(1, columns.clamp(max=size - 1)).masked_fill(columns >= size, -1)
    widths = (copied >= 0).long().cumprod(1).sum(1) * found
    # One synchronisation: a draft of no width saves the verifier the whole block.
    longest = int(widths.max())
    return copied[:, :longest].clamp(min=0), widths

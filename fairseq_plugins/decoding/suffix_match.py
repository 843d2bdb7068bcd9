"""Find where the end of the output stood before: longest suffix matches, for all sentences at once."""

import torch
from torch import Tensor

# Longer common suffixes than this are as good as equal; it bounds the work for very long texts.
MAX_MATCH = 64


def suffix_match(text: Tensor, output: Tensor, lengths: Tensor, most: int = MAX_MATCH) -> Tensor:
    """Length of the common suffix of the output and of the text up to every position.

    Args:
        text: [B, N] where to look; negative ids match nothing.
        output: [B, M] what was decoded; token `lengths[b]` is the last of sentence b.
        lengths: [B].
        most: longer suffixes count as this many tokens.

    Returns:
        [B, N]: how many tokens that end at this position of the text equal the last tokens of the output.
    """
    batch, size = text.shape
    depth = min(most, size, int(output.size(1)))
    back = torch.arange(depth, device=text.device)
    # Text and output one step further back at every column of the last dimension; -1 and -2 never equal each other.
    earlier_text = torch.cat([text.new_full((batch, depth - 1), -1), text], dim=1).unfold(1, depth, 1).flip(2)
    column = lengths[:, None] - back
    earlier_output = output.gather(1, column.clamp(min=0)).masked_fill(column < 0, -2)
    equal = (earlier_text == earlier_output[:, None, :]) & (earlier_text >= 0)
    return equal.long().cumprod(2).sum(2)


def unique_match(match: Tensor) -> tuple[Tensor, Tensor]:
    """The position with the longest match, and whether a suffix exists that stands there only.

    The positions that match a suffix become fewer as the suffix grows, so one stands alone exactly if the longest match
    is longer than all others (Aggressive Decoding, Algorithm 1, line 3).

    Args:
        match: [B, N] from `suffix_match`.

    Returns:
        position [B] and whether it is unique [B].
    """
    if match.size(1) == 1:
        return match.new_zeros(match.size(0)), match[:, 0] > 0
    best = match.topk(2, dim=1)
    return best.indices[:, 0], best.values[:, 0] > best.values[:, 1]


def latest_match(match: Tensor) -> tuple[Tensor, Tensor]:
    """The last of the positions with the longest match [B], and whether there is any match [B]."""
    longest = match.amax(1)
    positions = torch.arange(match.size(1), device=match.device)
    return torch.where(match == longest[:, None], positions, -1).amax(1), longest > 0


def continuation(text: Tensor, position: Tensor, found: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """What follows a position in the text, as a draft.

    Args:
        text: [B, N]; a negative id ends what can be copied.
        position: [B].
        found: [B] whether the position means anything.
        width: the most tokens to copy.

    Returns:
        tokens [B, K] with K <= width, and how many of them are meant [B].
    """
    size = text.size(1)
    columns = position[:, None] + 1 + torch.arange(min(width, size), device=text.device)
    copied = text.gather(1, columns.clamp(max=size - 1)).masked_fill(columns >= size, -1)
    counts = (copied >= 0).long().cumprod(1).sum(1) * found
    # One synchronisation: a draft of no width saves the verifier the whole block.
    longest = int(counts.max())
    return copied[:, :longest].clamp(min=0), counts

"""Match the end of the output in a text: longest common suffixes, for all sentences at once."""

import torch
from torch import Tensor

# Longer suffixes count as this many tokens, which bounds the work for long texts.
MAX_MATCH = 64
# On a GPU, this many rows without a copied token cost less than waiting for how many tokens were copied.
MAX_EMPTY_ROWS = 256


def suffix_match(text: Tensor, output: Tensor, lengths: Tensor, max_match: int = MAX_MATCH) -> Tensor:
    """Return the length of the common suffix of the output and of the text up to every position.

    Args:
        text: [B, N] to search; negative ids match nothing.
        output: [B, M], decoded tokens; token `lengths[b]` is the last of sentence b.
        lengths: [B].
        max_match: longer suffixes count as this many tokens.

    Returns:
        [B, N]: number of tokens before and at a position of the text that equal the last tokens of the output.
    """
    batch, size = text.shape
    depth = min(max_match, size, int(output.size(1)))
    back = torch.arange(depth, device=text.device)
    # Column d of the last dimension is d tokens earlier; the paddings -1 and -2 never match.
    earlier_text = torch.cat([text.new_full((batch, depth - 1), -1), text], dim=1).unfold(1, depth, 1).flip(2)
    column = lengths[:, None] - back
    earlier_output = output.gather(1, column.clamp(min=0)).masked_fill(column < 0, -2)
    equal = (earlier_text == earlier_output[:, None, :]) & (earlier_text >= 0)
    return equal.long().cumprod(2).sum(2)


def unique_match(match: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position with the longest match, and whether it is unique.

    Longer suffixes match fewer positions, so a suffix with a single match exists exactly if one match is longer than
    all others (Aggressive Decoding, Algorithm 1, line 3).

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
    """Return the last position with the longest match [B], and whether there is any match [B]."""
    longest = match.amax(1)
    positions = torch.arange(match.size(1), device=match.device)
    return torch.where(match == longest[:, None], positions, -1).amax(1), longest > 0


def continuation(text: Tensor, position: Tensor, found: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return the tokens after a position of the text, as a draft.

    Args:
        text: [B, N]; a negative id ends the copy.
        position: [B].
        found: [B], whether the position is valid.
        width: most tokens to copy.

    Returns:
        tokens [B, K] with K <= width, and the number of valid ones [B].
    """
    size = text.size(1)
    columns = position[:, None] + 1 + torch.arange(min(width, size), device=text.device)
    copied = text.gather(1, columns.clamp(max=size - 1)).masked_fill(columns >= size, -1)
    valid = (copied >= 0).long().cumprod(1)
    counts = valid.sum(1) * found
    longest = copied.size(1)
    if text.device.type == "cpu" or copied.numel() > MAX_EMPTY_ROWS:
        # One synchronisation: without any copy the verifier runs a single row.
        longest = int(counts.max())
    return (copied * valid)[:, :longest], counts

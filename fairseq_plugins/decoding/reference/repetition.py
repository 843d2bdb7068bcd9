"""`--no-repeat-ngram-size`: forbid repeated n-grams in outputs."""

import torch
from torch import Tensor


def forbid_repetition(log_probs: Tensor, tokens: Tensor, lengths: Tensor, size: int) -> None:
    """Set tokens that would repeat an n-gram to -inf, as Hugging Face and fairseq's CUDA extension do.

    Args:
        log_probs: [B, T, V], changed in place; column t is the token after `lengths` + t tokens.
        tokens: [B, L], L >= `lengths` + T, starting with the beginning-of-sentence symbol, which is part of n-grams.
        lengths: [B], number of tokens after that symbol before column 0.
        size: n.
    """
    width = tokens.size(1)
    if width < size:
        return
    last = lengths[:, None] + torch.arange(log_probs.size(1), device=tokens.device)
    begin = last - (size - 2)  # of the n - 1 tokens before a column
    positions = (begin[:, :, None] + torch.arange(size - 1, device=tokens.device)).clamp(min=0)
    before = tokens.gather(1, positions.flatten(1)).view(*last.shape, size - 1)
    grams = tokens.unfold(1, size, 1)
    ends = torch.arange(size - 1, width, device=tokens.device)
    repeats = (grams[:, None, :, :-1] == before[:, :, None]).all(-1)
    repeats &= (ends <= last[:, :, None]) & (begin >= 0)[:, :, None]
    row, column, gram = repeats.nonzero().unbind(1)
    log_probs[row, column, grams[row, gram, -1]] = -torch.inf

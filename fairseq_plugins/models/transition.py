"""Scores of a drafted token given the one before it, against repeated and dropped words of independent prediction."""

import torch
from torch import Tensor, nn


class TransitionScores(nn.Module):
    """A low-rank matrix of scores [V, V], row: the token before, column: the token.

    A block drafter predicts all positions at once, so that two can each choose well and not fit together
    ("Angaben Angaben", GAD Table 11). Sun et al. 2019 (arXiv 1910.11555) add such a matrix to a non-autoregressive
    model as a conditional random field. Here the softmax stays that of one position, given the true token before; a
    path is chosen from left to right, since a token counts only when all before it are right.

    Args:
        vocabulary: V.
        rank: of the matrix.
    """

    def __init__(self, vocabulary: int, rank: int) -> None:
        super().__init__()
        self.before = nn.Embedding(vocabulary, rank)
        self.after = nn.Linear(rank, vocabulary, bias=False)
        nn.init.normal_(self.before.weight, std=rank**-0.5)
        nn.init.zeros_(self.after.weight)

    def forward(self, logits: Tensor, previous: Tensor) -> Tensor:
        """Add to scores [..., V] those of coming after the tokens `previous` [...]."""
        before = self.before(previous.flatten())
        return torch.addmm(logits.flatten(0, -2), before, self.after.weight.t()).view_as(logits)

    def choose(
        self, scores: Tensor, first: Tensor, with_log_probs: bool = False, vocabulary: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens [B, K] that are best at every position, one after the other.

        Args:
            scores: [B, K, N].
            first: [B], the token before the first position.
            with_log_probs: return the log-probability [B, K] of each given the one before it, too.
            vocabulary: ids [N] of the tokens that have scores, None for all.
        """
        after = self.after.weight if vocabulary is None else self.after.weight[vocabulary]
        chosen, log_probs, last = [], [], first
        for position in range(scores.size(1)):
            together = torch.addmm(scores[:, position], self.before(last), after.t())
            highest, best = together.max(1)
            last = best if vocabulary is None else vocabulary[best]
            chosen.append(last)
            if with_log_probs:
                log_probs.append(highest - together.logsumexp(1))
        return torch.stack(chosen, dim=1), torch.stack(log_probs, dim=1) if with_log_probs else None

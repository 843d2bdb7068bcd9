"""Scores of a drafted token given those before it, against repeated and dropped words of independent prediction."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TransitionScores(nn.Module):
    """Scores [V] of the next token of a path: of low rank, of the token before and maybe of a state along the path.

    A block drafter predicts all positions at once, so that two can each choose well and not fit together
    ("Angaben Angaben", GAD Table 11). Sun et al. 2019 (arXiv 1910.11555) add a matrix of scores [V, V] to a
    non-autoregressive model as a conditional random field. Here the softmax stays that of one position, given the true
    tokens before; a path is chosen from left to right, since a token counts only when all before it are right. With a
    state, a recurrent cell (GRU) reads the block's hidden state of every position and the token before, so that scores
    depend on the whole path.

    Args:
        vocabulary: V.
        rank: of the scores.
        width: D of the hidden states.
        state: width of the recurrent state, 0 for none.
        dropout: of what the recurrent cell reads and says: the hidden states know the training sentences too well.
    """

    def __init__(self, vocabulary: int, rank: int, width: int = 0, state: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.before = nn.Embedding(vocabulary, rank)
        self.after = nn.Linear(rank, vocabulary, bias=False)
        nn.init.normal_(self.before.weight, std=rank**-0.5)
        nn.init.zeros_(self.after.weight)
        self.dropout = dropout
        self.cell = nn.GRU(width + rank, state, batch_first=True) if state else None
        self.of_state = nn.Linear(state, rank, bias=False) if state else None

    def along(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """What `after` is multiplied with at every position of N blocks, [N, K, rank].

        Args:
            hidden: [N, K, D].
            previous: [N, K], the true token before each position.
        """
        before = self.before(previous)
        if self.cell is None or self.of_state is None:
            return before
        read = torch.cat([F.dropout(hidden, self.dropout, self.training), before], dim=-1)
        states = F.dropout(self.cell(read)[0], self.dropout, self.training)
        return before + self.of_state(states)

    def choose(
        self,
        scores: Tensor,
        hidden: Tensor,
        first: Tensor,
        with_log_probs: bool = False,
        vocabulary: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The tokens [B, K] that are best at every position, one after the other.

        Args:
            scores: [B, K, N], of each position by itself.
            hidden: [B, K, D], the block's states that these were made of.
            first: [B], the token before the first position.
            with_log_probs: return the log-probability [B, K] of each given those before it, too.
            vocabulary: ids [N] of the tokens that have scores, None for all.
        """
        after = self.after.weight if vocabulary is None else self.after.weight[vocabulary]
        chosen, log_probs, last, state = [], [], first, None
        for position in range(scores.size(1)):
            what = self.before(last)
            if self.cell is not None and self.of_state is not None:
                read = torch.cat([hidden[:, position], what], dim=-1)
                states, state = self.cell(read[:, None], state)
                what = what + self.of_state(states[:, 0])
            together = torch.addmm(scores[:, position], what, after.t())
            highest, best = together.max(1)
            last = best if vocabulary is None else vocabulary[best]
            chosen.append(last)
            if with_log_probs:
                log_probs.append(highest - together.float().logsumexp(1))
        return torch.stack(chosen, dim=1), torch.stack(log_probs, dim=1) if with_log_probs else None

"""Scores of a drafted token given those before it: they avoid the repeated words of independent prediction."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TransitionScores(nn.Module):
    """Low-rank scores [V] of the next token of a path, given the previous token and optionally a recurrent state.

    A block drafter predicts all positions independently, so that neighbours may not fit together ("Angaben Angaben",
    GAD Table 11). Sun et al. 2019 (arXiv 1910.11555) add a matrix of scores [V, V] to a non-autoregressive model as a
    conditional random field. Here the softmax is over one position, given the true tokens before it. A path is chosen
    from left to right, since a token is accepted only after right ones. With a state, a recurrent cell (GRU) reads the
    block's hidden state and the previous token at every position, so that scores depend on the whole path.

    Args:
        vocabulary: V.
        rank: of the scores.
        width: D of the hidden states.
        state: width of the recurrent state, 0 for none.
        dropout: of the recurrent cell's input and output: hidden states overfit the training sentences.
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

    def factors(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Return the left factors [N, K, rank] of the scores of N blocks; `after` is the right factor.

        Args:
            hidden: [N, K, D].
            previous: [N, K], the true token before each position.
        """
        before = self.before(previous)
        if self.cell is None or self.of_state is None:
            return before
        inputs = torch.cat([F.dropout(hidden, self.dropout, self.training), before], dim=-1)
        states = F.dropout(self.cell(inputs)[0], self.dropout, self.training)
        return before + self.of_state(states)

    def choose(
        self,
        scores: Tensor,
        hidden: Tensor,
        first: Tensor,
        with_log_probs: bool = False,
        vocabulary: Tensor | None = None,
        best_of: Callable[[Tensor, int], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Choose the best tokens [B, K] from left to right.

        Args:
            scores: [B, K, N], of each position without transitions.
            hidden: [B, K, D], the block's states that gave the scores.
            first: [B], the token before the first position.
            with_log_probs: also return the log-probability [B, K] of each token given those before it.
            vocabulary: ids [N] of the scored tokens, None for all.
            best_of: chooses tokens [B] by total scores [B, N] at a position; None for the maximum.
        """
        after = self.after.weight if vocabulary is None else self.after.weight[vocabulary]
        chosen, log_probs, last, state = [], [], first, None
        for position in range(scores.size(1)):
            factor = self.before(last)
            if self.cell is not None and self.of_state is not None:
                inputs = torch.cat([hidden[:, position], factor], dim=-1)
                states, state = self.cell(inputs[:, None], state)
                factor = factor + self.of_state(states[:, 0])
            total = torch.addmm(scores[:, position], factor, after.t())
            if best_of is None:
                highest, best = total.max(1)
            else:
                best = best_of(total, position)
                highest = total.gather(1, best[:, None])[:, 0]
            last = best if vocabulary is None else vocabulary[best]
            chosen.append(last)
            if with_log_probs:
                log_probs.append(highest - total.float().logsumexp(1))
        return torch.stack(chosen, dim=1), torch.stack(log_probs, dim=1) if with_log_probs else None

"""What is accepted: rules as tensor functions, no loop over tokens or sentences.

A rule says of every drafted token whether it may stand; `accepted_prefix` then counts the tokens before the first
that may not (the bifurcation).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fairseq_plugins.decoding.drafters import Draft

# (draft, verifier's log-probabilities [B, K+1, V], verifier's choice [B, K+1]) -> may stand [B, K]
Rule = Callable[[Draft, Tensor, Tensor], Tensor]


def accepted_prefix(may_stand: Tensor, widths: Tensor | None) -> Tensor:
    """Length [B] of the longest prefix of drafted tokens that may stand.

    Args:
        may_stand: [B, K] booleans.
        widths: [B] how many columns were drafted, None for all.
    """
    if widths is not None:
        may_stand = may_stand & (torch.arange(may_stand.size(1), device=may_stand.device) < widths[:, None])
    return may_stand.long().cumprod(1).sum(1)


def exact(draft: Draft, scores: Tensor, choice: Tensor) -> Tensor:
    """Accept what equals the verifier's top-1 token (GAD eq. 6)."""
    return draft.tokens == choice[:, :-1]


def top_beta(beta: int, tau: float, score_of: str = "verifier") -> Rule:
    """Accept drafted tokens among the verifier's top beta that lag its best by at most tau (GAD eq. 8-9).

    Eq. 8 asks for log P(drafted) >= log P(beta-th best), eq. 9 for log P(best) - log P(drafted) <= tau. A token that
    equals the verifier's top-1 always stands (eq. 7).

    Args:
        beta: how many of the verifier's best tokens are good enough, at least 1.
        tau: largest tolerated gap of log-probabilities, at least 0.
        score_of: whose log-probability of the drafted token is meant: "verifier", or "drafter" for the literal
            reading of SpecDec eq. 6-7.
    """

    def rule(draft: Draft, scores: Tensor, choice: Tensor) -> Tensor:
        drafted, best = draft.tokens.unsqueeze(2), choice[:, :-1].unsqueeze(2)
        scores = scores[:, :-1]
        by_verifier = by_drafter = scores.gather(2, drafted)
        if score_of == "drafter":
            assert draft.logits is not None
            by_drafter = draft.logits.float().log_softmax(-1).gather(2, drafted)
        is_near = (scores.gather(2, best) - by_drafter <= tau) & (by_verifier > -torch.inf)
        better = (scores > by_drafter).sum(2, keepdim=True)
        return ((drafted == best) | (is_near & (better < beta))).squeeze(2)

    return rule


def within_distance(epsilon: float, values: Tensor) -> Rule:
    """Accept numbers at most epsilon away from the verifier's top-1 (Stern et al. 2018, section 5.2).

    Args:
        epsilon: largest tolerated difference |u - v|.
        values: [V] the number that each symbol stands for, NaN for symbols that are none.
    """

    def rule(draft: Draft, scores: Tensor, choice: Tensor) -> Tensor:
        numbers = values.to(scores.device)
        distance = (numbers[draft.tokens] - numbers[choice[:, :-1]]).abs()
        # Comparisons with NaN are false: EOS and words stand only if they are equal.
        return exact(draft, scores, choice) | (_allowed(draft, scores) & (distance <= epsilon))

    return rule


def at_least(block: int, rule: Rule) -> Rule:
    """Accept the first `block - 1` drafted tokens in any case, so that an iteration adds `block` (Stern, sec. 5.3)."""

    def relaxed(draft: Draft, scores: Tensor, choice: Tensor) -> Tensor:
        first = torch.arange(draft.tokens.size(1), device=choice.device) < block - 1
        return rule(draft, scores, choice) | (_allowed(draft, scores) & first)

    return relaxed


def _allowed(draft: Draft, scores: Tensor) -> Tensor:
    """Drafted tokens [B, K] that fairseq's constraints allow; -inf marks pad, an early EOS, others at the limit."""
    return scores[:, :-1].gather(2, draft.tokens[:, :, None])[:, :, 0] > -torch.inf


def everything(draft: Draft, scores: Tensor, choice: Tensor) -> Tensor:
    """Accept every drafted token: NAT decoding without a verifier."""
    return torch.ones_like(draft.tokens, dtype=torch.bool)

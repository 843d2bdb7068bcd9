"""Rules of acceptance as tensor functions, no loop over tokens or sentences.

A rule says of every drafted token whether it may stand; `accepted_prefix` then counts the tokens before the first
that may not (the bifurcation).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.state import Draft, Verification

# (draft of K columns, verification of K + 1) -> may stand [B, K]
Rule = Callable[[Draft, Verification], Tensor]


def accepted_prefix(may_stand: Tensor, num_drafted: Tensor | None) -> Tensor:
    """Length [B] of the longest prefix of drafted tokens that may stand.

    Args:
        may_stand: [B, K] booleans.
        num_drafted: [B] how many columns were drafted, None for all.
    """
    if num_drafted is not None:
        columns = torch.arange(may_stand.size(1), device=may_stand.device)
        may_stand = may_stand & (columns < num_drafted[:, None])
    return may_stand.long().cumprod(1).sum(1)


def exact(draft: Draft, verification: Verification) -> Tensor:
    """Accept what equals the verifier's top-1 token (GAD eq. 6)."""
    return draft.tokens == verification.best[:, :-1]


@dataclass(frozen=True)
class TopBeta:
    """Accept drafted tokens among the verifier's top beta that lag its best by at most tau (GAD eq. 8-9).

    Eq. 8 asks for log P(drafted) >= log P(beta-th best), eq. 9 for log P(best) - log P(drafted) <= tau. A token that
    equals the verifier's top-1 always stands (eq. 7).

    Args:
        beta: how many of the verifier's best tokens are good enough, at least 1.
        tau: largest tolerated gap of log-probabilities, at least 0.
        score_of: whose log-probability of the drafted token is meant: "verifier", or "drafter" for the literal
            reading of SpecDec eq. 6-7.
    """

    beta: int
    tau: float
    score_of: str = "verifier"

    def __call__(self, draft: Draft, verification: Verification) -> Tensor:
        drafted, best = draft.tokens.unsqueeze(2), verification.best[:, :-1].unsqueeze(2)
        log_probs = verification.log_probs[:, :-1]
        by_verifier = by_drafter = log_probs.gather(2, drafted)
        # At the longest output nothing is drafted.
        if self.score_of == "drafter" and draft.tokens.size(1) > 0:
            assert draft.log_probs is not None
            by_drafter = draft.log_probs.gather(2, drafted)
        is_near = (log_probs.gather(2, best) - by_drafter <= self.tau) & (by_verifier > -torch.inf)
        better = (log_probs > by_drafter).sum(2, keepdim=True)
        return ((drafted == best) | (is_near & (better < self.beta))).squeeze(2)


def within_distance(epsilon: float, values: Tensor) -> Rule:
    """Accept numbers at most epsilon away from the verifier's top-1 (Stern et al. 2018, section 5.2).

    Args:
        epsilon: largest tolerated difference |u - v|.
        values: [V] the number that each symbol stands for, NaN for symbols that are none.
    """

    def rule(draft: Draft, verification: Verification) -> Tensor:
        numbers = values.to(draft.tokens.device)
        distance = (numbers[draft.tokens] - numbers[verification.best[:, :-1]]).abs()
        # Comparisons with NaN are false: EOS and words stand only if they are equal.
        return exact(draft, verification) | (_allowed(draft, verification) & (distance <= epsilon))

    return rule


def at_least(block: int, rule: Rule) -> Rule:
    """Accept the first `block - 1` drafted tokens in any case, so that an iteration adds `block` (Stern, sec. 5.3)."""

    def relaxed(draft: Draft, verification: Verification) -> Tensor:
        first = torch.arange(draft.tokens.size(1), device=draft.tokens.device) < block - 1
        return rule(draft, verification) | (_allowed(draft, verification) & first)

    return relaxed


def _allowed(draft: Draft, verification: Verification) -> Tensor:
    """Drafted tokens [B, K] that fairseq's constraints allow; -inf marks pad, an early EOS, others at the limit."""
    return verification.log_probs[:, :-1].gather(2, draft.tokens[:, :, None])[:, :, 0] > -torch.inf


def everything(draft: Draft, verification: Verification) -> Tensor:
    """Accept every drafted token that fairseq's constraints allow: NAT decoding without a verifier."""
    return _allowed(draft, verification)

"""Acceptance rules as tensor functions, without loops over tokens or sentences.

A rule decides for every drafted token whether it is acceptable; `accepted_prefix` counts the tokens before the first
rejected one (the bifurcation).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference.state import Draft, Verification

# (draft of K columns, verification of K + 1) -> acceptable [B, K]
Rule = Callable[[Draft, Verification], Tensor]


def accepted_prefix(acceptable: Tensor, num_drafted: Tensor | None) -> Tensor:
    """Return the length [B] of the longest prefix of `acceptable` [B, K] tokens; `num_drafted` [B] as in `Draft`."""
    if num_drafted is not None:
        columns = torch.arange(acceptable.size(1), device=acceptable.device)
        acceptable = acceptable & (columns < num_drafted[:, None])
    return acceptable.long().cumprod(1).sum(1)


def exact(draft: Draft, verification: Verification) -> Tensor:
    """Accept tokens that equal the verifier's top-1 token (GAD eq. 6)."""
    return draft.tokens == verification.best[:, :-1]


@dataclass(frozen=True)
class TopBeta:
    """Accept drafted tokens among the verifier's top beta that lag its best by at most tau (GAD eq. 8-9).

    Eq. 8 asks for log P(drafted) >= log P(beta-th best), eq. 9 for log P(best) - log P(drafted) <= tau. A token that
    equals the verifier's top-1 is always accepted (eq. 7).

    Args:
        beta: number of the verifier's best tokens that are acceptable, at least 1.
        tau: largest accepted gap of log-probabilities, at least 0.
        score_of: whose log-probability of the drafted token counts: "verifier", or "drafter" for the literal reading
            of SpecDec eq. 6-7.
    """

    beta: int
    tau: float
    score_of: str = "verifier"

    def __call__(self, draft: Draft, verification: Verification) -> Tensor:
        drafted, best = draft.tokens.unsqueeze(2), verification.best[:, :-1].unsqueeze(2)
        log_probs = verification.log_probs[:, :-1]
        by_verifier = by_drafter = log_probs.gather(2, drafted)
        # Without log-probabilities the draft is empty, or a given prefix, which the verifier is forced to choose.
        if self.score_of == "drafter" and draft.log_probs is not None:
            by_drafter = draft.log_probs.gather(2, drafted)
        is_near = (log_probs.gather(2, best) - by_drafter <= self.tau) & (by_verifier > -torch.inf)
        better = (log_probs > by_drafter).sum(2, keepdim=True)
        return ((drafted == best) | (is_near & (better < self.beta))).squeeze(2)


def within_distance(epsilon: float, values: Tensor) -> Rule:
    """Accept numbers at most epsilon away from the verifier's top-1, |u - v| (Stern et al. 2018, section 5.2).

    `values` [V] has the number that each symbol stands for, NaN for symbols that are not numbers.
    """

    def rule(draft: Draft, verification: Verification) -> Tensor:
        numbers = values.to(draft.tokens.device)
        distance = (numbers[draft.tokens] - numbers[verification.best[:, :-1]]).abs()
        # Comparisons with NaN are false: EOS and words must be equal.
        return exact(draft, verification) | (accept_all(draft, verification) & (distance <= epsilon))

    return rule


def with_min_block(block: int, rule: Rule) -> Rule:
    """Accept the first `block - 1` drafted tokens always, so that an iteration emits `block` (Stern, section 5.3)."""

    def relaxed(draft: Draft, verification: Verification) -> Tensor:
        first = torch.arange(draft.tokens.size(1), device=draft.tokens.device) < block - 1
        return rule(draft, verification) | (accept_all(draft, verification) & first)

    return relaxed


def accept_all(draft: Draft, verification: Verification) -> Tensor:
    """Accept every drafted token that fairseq's constraints allow (-inf: not): NAT decoding without a verifier."""
    return verification.log_probs[:, :-1].gather(2, draft.tokens[:, :, None])[:, :, 0] > -torch.inf

"""Rules that accept drafted tokens, as csrc/acceptance.h has them; the kernel is `scores.accept`."""

from dataclasses import dataclass, replace

from torch import Tensor

from fairseq_plugins.decoding.kernel_module import Unsupported

_MOST_BEST = 16


@dataclass(frozen=True)
class Acceptance:
    """A relaxed rule; the defaults are exact acceptance.

    Attributes:
        top_beta, tau: accept tokens among the verifier's best (GAD eq. 8-9); 0 for exact acceptance.
        values, epsilon: accept numbers that differ by at most epsilon (Stern et al. 2018, section 5.2).
        min_block: tokens that an iteration emits at least (section 5.3).
    """

    top_beta: int = 0
    tau: float = 0.0
    values: Tensor | None = None
    epsilon: float = 0.0
    min_block: int = 1


def accept_top_beta(beta: int, tau: float) -> Acceptance:
    """Accept drafted tokens among the best `beta` whose gap to the best is at most `tau`."""
    if beta > _MOST_BEST:
        raise Unsupported(f"--top-beta {beta}: the kernels keep the best {_MOST_BEST} tokens")
    return Acceptance(top_beta=beta, tau=tau)


def accept_within_distance(epsilon: float, values: Tensor) -> Acceptance:
    """Accept numbers that differ from the best by at most `epsilon`; `values` [V] has NaN for other tokens."""
    return Acceptance(values=values, epsilon=epsilon)


def accept_at_least(block: int, rule: Acceptance | None) -> Acceptance:
    """Accept the first `block - 1` drafted tokens always, later ones by the rule (None: exact)."""
    return replace(rule or Acceptance(), min_block=block)

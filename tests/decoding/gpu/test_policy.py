"""The policy of the GPU engine: drafts are as long as saves time."""

import torch

from fairseq_plugins.decoding.gpu.policy import Policy


def policy_of(accepted: int) -> Policy:
    """Return a policy for up to 8 tokens that has counted drafts with this many accepted ones."""
    policy = Policy(8)
    policy.measure(4, lambda width: 1.0 + 0.1 * width)
    for _ in range(1000):
        policy.count(8, accepted)
    return policy


def test_the_length_with_the_most_tokens_a_second_is_chosen() -> None:
    for accepted, width in ((0, 0), (2, 2), (4, 4), (8, 8)):
        policy = policy_of(accepted)
        widths = [policy.width(4) for _ in range(401)]
        assert widths.count(8) == (401 if width == 8 else 2), "longer drafts are tried now and then"
        assert set(widths) <= {width, 8}
        last = 0 if accepted else 8
        for _ in range(3000):
            policy.count(8, last)
        assert [policy.width(4) for _ in range(16)][-1] == last, "older counts fade"


def test_counts_of_validation_may_be_of_longer_drafts() -> None:
    policy, drafted = Policy(8), torch.full((12, 2), 500.0)
    policy.measure(4, lambda width: 1.0 + 0.1 * width)
    policy.learn(drafted, drafted * (torch.arange(12) < 2)[:, None])
    assert policy.width(4) == 2

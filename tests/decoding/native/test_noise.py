"""The noise of the compiled kernels: the bits of `decoding/reference/noise.py`, in all instruction sets."""

import pytest
import torch

from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.reference.noise import gumbel, noise, noise_keys

SETS = kernels().runnable_instruction_sets()


def test_noise_of_words_has_the_same_bits() -> None:
    # Every exponent with many mantissas, both halves.
    words = torch.cat([torch.randint(2**bits, (20_000,)) for bits in range(1, 33)])
    assert torch.equal(torch.from_numpy(kernels().gumbel(words)), gumbel(words))


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("size", [1, 15, 64, 100, 1000])
def test_best_noisy_tokens_are_those_of_pytorch(name: str, size: int) -> None:
    kernels().use_instruction_set(name)
    rows = 200
    torch.manual_seed(size)
    scores = torch.randn(rows, size) * torch.rand(rows, 1) * 10
    scores[torch.rand(rows, size) < 0.3] = -torch.inf
    scores[::7] = scores[::7].clamp(max=0)
    scores[3] = -torch.inf
    keys = noise_keys(2**33 + size, torch.randint(2**32, (rows,)), torch.randint(9, (rows,)))
    positions = torch.randint(50, (rows,))
    found = torch.from_numpy(kernels().noisy_argmax(scores, keys, positions))
    assert torch.equal(found, (scores + noise(keys, positions[:, None], size)[:, 0]).argmax(-1))

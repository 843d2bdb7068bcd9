"""The noise of sampling: its generator, its distribution, and its independence of the batch."""

import pytest
import torch

from fairseq_plugins.decoding.reference.noise import gumbel, noise, noise_keys, philox


def test_philox_gives_the_published_words() -> None:
    # Known answers of Random123 1.09, philox4x32 with 10 rounds.
    ones = 0xFFFFFFFF
    known = {
        (0, 0, 0, 0, 0): (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        (ones, ones, ones, ones, 2**64 - 1): (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    }
    for (*counter, seed), words in known.items():
        numbers = [torch.tensor(word) for word in (*counter, seed & ones, seed >> 32)]
        found = philox(numbers[:4], numbers[4:])
        assert tuple(word.item() for word in found) == words


def test_noise_is_the_gumbel_number_of_its_word() -> None:
    words = torch.cat([torch.randint(2**32, (300_000,)), torch.arange(5000), 2**32 - 1 - torch.arange(5000)])
    words = torch.cat([words, 2**31 + torch.arange(-5000, 5000)])
    p = (words & (2**31 - 1) | 1).double() / 2**32
    expected = torch.where(words < 2**31, -torch.log(-torch.log1p(-p)), -torch.log(-torch.log(p)))
    found = gumbel(words)
    assert found.dtype == torch.float32
    assert (found.double() - expected).abs().max() < 4e-6
    assert -3.2 < found.min() and found.max() < 22.2


def test_noise_has_few_bits_so_that_sums_need_no_rounding_of_products() -> None:
    whole = gumbel(torch.randint(2**32, (100_000,))).double() * 2**19
    assert torch.equal(whole, whole.round())
    assert whole.abs().max() < 2**24


def test_noise_depends_on_its_five_numbers_only() -> None:
    sentences, samples, positions = torch.tensor([5, 9]), torch.tensor([0, 3]), torch.tensor([[0, 1, 2], [7, 8, 9]])
    keys = noise_keys(1, sentences, samples)
    whole = noise(keys, positions, 130)
    assert torch.equal(noise(keys[1:], positions[1:, 1:2], 130), whole[1:, 1:2])
    assert torch.equal(noise(keys, positions, 33), whole[..., :33])
    others = [noise(noise_keys(seed, sentences, samples), positions, 130).flatten(0, 1) for seed in (2, 2**32 + 1)]
    assert len(torch.unique(torch.cat([whole.flatten(0, 1), *others]), dim=0)) == 18


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_best_noisy_score_is_drawn_from_the_softmax(temperature: float) -> None:
    scores = torch.tensor([0.0, 1.0, 2.5, -1.0, 3.0, 2.9, -6.0, 0.5]) / temperature
    count = 100_000
    sentences, zeros = torch.arange(count), torch.zeros(count, 1, dtype=torch.long)
    drawn = (scores + noise(noise_keys(7, sentences, zeros[:, 0]), zeros, 8)[:, 0]).argmax(-1)
    expected = scores.softmax(0) * count
    chi_square = ((drawn.bincount(minlength=8) - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # 7 degrees of freedom, p = 0.001; the seed is fixed

"""Training blocks and glancing, against slow loops over sentences."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.data.block_masking import Blocks, glance, sample_blocks
from tests.strategies import DETERMINISTIC, example_count

PAD, EOS, MASK = 1, 2, 50


def make_batch(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return targets with these numbers of words and EOS, and fairseq's decoder input for them."""
    width = max(lengths) + 1
    target = torch.full((len(lengths), width), PAD)
    previous = torch.full((len(lengths), width), PAD)
    for row, length in enumerate(lengths):
        words = torch.arange(length) + 8 * (row % 3) + 4
        target[row, : length + 1] = torch.cat([words, torch.tensor([EOS])])
        previous[row, : length + 1] = torch.cat([torch.tensor([EOS]), words])
    return target, previous


def draw(lengths: list[int], size: int, count: int, attention: str, seed: int) -> tuple[Blocks, torch.Tensor]:
    target, previous = make_batch(lengths)
    generator = torch.Generator().manual_seed(seed)
    return sample_blocks(target, previous, size, count, attention, PAD, MASK, generator), target


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=5)


@settings(DETERMINISTIC, max_examples=example_count(60))
@given(lengths=LENGTHS, size=st.integers(1, 6), count=st.integers(1, 3), seed=st.integers(0, 999))
def test_causal_blocks_equal_a_loop(lengths: list[int], size: int, count: int, seed: int) -> None:
    blocks, target = draw(lengths, size, count, "prefix-causal", seed)
    width = target.size(1)
    assert blocks.prefix_width == width and torch.equal(blocks.masks, torch.full_like(blocks.masks, MASK))
    for row, length in enumerate(lengths):
        for block in range(count):
            columns = range(block * size, (block + 1) * size)
            prefix = int(blocks.positions[row, width + block * size]) - 1
            assert 0 <= prefix <= length, "a block has at least EOS to predict"
            for offset, column in enumerate(columns):
                place = prefix + offset
                assert int(blocks.positions[row, width + column]) == place + 1
                expected = int(target[row, place]) if place <= length else PAD
                assert int(blocks.targets[row, column]) == expected
                if expected != PAD:
                    assert int(blocks.previous[row, column]) == (int(target[row, place - 1]) if place else EOS)
                sees = blocks.visible[row, width + column].nonzero().flatten().tolist()
                assert sees == [*range(prefix + 1), *(width + other for other in columns)]
        for place in range(width):
            assert blocks.visible[row, place].nonzero().flatten().tolist() == list(range(place + 1))


@settings(DETERMINISTIC, max_examples=example_count(40))
@given(lengths=LENGTHS, size=st.integers(1, 6), seed=st.integers(0, 999))
def test_full_attention_equals_a_loop(lengths: list[int], size: int, seed: int) -> None:
    blocks, target = draw(lengths, size, 1, "full", seed)
    width = target.size(1)
    for row in range(len(lengths)):
        prefix = int(blocks.positions[row, width]) - 1
        block = list(range(width, width + size))
        for place in range(width):
            expected = [*range(prefix + 1), *block] if place <= prefix else [place]
            assert blocks.visible[row, place].nonzero().flatten().tolist() == expected
        for mask in block:
            assert blocks.visible[row, mask].nonzero().flatten().tolist() == [*range(prefix + 1), *block]


def test_prefix_lengths_cover_the_sentence() -> None:
    blocks, target = draw([4] * 400, 2, 1, "prefix-causal", 0)
    counts = torch.bincount(blocks.positions[:, target.size(1)] - 1, minlength=5)
    assert len(counts) == 5 and counts.min() > 40


@settings(DETERMINISTIC, max_examples=example_count(60))
@given(
    lengths=LENGTHS,
    size=st.integers(1, 6),
    count=st.integers(1, 3),
    ratio=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    seed=st.integers(0, 999),
)
def test_glancing_reveals_a_share_of_errors(lengths: list[int], size: int, count: int, ratio: float, seed: int) -> None:
    blocks, _ = draw(lengths, size, count, "prefix-causal", seed)
    torch.manual_seed(seed)
    predicted = torch.where(torch.rand(blocks.targets.shape) < 0.5, blocks.targets, 3)
    glanced = glance(blocks, predicted, ratio, PAD)
    for row in range(len(lengths)):
        for block in range(count):
            part = slice(block * size, (block + 1) * size)
            targets = blocks.targets[row, part]
            wrong = int(((predicted[row, part] != targets) & (targets != PAD)).sum())
            revealed = (glanced.masks[row, part] != MASK).nonzero().flatten()
            assert len(revealed) == int(wrong * ratio)
            assert torch.equal(glanced.masks[row, part][revealed], targets[revealed])
            assert (targets[revealed] != PAD).all()
            kept = glanced.targets[row, part] != PAD
            assert torch.equal(kept, (targets != PAD) & (glanced.masks[row, part] == MASK))
    assert torch.equal(glanced.tokens[:, : blocks.prefix_width], blocks.tokens[:, : blocks.prefix_width])

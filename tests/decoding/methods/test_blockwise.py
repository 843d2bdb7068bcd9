"""Blockwise decoding: heads draft, the first one verifies."""

import math
from typing import Any

import pytest
import torch

from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer, blockwise_transformer
from tests.support import Options, decode, ids, make_args, make_sample, make_task


def make_blockwise(seed: int, vocabulary: int = 12, **options: Any) -> tuple[Any, BlockwiseTransformer]:
    task = make_task(vocabulary)
    torch.manual_seed(seed)
    args = make_args(blockwise_heads=4, **options)
    blockwise_transformer(args)
    model = BlockwiseTransformer.build_model(args, task)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return task, model.eval()


def test_fresh_heads_with_identity_are_the_base_model() -> None:
    task = make_task(12)
    args = make_args(blockwise_heads=3, identity_first_head=True)
    blockwise_transformer(args)
    torch.manual_seed(0)
    model = BlockwiseTransformer.build_model(args, task).eval()
    hidden = torch.randn(2, 3, 16)
    states = model.decoder.head_states(hidden, 1, 3)
    torch.testing.assert_close(states, hidden[:, :, None].expand(-1, -1, 3, -1))
    assert model.decoder.head_states(hidden, 2, 3).shape == (2, 3, 2, 16)


@pytest.mark.parametrize("minimum", [1, 2, 4])
def test_minimum_blocks(minimum: int) -> None:
    """m tokens take m/k + 1 to m iterations; with a minimum block of k exactly m/k + 1."""
    task, model = make_blockwise(1)
    sample, options = make_sample(task, [6], 1), Options("blockwise", min_block=minimum)
    search: dict[str, Any] = {"max_len_b": 20, "min_len": 20}
    drafted, stats = decode([model], task, sample, options, engine=Engine(), **search)
    tokens = len(ids(drafted)[0])
    assert 1 + 20 // 4 <= stats[0].iterations <= math.ceil(tokens / minimum) + 1 and tokens == 21
    assert minimum < 4 or stats[0].iterations == 1 + 20 // 4

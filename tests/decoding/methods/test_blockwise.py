"""Blockwise decoding: heads draft, the first one verifies."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.verifier import Verifier
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer, blockwise_transformer
from tests.strategies import SEARCHES, SOURCES, TRANSFORMERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_args,
    make_sample,
    make_task,
)


def make_blockwise(seed: int, vocabulary: int = 12, **options: Any) -> tuple[Any, BlockwiseTransformer]:
    task = make_task(vocabulary)
    torch.manual_seed(seed)
    args = make_args(blockwise_heads=4, **options)
    blockwise_transformer(args)
    model = BlockwiseTransformer.build_model(args, task)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return task, model.eval()


@settings(UNSHRUNK, max_examples=example_count(20))
@given(
    block_size=st.sampled_from([None, 2, 3]),
    identity=st.booleans(),
    fixed_width=st.booleans(),
    options=TRANSFORMERS,
    sources=SOURCES,
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_exact_blockwise_equals_fairseq_everywhere(
    block_size: int | None,
    identity: bool,
    fixed_width: bool,
    options: dict[str, Any],
    sources: list[int],
    search: dict[str, Any],
    seed: int,
) -> None:
    task, model = make_blockwise(seed, identity_first_head=identity, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([model], task, sample, **search)
    how = Options("blockwise", block_size, fixed_width=fixed_width)
    drafted, _ = decode([model], task, sample, how, **search)
    assert_same_output(drafted, expected)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_blockwise_batch_sizes(batch_size: int) -> None:
    task, model = make_blockwise(3, 9, identity_first_head=True)
    sample = make_sample(task, [0, 1, 33, 7, 2, 19, 0, *range(25)][:batch_size])
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    drafted, stats = decode([model], task, sample, Options("blockwise"), max_len_b=30)
    assert_same_output(drafted, expected)
    assert emitted_per_iteration(stats) > 1.7


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
def test_one_model_call_an_iteration(monkeypatch: pytest.MonkeyPatch, minimum: int) -> None:
    """m tokens take m/k + 1 to m calls; with a minimum block of k exactly m/k + 1."""
    calls = []
    verify = Verifier.verify

    def spy(self: Verifier, *arguments: Any) -> Any:
        calls.append(1)
        return verify(self, *arguments)

    monkeypatch.setattr(Verifier, "verify", spy)
    task, model = make_blockwise(1)
    sample, options = make_sample(task, [6], 1), Options("blockwise", min_block=minimum)
    search: dict[str, Any] = {"max_len_b": 20, "min_len": 20}
    drafted, stats = decode([model], task, sample, options, engine=Engine(), **search)
    tokens = len(ids(drafted)[0])
    assert tokens == 21 and len(calls) == stats[0].iterations
    assert 1 + math.ceil((tokens - 1) / 4) <= len(calls) <= math.ceil(tokens / minimum) + 1
    if minimum == 4:
        assert len(calls) == 1 + math.ceil((tokens - 1) / 4) <= tokens / 4 + 1
    on_kernels, same = decode([model], task, sample, options, **search)
    assert ids(on_kernels) == ids(drafted) and same[0].emitted == stats[0].emitted

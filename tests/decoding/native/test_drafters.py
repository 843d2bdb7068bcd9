"""Compare the drafts of the kernels and of the loop in PyTorch: all drafts are accepted, so outputs show them."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.engine import Engine
from tests.strategies import SOURCES, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    ids,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)

ACCEPT_ALL = {"top_beta": 1000, "tau": float("inf"), "fp32_drafts": True}


def drafted(models: list, task: Any, sample: dict[str, Any], drafter: Any, block_size: int) -> list[list[int]]:
    """Decode with every draft accepted on both backends; return the outputs, which must be equal."""
    how = Options("gad++", block_size, **ACCEPT_ALL)
    ours, stats = decode(models, task, sample, how, drafter, max_len_b=70)
    theirs, expected = decode(models, task, sample, how, drafter, engine=Engine(), max_len_b=70)
    assert_same_output(ours, theirs, tolerance=1e-3)
    assert [sentence.emitted for sentence in stats] == [sentence.emitted for sentence in expected]
    return ids(ours)


@settings(UNSHRUNK, max_examples=example_count(20))
@given(
    learned=st.booleans(),
    features=st.booleans(),
    sources=SOURCES,
    block_size=st.sampled_from([3, 10, 25]),
    seed=st.integers(0, 500),
)
def test_mask_embeddings_are_those_of_training(
    learned: bool, features: bool, sources: list[int], block_size: int, seed: int
) -> None:
    """Mask embeddings are a soft copy of the source, also at positions beyond the end of a learned table."""
    task = make_task(30)
    model = make_transformer(task, seed, ending=False, max_target_positions=90)
    options: dict[str, Any] = {"decoder_learned_pos": learned, "max_target_positions": 48 if learned else 90}
    options |= {"drafter_context": "features"} if features else {}
    drafter = make_drafter(task, seed + 1, verifier=model, src_embedding_copy=True, **options)
    torch.nn.init.normal_(drafter.decoder.mask_vector)
    sample = make_sample(task, sources, seed)
    drafted([model], task, sample, drafter, block_size)


@pytest.mark.parametrize("features", [False, True], ids=["tokens", "features"])
def test_mask_embeddings_change_the_drafts(features: bool) -> None:
    """The test above compares drafts that the soft copy decides: without it they are others."""
    task = make_task(30)
    model = make_transformer(task, 1, ending=False)
    options = {"drafter_context": "features"} if features else {}
    sample = make_sample(task, [5, 9], 1)
    drafter = make_drafter(task, 2, verifier=model, src_embedding_copy=True, **options)
    torch.nn.init.normal_(drafter.decoder.mask_vector)
    without = make_drafter(task, 2, verifier=model, **options)
    assert drafted([model], task, sample, drafter, 10) != drafted([model], task, sample, without, 10)


@pytest.mark.parametrize("cell", [{}, {"transition_state": 5}], ids=["pairs", "cell"])
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_paths(cell: dict[str, int], share: float) -> None:
    """Transition scores with and without a recurrent state, over all tokens or the frequent ones."""
    task = make_task(40)
    model = make_transformer(task, 3, ending=False)
    drafter = make_drafter(task, 4, verifier=model, transition_rank=3, **cell)
    counts = torch.arange(40)
    counts[:4] = torch.tensor([0, 0, 50, 1])
    drafter.decoder.target_counts.copy_(counts)
    sample = make_sample(task, [5, 0, 17, 9], 3)
    how = Options("gad++", 9, draft_vocabulary=share, **ACCEPT_ALL)
    ours, _ = decode([model], task, sample, how, drafter, max_len_b=40)
    theirs, _ = decode([model], task, sample, how, drafter, engine=Engine(), max_len_b=40)
    assert_same_output(ours, theirs, tolerance=1e-3)
    plain = make_drafter(task, 4, verifier=model)
    assert ids(ours) != ids(decode([model], task, sample, how, plain, max_len_b=40)[0])

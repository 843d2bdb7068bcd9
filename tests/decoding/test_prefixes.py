"""`--prefix-size` with free positions inside and before the prefix, as with `--left-pad-target`."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search.rules import TopBeta, exact, with_min_block
from tests.strategies import SOURCES, UNSHRUNK, example_count
from tests.support import (
    Options,
    ScriptedDrafter,
    always_right,
    always_wrong,
    assert_same_hypotheses,
    assert_same_output,
    decode,
    fairseq_beam,
    fairseq_greedy,
    ids,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)

PAD = 1
ENGINES = {"kernels": lambda: None, "PyTorch": Engine}
DECODERS = [Options("greedy"), Options("iad"), Options("jacobi"), Options("gad", 4)]


def prefixes(sentences: int, width: int, seed: int) -> torch.Tensor:
    """Return prefixes [B, width] with free positions: before the words, behind them, and anywhere."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(4, 12, (sentences, width), generator=generator)
    free = torch.rand(rows.shape, generator=generator) < 0.4
    for row in range(0, sentences, 2):
        free[row] = free[row].sort(descending=row % 4 == 0).values
    return rows.masked_fill(free, PAD)


@settings(UNSHRUNK, max_examples=example_count(40))
@given(sources=SOURCES, width=st.integers(1, 6), longest=st.sampled_from([3, 20]), seed=st.integers(0, 999))
def test_tokens_are_those_of_fairseq(sources: list[int], width: int, longest: int, seed: int) -> None:
    task = make_task(12)
    verifier, drafter = make_transformer(task, seed), make_drafter(task, seed)
    sample = make_sample(task, sources, seed)
    search: dict[str, Any] = {"max_len_b": longest, "prefix_tokens": prefixes(len(sources), width, seed)}
    expected = fairseq_greedy([verifier], task, sample, **search)
    for method in DECODERS:
        for make_engine in ENGINES.values():
            model = drafter if method.spec.name == "gad" else None
            ours, _ = decode([verifier], task, sample, method, model, engine=make_engine(), **search)
            assert_same_output(ours, expected)
    hypotheses = fairseq_beam([verifier], task, sample, 3, **search)
    for make_engine in ENGINES.values():
        ours, _ = decode([verifier], task, sample, Options("fast-beam"), engine=make_engine(), beam_size=3, **search)
        assert_same_hypotheses(ours, hypotheses)


@pytest.mark.parametrize("script", [always_right, always_wrong])
@pytest.mark.parametrize("rule", [exact, TopBeta(3, 50.0), with_min_block(3, exact)])
def test_drafts_do_not_replace_forced_tokens(script: Any, rule: Any) -> None:
    """Relaxed rules may accept other tokens, but only where the prefix leaves a position free."""
    task = make_task(12)
    verifier, sample, given_tokens = make_transformer(task, 3), make_sample(task, [5, 3, 8]), prefixes(3, 7, 1)
    search: dict[str, Any] = {"max_len_b": 20, "min_len": 8, "prefix_tokens": given_tokens}
    expected = ids(fairseq_greedy([verifier], task, sample, **search))
    ours, _ = decode([verifier], task, sample, ScriptedDrafter(script(expected), 4), rule=rule, **search)
    relaxed, _ = decode(
        [verifier], task, sample, Options("gad++", 4, top_beta=3, tau=50.0), make_drafter(task), **search
    )
    for tokens in (ids(ours), ids(relaxed)):
        for row, forced in zip(tokens, given_tokens.tolist(), strict=True):
            for token, wanted in zip(row, forced, strict=False):
                assert wanted in (PAD, token)
    if rule is exact or script is always_right:
        assert ids(ours) == expected

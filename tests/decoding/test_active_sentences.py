"""`--active-sentences`: output and iterations do not depend on when a sentence is admitted."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.recording.stats import SentenceStats
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.engine import Engine
from tests.cases import Case, cases
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.decoding.methods.test_untrained import METHODS
from tests.errors import refused
from tests.learned import learned_drafter
from tests.strategies import BLOCK_SIZES, DRAFTERS, FEATURE_DRAFTERS, SEARCHES, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)

# Enough sentences that some wait.
SOURCES = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40)), min_size=4, max_size=9)
ACTIVE = st.integers(1, 5)


def check(
    models: list, task: Any, sample: dict, method: Options, active: int, model: Any = None, **search: Any
) -> list[SentenceStats]:
    """Check output and iterations against fairseq and a run of all sentences at once; return the statistics.

    Uses the loop in PyTorch: the compiled kernels admit sentences themselves (native/test_native_backend.py).
    """
    expected = fairseq_greedy(models, task, sample, **search)
    _, at_once = decode(models, task, sample, method, model, engine=Engine(), **search)
    how = {"engine": Engine(), "active_sentences": active}
    drafted, stats = decode(models, task, sample, method, model, **how, **search)
    assert_same_output(drafted, expected)
    # The window of jacobi is 1.5 times the longest source of the batch, and the pool of a sentence
    # near its limit depends on the lengths of the others.
    if method.spec.name != "jacobi" and not getattr(method.options, "jacobi_pool", False):
        assert [sentence.emitted for sentence in stats] == [sentence.emitted for sentence in at_once]
    assert {sentence.batch_size for sentence in stats} == {min(active, len(stats))}
    return stats


def check_case(case: Case, method: Options, active: int) -> None:
    """Check a random case."""
    check([case.verifier], case.task, case.sample, method, active, case.drafter, **case.search)


@settings(UNSHRUNK, max_examples=example_count(40))
@given(
    case=cases(12, st.one_of(DRAFTERS, FEATURE_DRAFTERS), sources=SOURCES),
    block_size=BLOCK_SIZES,
    active=ACTIVE,
)
def test_trained_drafters(case: Case, block_size: int, active: int) -> None:
    check_case(case, Options("gad", block_size), active)


@settings(UNSHRUNK, max_examples=example_count(40))
@given(case=cases(9, sources=SOURCES), method=st.sampled_from([Options("greedy"), *METHODS]), active=ACTIVE)
def test_untrained_methods(case: Case, method: Options, active: int) -> None:
    check_case(case, method, active)


@settings(UNSHRUNK, max_examples=example_count(15))
@given(sources=SOURCES, search=SEARCHES, active=ACTIVE, seed=st.integers(0, 1000))
def test_blockwise(sources: list[int], search: dict[str, Any], active: int, seed: int) -> None:
    task, model = make_blockwise(seed, 9, identity_first_head=True)
    check([model], task, make_sample(task, sources, seed), Options("blockwise"), active, **search)


@pytest.mark.parametrize("options", [{"decoder_layers": 1}, {"share_encoder": True}])
def test_iad_with_a_fallback(options: dict[str, Any]) -> None:
    task = make_task(9)
    verifier = make_transformer(task, 3)
    sample = make_sample(task, [4, 0, 12, 7, 5, 20, 3], 3)
    outputs = ids(fairseq_greedy([verifier], task, sample, max_len_b=20))
    drafter = learned_drafter(task, verifier, sample, outputs, block_size=6, **options)
    stats = check([verifier], task, sample, Options("iad", iad_fallback="gad"), 2, drafter, max_len_b=20)
    assert emitted_per_iteration(stats) > 1.5


def test_ensembles_and_nat() -> None:
    task = make_task(12)
    models = [make_transformer(task, 1), make_transformer(task, 2, decoder_layers=1)]
    sample = make_sample(task, [4, 0, 12, 7, 5, 20, 3])
    check(models, task, sample, Options("greedy"), 3, max_len_b=20)
    drafter = make_drafter(task, 4, block_size=5, decoder_layers=1)
    at_once, in_turn = (
        decode(models, task, sample, Options("nat"), drafter, max_len_b=20, active_sentences=active)[0]
        for active in (0, 3)
    )
    assert ids(in_turn) == ids(at_once)


def test_prefixes_are_refused() -> None:
    """Refused by the loop in PyTorch; the compiled kernels support them."""
    task = make_task(12)
    model, sample = make_transformer(task), make_sample(task, [3, 4, 5])
    search = {"prefix_tokens": torch.full((3, 1), 7), "max_len_b": 20}
    with refused("--active-sentences.*--prefix-size"):
        decode([model], task, sample, Drafter(), active_sentences=2, **search)
    ours, _ = decode([model], task, sample, Options("greedy"), active_sentences=2, **search)
    assert_same_output(ours, fairseq_greedy([model], task, sample, **search))

"""Drafts that users bring: where they are copied from, and that they never change the output."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.methods.reuse import drafts_of as usable_drafts
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.reference.drafters.copying import CopyDrafter, draft_texts
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.errors import ConfigurationError
from tests.cases import Case, cases
from tests.decoding.methods.without_model import blocks_of, drafts_of
from tests.decoding.native.test_native_backend import NATIVE, PREFIXES, prefixed
from tests.learned import learned_drafter
from tests.strategies import DRAFTERS, FEATURE_DRAFTERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_dictionary,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)

A, B, C, D, E, F, EOS = 10, 11, 12, 13, 14, 15, 2


def with_drafts(*drafts: list[int], width: int = 32) -> CopyDrafter:
    """The drafter with drafts for every batch of one sentence."""
    texts = draft_texts(usable_drafts({"drafts": [drafts]}, make_dictionary(50)))
    return CopyDrafter(lambda sample: texts.clone(), "nearest", width)


def test_the_draft_is_proposed_from_its_beginning() -> None:
    assert drafts_of(with_drafts([A, B, C]), [5], [[]]) == [[A, B, C, EOS]]
    assert drafts_of(with_drafts([A, B, C], width=2), [5], [[]]) == [[A, B]]
    assert drafts_of(with_drafts([A, B, EOS, C]), [5], [[]]) == [[A, B, EOS]]
    for nothing in (with_drafts(), with_drafts([]), with_drafts([EOS])):
        assert drafts_of(nothing, [5], [[], [A]]) == [[], []]


def test_the_position_is_found_again() -> None:
    draft = [A, B, C, D, E]
    # Replaced: what follows the replaced token.
    assert drafts_of(with_drafts(draft), [5], [[], [20]])[1] == [B, C, D, E, EOS]
    # Inserted: B is found again after it.
    assert drafts_of(with_drafts(draft), [5], [[], [A, 20], [A, 20, B]])[1:] == [[C, D, E, EOS], [C, D, E, EOS]]
    # Left out: C is found behind B.
    assert drafts_of(with_drafts(draft), [5], [[], [A, C]])[1] == [D, E, EOS]
    # A word that stands twice: the one that is near.
    twice = [A, B, *range(20, 40), A, C]
    assert drafts_of(with_drafts(twice), [5], [[], [A]])[1][0] == B
    # Beyond the end of the draft.
    assert drafts_of(with_drafts([A]), [5], [[], [20, 21]])[1] == []


def test_the_better_of_several_drafts_is_copied() -> None:
    drafter = with_drafts([A, B, C], [A, D, E])
    assert drafts_of(drafter, [5], [[], [A, D], [A, D, 20]]) == [[A, B, C, EOS], [E, EOS], [EOS]]


def test_blocks() -> None:
    draft = [A, B, C, D, E, F]
    assert blocks_of(with_drafts(draft), [5], [*draft, EOS]) == [7]
    assert blocks_of(with_drafts(draft), [5], [A, B, 20, D, E, F, EOS]) == [3, 4]
    assert blocks_of(with_drafts(draft), [5], [A, B, 20, C, D, E, F, EOS]) == [3, 1, 4]
    assert blocks_of(with_drafts(draft), [5], [A, B, D, E, F, EOS]) == [3, 3]


def drafts_of_case(case: Case, kinds: list[str], seed: int) -> list[list[list[int]]]:
    """Of every sentence a few drafts: right, wrong, empty, random, too long, or none."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary, drafts = case.vocabulary, []
    for row, right in enumerate(ids(case.fairseq())):
        random = torch.randint(vocabulary, (int(torch.randint(1, 60, (1,), generator=generator)),), generator=generator)
        edited = list(right)
        place = int(torch.randint(len(right), (1,), generator=generator))
        edited[place : place + 1] = [[], [4], [4, 5]][seed % 3]
        known = {
            "right": right,
            "edited": edited,
            "wrong": [(token + 1) % vocabulary for token in right],
            "empty": [],
            "random": random.tolist(),
            "long": [*right[:-1], *random.tolist(), *[5] * 80],
        }
        drafts.append([known[kind] for kind in kinds[row % 2 :]])
    return drafts


@settings(UNSHRUNK, max_examples=example_count(80))
@given(
    case=cases([9, 30], st.one_of(st.none(), DRAFTERS, FEATURE_DRAFTERS), NATIVE),
    kinds=st.lists(st.sampled_from(["right", "edited", "wrong", "empty", "random", "long"]), max_size=3),
    width=st.sampled_from([None, None, 1, 3]),
    prefix=PREFIXES,
    seed=st.integers(0, 100),
)
def test_the_output_is_fairseqs_with_any_drafts(
    case: Case, kinds: list[str], width: int | None, prefix: list[list[int]] | None, seed: int
) -> None:
    search = prefixed(case.search, prefix, len(case.sources))
    expected = case.fairseq(**search)
    sample = {**case.sample, "drafts": drafts_of_case(case, kinds, seed)}
    fallback = {} if case.drafter is None else {"iad_fallback": "gad", "fp32_drafts": True}
    models, how = [case.verifier], Options("reuse", width, **fallback)
    native, stats = decode(models, case.task, sample, how, case.drafter, **search)
    reference, reference_stats = decode(models, case.task, sample, how, case.drafter, engine=Engine(), **search)
    assert_same_output(native, expected)
    assert_same_output(reference, expected)
    assert [sentence.emitted for sentence in stats] == [sentence.emitted for sentence in reference_stats]
    # What the policy drafts depends on running times, the output does not.
    chosen, _ = decode(
        models, case.task, sample, Options("reuse", width, fixed_width=False, **fallback), case.drafter, **search
    )
    assert_same_output(chosen, expected)
    if prefix is None:
        active = {"engine": Engine(), "active_sentences": 2}
        in_turns, stats = decode(models, case.task, sample, how, case.drafter, **active, **search)
        assert_same_output(in_turns, expected)
        assert [sentence.emitted for sentence in stats] == [sentence.emitted for sentence in reference_stats]


@pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])
def test_right_drafts_save_iterations(engine: Engine | None) -> None:
    task = make_task(40)
    verifier, sample = make_transformer(task, 3), make_sample(task, [4, 12, 7, 20])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    outputs = ids(expected)
    sample["drafts"] = [[outputs[0]], [], [[5], outputs[2]], [outputs[3][2:]]]
    found, stats = decode([verifier], task, sample, Options("reuse"), engine=engine, max_len_b=30)
    assert_same_output(found, expected)
    assert stats[0].iterations == 1 and stats[1].iterations == len(outputs[1]) and stats[2].iterations <= 3
    assert emitted_per_iteration(stats[3:]) > 2


@pytest.mark.parametrize("fixed_width", [True, False])
@pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])
def test_a_trained_drafter_helps_where_drafts_end(engine: Engine | None, fixed_width: bool) -> None:
    task = make_task(9)
    verifier, sample = make_transformer(task, 3), make_sample(task, [4, 0, 12, 7, 20, 3], 3)
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    outputs = ids(expected)
    drafter = learned_drafter(task, verifier, sample, outputs, block_size=6, drafter_context="features")
    sample["drafts"] = [[output[:5]] if row % 2 else [] for row, output in enumerate(outputs)]
    found: dict[str, float] = {}
    for fallback in ("none", "gad"):
        how = Options("reuse", 9, iad_fallback=fallback, fixed_width=fixed_width)
        model = drafter if fallback == "gad" else None
        generator, stats = make_generator([verifier], task, how, model, engine=engine, max_len_b=30)
        if generator.backend.name == "native" and not fixed_width:
            steps, drafts, rows = {1: 9, 2: 18}, {1: 1e-3, 2: 2e-3}, {1: 1, 99: 1}
            generator.backend.method.policy.costs = kernels().Costs(steps, drafts, rows)
        assert_same_output(generator.generate([verifier], sample), expected)
        found[fallback] = stats.iterations
    assert found["gad"] < 0.8 * found["none"]


@pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])
def test_ids_outside_of_the_dictionary_are_refused(engine: Engine | None) -> None:
    task = make_task(40)
    sample = {**make_sample(task, [4]), "drafts": [[[5, 40]]]}
    with pytest.raises(ConfigurationError, match="token 40 is not in the dictionary of 40 symbols"):
        decode([make_transformer(task)], task, sample, Options("reuse"), engine=engine)

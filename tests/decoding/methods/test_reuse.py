"""Drafts that users bring: where they are copied from, and that they never change the output."""

import pytest

from fairseq_plugins.decoding.methods.reuse import drafts_of as usable_drafts
from fairseq_plugins.decoding.reference.drafters.copying import CopyDrafter, draft_texts
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.errors import ConfigurationError
from tests.decoding.methods.without_model import blocks_of, drafts_of
from tests.support import (
    Options,
    assert_same_output,
    decode,
    fairseq_greedy,
    ids,
    make_all,
    make_dictionary,
    make_drafter,
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


@pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])
def test_ids_outside_of_the_dictionary_are_refused(engine: Engine | None) -> None:
    task = make_task(40)
    sample = {**make_sample(task, [4]), "drafts": [[[5, 40]]]}
    with pytest.raises(ConfigurationError, match="token 40 is not in the dictionary of 40 symbols"):
        decode([make_transformer(task)], task, sample, Options("reuse"), engine=engine)


@pytest.mark.parametrize("fallback", ["none", "gad"])
def test_drafts_beyond_the_longest_output_take_no_memory(fallback: str) -> None:
    task, model, sample = make_all(40, 3, [5, 3, 8])
    expected = fairseq_greedy([model], task, sample, max_len_b=20)
    sample["drafts"] = [[tokens] for tokens in ids(expected)]
    drafter = make_drafter(task, 1, 5, model) if fallback == "gad" else None
    how = Options("reuse", 10**12, fixed_width=False, iad_fallback=fallback)
    ours, _ = decode([model], task, sample, how, drafter, max_len_b=20)
    assert_same_output(ours, expected)

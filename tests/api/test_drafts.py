"""`translate(drafts=...)`: drafts never change the text, and right ones save iterations."""

from typing import Any

import pytest

import fairseq_plugins
from fairseq_plugins.api import Model
from fairseq_plugins.errors import ConfigurationError
from tests.support import REPOSITORY

MULTI30K = REPOSITORY / "checkpoints" / "multi30k.en-de"
CAPTIONS = ["A man is riding a bicycle.", "Two dogs play in the snow near a red house .", "", "People"]


@pytest.fixture(scope="module")
def model() -> Model:
    return fairseq_plugins.load(MULTI30K, decoder="reuse", fixed_width=True, device="cpu")


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return fairseq_plugins.load(MULTI30K, decoder="greedy", device="cpu").translate(CAPTIONS)


def test_earlier_output_as_drafts(model: Model, expected: list[str]) -> None:
    assert model.translate(CAPTIONS) == expected
    without = model.statistics.iterations
    assert without == model.statistics.tokens
    assert model.translate(CAPTIONS, drafts=expected, batch_size=2) == expected
    # An empty draft leaves one token to decode.
    assert model.statistics.iterations <= len(CAPTIONS) + len(expected[2].split()) + 1
    assert model.translate(CAPTIONS[1], drafts=expected[1]) == expected[1]
    assert model.statistics.iterations == 1
    # One of several drafts is right.
    several = [None, ["Zwei Katzen.", expected[1]], [], expected[3]]
    assert model.translate(CAPTIONS, drafts=several) == expected
    assert without / 3 < model.statistics.iterations < without


@pytest.mark.parametrize(
    "drafts",
    [
        [None] * 4,
        ["", " ", "\n", ""],
        ["чужа мова"] * 4,
        ["ein " * 500] * 4,
        ["People ", "<unk> <pad> </s>", "▁", "\0"],
    ],
    ids=["none", "empty", "another language", "long", "odd"],
)
def test_any_drafts(model: Model, expected: list[str], drafts: list[Any]) -> None:
    assert model.translate(CAPTIONS, drafts=drafts) == expected


def test_subwords_as_drafts(model: Model, expected: list[str]) -> None:
    tokens = [model.tokenize(caption) for caption in CAPTIONS]
    drafts = [[translation.tokens] for translation in model.translate(CAPTIONS, return_scores=True)]
    assert [result.text for result in model.translate_batch(tokens, drafts=drafts)] == expected
    assert model.statistics.iterations <= len(CAPTIONS) + len(drafts[2][0]) + 1


def test_what_is_refused(model: Model) -> None:
    with pytest.raises(ConfigurationError, match="drafts: are for 1 sentences, and the text has 4"):
        model.translate(CAPTIONS, drafts=["one"])
    with pytest.raises(ConfigurationError, match="drafts: are one string, and the text is a list"):
        model.translate(CAPTIONS, drafts="one")
    greedy = fairseq_plugins.load(MULTI30K, decoder="greedy", device="cpu")
    with pytest.raises(ConfigurationError, match='drafts: are not for decoder greedy; load with decoder="reuse"'):
        greedy.translate(CAPTIONS, drafts=CAPTIONS)

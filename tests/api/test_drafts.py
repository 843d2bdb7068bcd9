"""`translate(drafts=...)`: drafts never change the text, and right ones save iterations."""

from typing import Any

import pytest

from tests.api.released import CAPTIONS, loaded
from tests.errors import refused


def test_earlier_output_as_drafts() -> None:
    model, expected = loaded("reuse", fixed_width=True), loaded("greedy").translate(CAPTIONS)
    assert model.translate(CAPTIONS) == expected
    without = model.statistics.iterations
    assert without == model.statistics.tokens
    assert model.translate(CAPTIONS, drafts=expected, batch_size=2) == expected
    # An empty draft leaves one token to decode.
    least = len(CAPTIONS) + len(expected[2].split()) + 1
    assert model.statistics.iterations <= least
    assert model.translate(CAPTIONS[1], drafts=expected[1]) == expected[1] and model.statistics.iterations == 1
    # One of several drafts is right.
    several = [None, ["Zwei Katzen.", expected[1]], [], expected[3]]
    assert model.translate(CAPTIONS, drafts=several) == expected
    assert without / 3 < model.statistics.iterations < without
    # Subwords as drafts.
    drafts = [[translation.tokens] for translation in model.translate(CAPTIONS, return_scores=True)]
    found = model.translate_batch([model.tokenize(caption) for caption in CAPTIONS], drafts=drafts)
    assert [result.text for result in found] == expected and model.statistics.iterations <= least


@pytest.mark.parametrize(
    "drafts", [["", " ", "\n", ""], ["чужа мова"] * 4, ["ein " * 500] * 4, ["People ", "<unk> <pad> </s>", "▁", "\0"]]
)
def test_any_drafts(drafts: list[Any]) -> None:
    assert loaded("reuse", fixed_width=True).translate(CAPTIONS, drafts=drafts) == loaded("greedy").translate(CAPTIONS)


def test_text_that_grows_word_by_word() -> None:
    """Every translation is the next one's draft."""
    model = loaded("reuse", fixed_width=True)
    words, translation = CAPTIONS[1].split(), None
    tokens = iterations = 0
    for count in range(1, len(words) + 1):
        text = " ".join(words[:count])
        translation = model.translate(text, drafts=translation)
        tokens, iterations = tokens + model.statistics.tokens, iterations + model.statistics.iterations
        assert translation == model.translate(text)
    assert tokens > 2 * iterations
    # Nothing changed: one iteration.
    assert model.translate(text, drafts=translation) == translation and model.statistics.iterations == 1


def test_what_is_refused() -> None:
    model, greedy = loaded("reuse", fixed_width=True), loaded("greedy")
    with refused("drafts: are for 1 sentences, and the text has 4"):
        model.translate(CAPTIONS, drafts=["one"])
    with refused("drafts: are one string, and the text is a list"):
        model.translate(CAPTIONS, drafts="one")
    with refused("drafts: are not for decoder greedy; load with --decoder reuse"):
        greedy.translate(CAPTIONS, drafts=CAPTIONS)

"""`model.session()`: text that grows word by word."""

import pytest

import fairseq_plugins
from fairseq_plugins.errors import ConfigurationError
from tests.support import REPOSITORY

MULTI30K = REPOSITORY / "checkpoints" / "multi30k.en-de"
CAPTION = "Two dogs play in the snow near a red house .".split()


def test_every_translation_is_the_next_ones_draft() -> None:
    model = fairseq_plugins.load(MULTI30K, decoder="reuse", fixed_width=True, device="cpu")
    session = model.session()
    assert session.translation is None
    tokens = iterations = 0
    for words in range(1, len(CAPTION) + 1):
        text = " ".join(CAPTION[:words])
        translation = session.translate(text)
        tokens, iterations = tokens + model.statistics.tokens, iterations + model.statistics.iterations
        assert translation == session.translation == model.translate(text)
    assert tokens > 2 * iterations
    # Nothing changed: one iteration.
    assert session.translate(text) == translation and model.statistics.iterations == 1


def test_another_decoder_is_refused() -> None:
    model = fairseq_plugins.load(MULTI30K, decoder="greedy", device="cpu")
    with pytest.raises(ConfigurationError, match='session: is not for decoder greedy; load with decoder="reuse"'):
        model.session()

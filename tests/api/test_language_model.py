"""`load(lm_path=...)`: a language model joins beam search, as with fairseq-generate."""

import shutil
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.errors import ConfigurationError
from tests.language_model import write_language_model
from tests.support import REPOSITORY

CLDR = REPOSITORY / "checkpoints" / "cldr.en-de"
TEXTS = ["Austrian German", "the day before yesterday", "in 3 months", "Chinese (Traditional)", "next week"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a random language model, lm.pt, and its dictionary, dict.txt."""
    folder = tmp_path_factory.mktemp("lm")
    for name in ("dict.en.txt", "dict.de.txt", "subwords.model", "verifier.pt"):
        shutil.copy(CLDR / name, folder)
    write_language_model(folder, CLDR / "dict.de.txt")
    return folder


def test_the_language_model_joins_both_searches(data: Path) -> None:
    options = {"lm_path": str(data / "lm.pt"), "lm_weight": 0.6}
    found = [
        fairseq_plugins.load(data, decoder=decoder, device="cpu", source_lang="en", target_lang="de", **more).translate(
            TEXTS, beam=3
        )
        for decoder, more in (("fast-beam", options), ("beam", options), ("beam", {}))
    ]
    assert found[0] == found[1] != found[2]


def test_other_decoders_refuse_it(data: Path) -> None:
    with pytest.raises(ConfigurationError, match="lm_path"):
        fairseq_plugins.load(
            data, decoder="greedy", device="cpu", source_lang="en", target_lang="de", lm_path=str(data / "lm.pt")
        )
    with pytest.raises(ConfigurationError, match="lm_path"):
        fairseq_plugins.load(
            data, decoder="fast-beam", device="cpu", source_lang="en", target_lang="de", lm_path=str(data / "none.pt")
        )

"""`load(lm_path=...)`: a language model joins beam search, as with fairseq-generate."""

import shutil
from pathlib import Path

from tests.api.released import CLDR, loaded
from tests.errors import error_about
from tests.language_model import write_language_model

TEXTS = ["Austrian German", "the day before yesterday", "in 3 months", "Chinese (Traditional)", "next week"]


def test_the_language_model_joins_both_searches(tmp_path: Path) -> None:
    for name in ("dict.en.txt", "dict.de.txt", "subwords.model", "verifier.pt"):
        shutil.copy(CLDR / name, tmp_path)
    lm_path = str(write_language_model(tmp_path, CLDR / "dict.de.txt"))
    given = {"folder": tmp_path, "source_lang": "en", "target_lang": "de"}
    ours, theirs, plain = (
        loaded(decoder, **given, **more).translate(TEXTS, beam=3)
        for decoder, more in (
            ("fast-beam", {"lm_path": lm_path, "lm_weight": 0.6}),
            ("beam", {"lm_path": lm_path, "lm_weight": 0.6}),
            ("beam", {}),
        )
    )
    assert ours == theirs != plain
    for decoder, path in (("greedy", lm_path), ("fast-beam", f"{tmp_path}/none.pt")):
        with error_about("--lm-path"):
            loaded(decoder, **given, lm_path=path)

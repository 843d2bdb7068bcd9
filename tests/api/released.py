"""The released models, loaded once in a process."""

from functools import cache
from pathlib import Path
from typing import Any

import fairseq_plugins
from fairseq_plugins import Model
from tests.support import REPOSITORY

MULTI30K, CLDR, UA_GEC = (REPOSITORY / "checkpoints" / name for name in ("multi30k.en-de", "cldr.en-de", "ua-gec"))
CAPTIONS = ["A man is riding a bicycle.", "Two dogs play in the snow near a red house .", "", "People"]


@cache
def loaded(decoder: str | None = None, folder: Path = MULTI30K, **options: Any) -> Model:
    """Return a released model on the CPU."""
    return fairseq_plugins.load(folder, **({"decoder": decoder} if decoder else {}), device="cpu", **options)

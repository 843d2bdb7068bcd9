"""The released models, loaded once in a process."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import fairseq_plugins
from fairseq_plugins import Model
from tests.support import REPOSITORY, run_in_process

MULTI30K, CLDR, UA_GEC = (REPOSITORY / "checkpoints" / name for name in ("multi30k.en-de", "cldr.en-de", "ua-gec"))
CAPTIONS = ["A man is riding a bicycle.", "Two dogs play in the snow near a red house .", "", "People"]


@cache
def loaded(decoder: str | None = None, folder: Path = MULTI30K, **options: Any) -> Model:
    """Return a released model on the CPU."""
    return fairseq_plugins.load(folder, **({"decoder": decoder} if decoder else {}), device="cpu", **options)


def interactive(folder: Path, texts: Sequence[str], options: str, *more: str) -> list[tuple[float, str]]:
    """Return scores (base 2) and detokenised text of fairseq-interactive with a released model."""
    source, target = ("src", "tgt") if folder == UA_GEC else ("en", "de")
    run = run_in_process(
        "interactive",
        f"{folder} --source-lang {source} --target-lang {target} --path {folder}/verifier.pt --bpe sentencepiece "
        f"--sentencepiece-model {folder}/subwords.model --cpu --buffer-size 1000 --batch-size 25 {options}",
        *more,
        input="".join(text + "\n" for text in texts),
    )
    lines = [line.split("\t") for line in run.stdout.splitlines() if line.startswith("D-")]
    return [(float(score), text) for _, score, text in lines]

"""Models, captions and rows of a table for `measure_options`."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import fairseq_plugins
from fairseq_plugins import Model
from tests.support import REPOSITORY

SMALL, BASE, CLDR = (
    REPOSITORY / "checkpoints" / name for name in ("multi30k.en-de", "multi30k-base.en-de", "cldr.en-de")
)


@cache
def model(decoder: str, folder: Path = SMALL, threads: int = 1, **options: Any) -> Model:
    """Return a model of the repository on the CPU."""
    return fairseq_plugins.load(folder, decoder=decoder, device="cpu", threads=threads, **options)


def cut(texts: Sequence[str], folder: Path = SMALL) -> list[list[str]]:
    """Return texts as subwords."""
    return [model("greedy", folder).tokenize(text) for text in texts]


def row(*cells: object) -> None:
    """Print a row of the table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def shown(options: dict[str, Any]) -> str:
    """Return options of sampling as in a row's name."""
    return ", ".join(f"{name.removeprefix('sampling_')} {value}" for name, value in options.items()) or "no option"

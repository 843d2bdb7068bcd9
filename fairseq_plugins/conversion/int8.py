"""Write a model folder with weights in int8, a quarter of the size of fp32."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from fairseq_plugins.checkpoint.averaging import write_checkpoint
from fairseq_plugins.checkpoint.int8_weights import Int8Weight, restored
from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.conversion.settings import LoadSettings
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.checksums import check_sums, write_sums
from fairseq_plugins.shared.files import CHECKPOINTS, new_folder
from fairseq_plugins.shared.fingerprints import state_fingerprint

# Weights that --int8 rounds, of verifiers and drafters; all others are copied.
_ROUNDED = re.compile(
    r"(encoder|decoder)\.(embed_tokens|output_projection|layers\.\d+\.(fc1|fc2|(self_attn|encoder_attn)\.\w+_proj))\.weight"
)
_TEXT_FILES = ("dict.*.txt", "subwords*.model", "bpe.codes", "encoder.json", "vocab.bpe")
_FINGERPRINT = "decoder.verifier_fingerprint"


def write_int8(source: Path, target: Path, pair: tuple[str, str] | None) -> None:
    """Write a folder whose output is that of `source` with `--int8`; `load` and fairseq's commands read it.

    `source` has the checkpoint of a verifier, of its drafter if there is one, dictionaries and subwords. `pair` are its
    languages, None for those of its load.json. Raises ConfigurationError for files that are missing or do not fit each
    other, or a folder that cannot be written.
    """
    verifiers = [name for name in (*CHECKPOINTS, "blockwise.pt") if (source / name).is_file()]
    if not verifiers:
        raise ConfigurationError(None, source, "has no verifier.pt", "give a folder with a model")
    check_sums([source / name for name in (*verifiers, "drafter.pt")], source)
    fingerprints: dict[int, Tensor] = {}
    states = {name: _rounded(read_checkpoint(str(source / name), "FOLDER")[0], fingerprints) for name in verifiers}
    if (source / "drafter.pt").is_file():
        states["drafter.pt"] = _drafter(source / "drafter.pt", fingerprints)
    settings = LoadSettings.read(source)
    languages = {} if pair is None else dict(zip(("source_lang", "target_lang"), pair, strict=True))
    with new_folder(target, "OUT") as folder:
        for name, state in states.items():
            write_checkpoint(folder / name, state, "OUT")
        for pattern in _TEXT_FILES:
            for file in source.glob(pattern):
                shutil.copyfile(file, folder / file.name)
        replace(settings, options={**settings.options, **languages, "int8": True}).write(folder)
        write_sums(folder)


def _rounded(state: dict[str, Any], fingerprints: dict[int, Tensor]) -> dict[str, Any]:
    """Return a checkpoint with weights in int8; note fingerprint before -> after, of the model and its encoder."""
    once: dict[int, Int8Weight] = {}  # tied weights stay one
    weights = {
        name: once.setdefault(value.data_ptr(), Int8Weight(value)) if _ROUNDED.fullmatch(name) else value
        for name, value in state["model"].items()
    }
    after = {
        name: restored(value.rounded, value.scale) if isinstance(value, Int8Weight) else value
        for name, value in weights.items()
    }
    for prefix in ("", "encoder."):
        before, now = (
            state_fingerprint({name: value for name, value in part.items() if name.startswith(prefix)})
            for part in (state["model"], after)
        )
        fingerprints[int(before)] = now
    return {**state, "model": weights, "last_optimizer_state": None}


def _drafter(file: Path, fingerprints: dict[int, Tensor]) -> dict[str, Any]:
    """Return a drafter's checkpoint with weights in int8, for the rounded verifier."""
    state = _rounded(read_checkpoint(str(file), "FOLDER")[0], {})
    trained = state["model"].get(_FINGERPRINT)
    if trained is not None and int(trained) not in {0, *fingerprints}:
        raise ConfigurationError(None, file, "was trained with another verifier", "give the folder that has both")
    if trained is not None and int(trained):
        state["model"][_FINGERPRINT] = fingerprints[int(trained)].reshape(trained.shape)
    return state

"""Convert a folder in Hugging Face's format, atomically."""

import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fairseq_plugins.checkpoint.averaging import write_checkpoint
from fairseq_plugins.conversion.checks import check_decodes, check_subwords
from fairseq_plugins.conversion.families import Config
from fairseq_plugins.conversion.settings import settings_of
from fairseq_plugins.conversion.vocabulary import Vocabulary, byte_level_bpe, text_files
from fairseq_plugins.conversion.weights import fairseq_weights, read_weights
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.checksums import write_sums
from fairseq_plugins.shared.files import unwritable, write_atomically
from fairseq_plugins.shared.parsing import as_config


def convert(source: Path, target: Path, ignored: Collection[str] = ()) -> None:
    """Write verifier.pt, dictionaries, subwords, load.json and SHA256SUMS for a model in Hugging Face's format.

    Args:
        source: folder with config.json, model.safetensors and a tokenizer: Marian, M2M100, NLLB, mBART-50 or BART.
        target: new folder.
        ignored: names of settings of generation_config.json that shall not count.

    Raises:
        ConfigurationError: for an unsupported model, settings that cannot be honoured, missing files, a model that
            cannot be loaded or decode a sentence afterwards, or a folder that exists or cannot be written.
    """
    if not source.is_dir():
        raise missing_folder(None, source, "one that save_pretrained wrote")
    if os.path.lexists(target):
        raise ConfigurationError(None, target, "exists already", "give another folder")
    config = Config(source)
    bpe = byte_level_bpe(source)
    vocabulary, subwords = Vocabulary(source, config, bpe), text_files(source, bpe)
    settings = settings_of(config, vocabulary, ignored)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.partial.", dir=target.parent) as partial:
            folder = Path(partial, target.name)
            folder.mkdir()
            write_checkpoint(folder / "verifier.pt", _state(source, config, vocabulary), "OUT")
            for side in ("src", "tgt"):
                write_atomically(folder / f"dict.{side}.txt", vocabulary.lines(), "OUT")
            for name, content in subwords.items():
                (folder / name).write_bytes(content)
            settings.write(folder)
            check_subwords(folder, source, vocabulary.symbols)
            check_decodes(folder, source, vocabulary.symbols)
            write_sums(folder)
            folder.rename(target)
    except OSError as error:
        raise unwritable(target, "OUT", error) from error


def _state(source: Path, config: Config, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return fairseq's checkpoint."""
    weights = fairseq_weights(read_weights(source), config, vocabulary.order)
    args = config.fairseq_options(has_bias="decoder.output_projection.bias" in weights)
    return {
        "args": None,
        "cfg": OmegaConf.to_container(as_config(args), resolve=True, enum_to_str=True),
        "model": weights,
        "optimizer_history": [
            {
                "num_updates": 0,
                "criterion_name": "CrossEntropyCriterion",
                "optimizer_name": "",
                "lr_scheduler_state": {},
            }
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }


def missing_folder(argument: str | None, folder: Path, expected: str) -> ConfigurationError:
    """Return the error for a folder that does not exist, which may be a name of the Hugging Face hub."""
    parts, hub = folder.parts, ""
    if len(parts) == 2 and not (folder.is_absolute() or folder.parent.is_dir() or ".." in parts):
        hub = f"; models of the Hugging Face hub are not downloaded: hf download {folder} --local-dir {parts[1]}"
    return ConfigurationError(argument, folder, "no such folder", f"give {expected}{hub}")

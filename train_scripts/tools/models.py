"""Edit checkpoints, and derive training options from checkpoints and data."""

from pathlib import Path
from typing import Any

import numpy
import torch
from fairseq.data import data_utils

from fairseq_plugins.checkpoint.averaging import average, to_half, write_checkpoint
from fairseq_plugins.errors import ConfigurationError  # the plugin also lets torch read fairseq's checkpoints
from fairseq_plugins.models.block_nat.model import OF_VERIFIER
from fairseq_plugins.shared.fingerprints import state_fingerprint


def keep_decoder_layers(source: Path, target: Path, *, layers: str) -> None:
    """Write a copy of a checkpoint with only some of its decoder layers.

    Args:
        source: checkpoint of fairseq.
        target: new checkpoint.
        layers: layers to keep, counted from 0, in their new order, separated by commas.

    Raises:
        ConfigurationError: for a layer that does not exist.
    """
    selected = [int(layer) for layer in layers.split(",")]
    state = torch.load(source, map_location="cpu")
    kept: dict[str, Any] = {}
    seen_layers = set()
    for name, value in state["model"].items():
        part, _, rest = name.partition("decoder.layers.")
        if not rest or part:
            kept[name] = value
            continue
        number, _, parameter = rest.partition(".")
        if int(number) in selected:
            seen_layers.add(int(number))
            kept[f"decoder.layers.{selected.index(int(number))}.{parameter}"] = value
    if missing := sorted(set(selected) - seen_layers):
        problem = f"its decoder has no layer {missing[0]}"
        raise ConfigurationError(None, source, problem, "choose others, counted from 0")
    write_checkpoint(target, {**state, "model": kept}, "target")


def split_verifier(tuned: Path, before: Path, verifier: Path, drafter: Path) -> None:
    """Write the verifier and the drafter of a training with --tune-verifier to two files, in half precision.

    Args:
        tuned: checkpoint of the training.
        before: verifier that the training started from, for the options of its model.
        verifier, drafter: new checkpoints.

    Raises:
        ConfigurationError: for a checkpoint without that verifier, or with weights too large for half precision.
    """
    # `average` keeps only the entries of a checkpoint that loading needs.
    both, old = average([tuned]), average([before])
    if not getattr(both["cfg"]["model"], "tune_verifier", False):
        raise ConfigurationError(None, tuned, "holds no verifier", "it was not trained with {--tune-verifier}")
    weights, parts = both["model"], {}
    for name, value in old["model"].items():
        parts[name] = weights.get(f"verifier_{name}" if name.startswith("decoder.") else name)
        if parts[name] is None or parts[name].shape != value.shape:
            problem = f"its {name} does not fit {tuned}"
            raise ConfigurationError(None, before, problem, "give the verifier that this training started from")
    own = {name: value for name, value in weights.items() if not name.startswith(OF_VERIFIER)}
    own["decoder.verifier_fingerprint"] = state_fingerprint(parts)
    both["cfg"]["model"].tune_verifier = False
    for option, target, checkpoint in (
        ("verifier", verifier, {**old, "model": parts, "extra_state": both["extra_state"]}),
        ("drafter", drafter, {**both, "model": own}),
    ):
        write_checkpoint(target, to_half(checkpoint), option)


def count_updates(data: Path, *, languages: tuple[str, str], epochs: float, tokens: int) -> int:
    """Estimate the number of updates of a training.

    Padding is neglected: with that of fairseq's batches, sorted by length, a training has about a tenth more updates
    (341 instead of 316 for an epoch of examples/cldr.en-de with 4,096 tokens), so these are fewer epochs than asked.

    Args:
        data: binarised data.
        languages: languages of source and target.
        epochs: number of epochs.
        tokens: tokens per update, counted as by --max-tokens.

    Raises:
        ConfigurationError: for data without a training set of these languages.
    """
    sizes = []
    for language in languages:
        prefix = data / f"train.{'-'.join(languages)}.{language}"
        side = data_utils.load_indexed_dataset(str(prefix))
        if side is None:
            raise ConfigurationError(
                None, prefix, "no such data", "give the folder and {--languages} of fairseq-preprocess"
            )
        sizes.append(side.sizes.copy())  # the original is a view of the file, which is closed with the data set
    tokens_per_epoch = int(numpy.maximum(*sizes).sum())
    return int(epochs * tokens_per_epoch / tokens) + 1

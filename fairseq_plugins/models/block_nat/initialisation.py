"""Start a drafter from another model's weights: --init-encoder-from, --init-decoder-from."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.checkpoint.loading import build_model, read_checkpoint
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.fairseq_parts import activation_function
from fairseq_plugins.models.verifier_features import FeatureReader

logger = logging.getLogger(__name__)


def _weights_of(path: str, task: Any, flag: str, part: str) -> tuple[dict[str, Tensor], Callable[[Tensor], Tensor]]:
    """Return weights and activation function of the encoder or the decoder of a checkpoint."""
    state, cfg = read_checkpoint(path, flag)
    if "decoder.verifier_fingerprint" in state["model"]:
        # Read the weights only: a drafter of another verifier cannot be built with this one.
        prefix = f"{part}."
        weights = {n.removeprefix(prefix): v for n, v in state["model"].items() if n.startswith(prefix)}
        return weights, activation_function(cfg.activation_fn)
    source = getattr(build_model(state, cfg, path, task, flag), part)
    return source.state_dict(), source.layers[0].activation_fn


def _fewer_layers(weights: dict[str, Tensor], reader: FeatureReader) -> dict[str, Tensor]:
    """Cut the reader of a deeper drafter to the first layers and the addend to the input."""
    layers = {name.split(".")[1] for name in weights if name.startswith("layers.")}
    if len(layers) <= reader.drafter_layers:
        return weights
    cut = dict(weights)
    for name in ("reader.linear.weight", "reader.linear.bias"):
        if name in weights:
            parts = weights[name].unflatten(0, (len(layers) + 1, -1))
            cut[name] = torch.cat([parts[: reader.drafter_layers], parts[-1:]]).flatten(0, 1)
    return cut


def initialise(model: Any, path: str, task: Any, option: str) -> None:
    """Copy the encoder or the decoder of a checkpoint into a `BlockNat`, up to its number of layers.

    `option` is "init_encoder_from" or "init_decoder_from". Raises ConfigurationError if activation functions or sizes
    differ, or the file is unsuitable.
    """
    flag = "--" + option.replace("_", "-")
    part = "encoder" if "encoder" in option else "decoder"
    weights, activation = _weights_of(path, task, flag, part)
    own_activation = getattr(model, part).layers[0].activation_fn
    if activation is not own_activation:
        problem = f"its layers use {activation.__name__}, the drafter's {own_activation.__name__}"
        remedy = f"train the drafter with {{--activation-fn {activation.__name__}}}"
        raise ConfigurationError(flag, path, problem, remedy)
    target = getattr(model, part)
    own = target.state_dict()
    if part == "decoder" and model.reads_features:
        weights = _fewer_layers(weights, target.reader)
    shared = {
        name: value
        for name, value in weights.items()
        if name in own
        and not name.endswith(("fingerprint", "trained_block_size", "target_counts", "survival_counts"))
        and not f"{part}.{name}".startswith(model.borrowed)
    }
    for name, value in shared.items():
        if own[name].shape != value.shape:
            problem = f"{part}.{name} is {tuple(value.shape)} there and {tuple(own[name].shape)} in the drafter"
            raise ConfigurationError(flag, path, problem, "give the drafter the same sizes")
    target.load_state_dict(shared, strict=False)
    logger.info("%s %s: %d of %d tensors of the %s taken over", flag, path, len(shared), len(own), part)

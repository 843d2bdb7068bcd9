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


def _weights_of(
    path: str, task: Any, flag: str, part: str
) -> tuple[dict[str, Tensor], Callable[[Tensor], Tensor], Any]:
    """Return weights and activation function of the encoder or the decoder of a checkpoint, and its options."""
    state, cfg = read_checkpoint(path, flag)
    if "decoder.verifier_fingerprint" in state["model"]:
        # Read the weights only: a drafter of another verifier cannot be built with this one.
        prefix = f"{part}."
        weights = {n.removeprefix(prefix): v for n, v in state["model"].items() if n.startswith(prefix)}
        return weights, activation_function(cfg.activation_fn), cfg
    source = getattr(build_model(state, cfg, path, task, flag), part)
    return source.state_dict(), source.layers[0].activation_fn, cfg


def _fit_depth(weights: dict[str, Tensor], reader: FeatureReader) -> dict[str, Tensor]:
    """Return weights whose reader, of a drafter of another depth, is that of the layers both have and of the input."""
    layers = len({name.split(".")[1] for name in weights if name.startswith("layers.")})
    shared, fitted = min(layers, reader.drafter_layers), dict(weights)
    for name, own in reader.state_dict(prefix="reader.").items():
        if name in weights and weights[name].shape[1:] == own.shape[1:]:
            theirs = weights[name].unflatten(0, (layers + 1, -1))
            ours = own.unflatten(0, (reader.drafter_layers + 1, -1))
            fitted[name] = torch.cat([theirs[:shared], ours[shared:-1], theirs[-1:]]).flatten(0, 1)
    return fitted


# Beginning of the name of a weight -> options that set its size, besides those that `take_sizes` compares.
_SIZES = {
    "reader.": ("feature_layers",),
    "transition.": ("transition_rank", "transition_state"),
    "embed_positions.": ("max_source_positions", "max_target_positions"),
}


def _misfit(flag: str, path: str, name: str, there: Any, here: Any) -> ConfigurationError | None:
    """Return the error of a weight whose size differs between the models of these options, if one of them sets it."""
    for option in [option for prefix, options in _SIZES.items() if name.startswith(prefix) for option in options]:
        given, copied = getattr(here, option, None), getattr(there, option, None)
        if given != copied and copied is not None:
            own_flag = "--" + option.replace("_", "-")
            problem = f"{flag} {path} has {copied}, and its weights are copied"
            return ConfigurationError(own_flag, given, problem, f"give {{{own_flag} {copied}}}")
    return None


def initialise(model: Any, path: str, task: Any, option: str) -> None:
    """Copy the encoder or the decoder of a checkpoint into a `BlockNat`, up to its number of layers.

    `option` is "init_encoder_from" or "init_decoder_from". Raises ConfigurationError if activation functions or sizes
    differ, or the file is unsuitable.
    """
    flag = "--" + option.replace("_", "-")
    part = "encoder" if "encoder" in option else "decoder"
    weights, activation, options = _weights_of(path, task, flag, part)
    own_activation = getattr(model, part).layers[0].activation_fn
    if activation is not own_activation:
        problem = f"its layers use {activation.__name__}, the drafter's {own_activation.__name__}"
        remedy = f"train the drafter with {{--activation-fn {activation.__name__}}}"
        raise ConfigurationError(flag, path, problem, remedy)
    target = getattr(model, part)
    own = target.state_dict()
    if part == "decoder" and model.reads_features:
        weights = _fit_depth(weights, target.reader)
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
            general = ConfigurationError(flag, path, problem, "give the drafter the same sizes")
            raise _misfit(flag, path, name, options, model.args) or general
    target.load_state_dict(shared, strict=False)
    logger.info("%s %s: %d of %d tensors of the %s taken over", flag, path, len(shared), len(own), part)

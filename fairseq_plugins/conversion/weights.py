"""The weights of a Hugging Face folder under fairseq's names, read without running code."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fairseq_plugins.conversion.families import Config
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import first_of
from fairseq_plugins.shared.typed_values import read_json

# A token that the model lacks must never be the best one; -1e9 would be infinite in half precision.
_NEVER = -1e4
# Of the names of tensors; transformers, too, reads files in which none has it.
_BASE = "model."
# The first position of fairseq's learned positions, after `<pad>`.
_FIRST_POSITION = 2
_EMBEDDINGS = ("model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")

# The second are sinusoids, which files of earlier versions have.
_POSITIONS = (".embed_positions.weight", ".embed_positions.weights")

_FILES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


class _Index(TypedDict):
    weight_map: dict[str, str]


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors of model.safetensors, else of pytorch_model.bin, or of the files that their index lists.

    Raises ConfigurationError for a missing or truncated file, and for integers, float8, infinity and NaN.
    """
    index = first_of(folder, *_FILES)  # in transformers' order
    names = [_FILES[0] if index is None else index.name]
    if index is not None and index.suffix == ".json":
        listed: _Index = read_json(index, _Index)
        names = [Path(name).name for name in sorted(set(listed["weight_map"].values()))]
    weights: dict[str, Tensor] = {}
    for name in names:
        file = first_of(folder, name)
        if file is None:
            remedy = f"copy it, too: weights are in {_FILES[0]}, {_FILES[2]}, or parts that an index lists"
            raise ConfigurationError(None, folder / name, "no such file", remedy)
        weights |= _read_pickle(file) if file.suffix == ".bin" else _read_safetensors(file)
    for name, value in weights.items():
        if not value.is_floating_point() or value.itemsize < 2:  # int8, or float8, whose scales are other tensors
            found = f"values of {value.dtype}"
        elif not value.isfinite().all():
            found = "NaN" if value.isnan().any() else "infinity"
        else:
            found = None
        if found is not None:
            problem = f"its tensor {name} has {found} in place of real numbers"
            raise ConfigurationError(None, folder, problem, "copy the model again, or save it without quantization")
    return weights


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(None, file, f"truncated or not safetensors ({error})", "copy it again") from error


def _read_pickle(file: Path) -> dict[str, Tensor]:
    try:
        weights: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
        if all(isinstance(value, Tensor) for value in weights.values()):
            return weights
        cause = None
    except Exception as error:  # torch's loader fails in any way; its text explains how to turn safe loading off
        cause = error
    problem = "truncated, or has more than weights, which could run any program"
    raise ConfigurationError(None, file, problem, "copy it again, or get model.safetensors") from cause


def fairseq_weights(weights: dict[str, Tensor], config: Config, order: Sequence[int | None]) -> dict[str, Tensor]:
    """Return the weights of the fairseq model from those of `read_weights`; `order` is that of `Vocabulary`.

    Raises ConfigurationError for a tensor that is missing, unknown, or of another size than the settings say.
    """
    if not any(name.startswith(_BASE) for name in weights):  # saved from the class without the output, as BartModel
        weights = {f"{_BASE}{name}": value for name, value in weights.items()}
    _check_sizes(weights, config)
    converted = {}
    for name, value in weights.items():
        if ".layers." in name or ".layer_norm." in name or ".layernorm_embedding." in name:
            converted[name.removeprefix(_BASE)] = value
        elif name not in (*_EMBEDDINGS, "lm_head.weight", "final_logits_bias") and not name.endswith(_POSITIONS):
            problem = f"unknown tensor {name}"
            raise ConfigurationError(None, config.file.parent, problem, "this architecture is not converted")
    own = _embedding(weights, config)
    table = _in_order(own, order, 0.0)
    converted["encoder.embed_tokens.weight"] = converted["decoder.output_projection.weight"] = table
    converted["decoder.embed_tokens.weight"] = table
    if config.is_untied:
        start = config["decoder_start_token_id"]
        if start >= len(own):
            problem = f"decoder_start_token_id {start} is no token"
            raise ConfigurationError(None, config.file, problem, "copy the model again")
        # fairseq's decoder reads `</s>` as first token only, so it can have the embedding of the model's start token.
        converted["decoder.embed_tokens.weight"] = table.clone()
        converted["decoder.embed_tokens.weight"][2] = own[start]
    # A bias of zeros is left out where it changes nothing: transformers never trains it.
    bias = weights.get("final_logits_bias", torch.zeros(1, len(own)))
    if bias.numel() != len(own):
        problem = "its final_logits_bias has not vocab_size numbers"
        raise ConfigurationError(None, config.file.parent, problem, "copy it again")
    if config.needs_bias or None in order or bool(bias.any()):
        converted["decoder.output_projection.bias"] = _in_order(bias.reshape(-1), order, _NEVER)
    for side in ("encoder", "decoder"):
        converted[f"{side}.version"] = torch.tensor([3.0])
        if config.family.stored_positions:
            converted[f"{side}.embed_positions.weight"] = _positions(weights, config, side)
    return converted


def _embedding(weights: dict[str, Tensor], config: Config) -> Tensor:
    """Return the embedding [vocab_size, D] that encoder, decoder and output share."""
    tables = [weights[name] for name in (*_EMBEDDINGS, "lm_head.weight") if name in weights]
    if not tables:
        raise ConfigurationError(None, config.file.parent, f"has no tensor {_EMBEDDINGS[0]}", "copy the model again")
    if any(not torch.equal(tables[0], table) for table in tables[1:]):
        problem = "embeddings of encoder, decoder and output differ"
        raise ConfigurationError(None, config.file.parent, problem, "not converted")
    if tables[0].dim() != 2 or len(tables[0]) != config["vocab_size"]:
        raise ConfigurationError(None, config.file, f"vocab_size is not {len(tables[0])}, the rows of the embedding")
    return tables[0]


def _check_sizes(weights: dict[str, Tensor], config: Config) -> None:
    """Compare the numbers of layers and their widths, before fairseq makes a model of those sizes."""
    for side in ("encoder", "decoder"):
        first = weights.get(f"model.{side}.layers.0.fc1.weight")
        rows, columns = first.shape if first is not None and first.dim() == 2 else (0, 0)
        layers = sum(f"{side}.layers." in name and name.endswith(".fc1.weight") for name in weights)
        found = {f"{side}_layers": layers, f"{side}_ffn_dim": rows, "d_model": columns}
        for name, size in found.items():
            if config[name] != size:
                problem = f"{name} is {config[name]}, and {size} in the weights"
                raise ConfigurationError(None, config.file, problem, "copy it again")


def _in_order(rows: Tensor, order: Sequence[int | None], missing: float) -> Tensor:
    result = rows[[0 if number is None else number for number in order]]
    result[[number is None for number in order]] = missing
    return result


def _positions(weights: dict[str, Tensor], config: Config, side: str) -> Tensor:
    """Return embeddings [positions + 2, D], as fairseq's learned positions have them."""
    name = f"model.{side}.embed_positions.weight"
    count, width = config["max_position_embeddings"], config["d_model"]
    if config["model_type"] != "marian":
        if name not in weights:
            raise ConfigurationError(None, config.file.parent, f"has no tensor {name}", "copy the model again")
        return weights[name]
    rows = weights.get(name)
    if rows is not None and rows.shape != (count, width):
        raise ConfigurationError(None, config.file.parent, f"{name} is not {count} by {width}", "copy the model again")
    if rows is None:
        # Sines, then cosines, of wavelengths in steps of 2 / D (Vaswani et al. 2017); fairseq's steps are wider.
        rates = 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(count, dtype=torch.float64)[:, None] / rates
        rows = torch.cat([angles.sin(), angles.cos()], 1)[:, :width].float()
    return torch.cat([rows.new_zeros(_FIRST_POSITION, width), rows])

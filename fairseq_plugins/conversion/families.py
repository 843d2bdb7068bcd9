"""Supported architectures of Hugging Face, and fairseq's options for each."""

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.models.transformer import base_architecture

from fairseq_plugins.errors import ConfigurationError


@dataclass(frozen=True)
class Family:
    """Position of layer normalisation, and whether positions are stored, for the models of a `model_type`."""

    normalize_before: bool
    layernorm_embedding: bool
    stored_positions: bool


# By `model_type` of config.json. Marian's sinusoids differ from fairseq's, so they are stored as weights.
FAMILIES = {
    "bart": Family(normalize_before=False, layernorm_embedding=True, stored_positions=True),
    "m2m_100": Family(normalize_before=True, layernorm_embedding=False, stored_positions=False),
    "marian": Family(normalize_before=False, layernorm_embedding=False, stored_positions=True),
    "mbart": Family(normalize_before=True, layernorm_embedding=True, stored_positions=True),
}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}


class Config:
    """The settings of a model: config.json, completed by generation_config.json.

    Args:
        folder: of the model.

    Raises:
        ConfigurationError: for a folder without config.json, and for models that are not converted.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config.json"
        if not self.file.is_file():
            raise ConfigurationError(f"{self.file}: no such file; give a folder that save_pretrained wrote")
        generation = folder / "generation_config.json"
        own = {name: value for name, value in read_json(self.file).items() if value is not None}
        self.values = {**(read_json(generation) if generation.is_file() else {}), **own}
        if self["model_type"] not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ConfigurationError(
                f"{self.file}: model_type {self['model_type']!r} is not converted; those are {known}"
            )
        self.family = FAMILIES[self["model_type"]]
        self._check()

    def __getitem__(self, name: str) -> Any:
        if self.values.get(name) is None:
            raise ConfigurationError(f"{self.file}: has no {name}; give a folder that save_pretrained wrote")
        return self.values[name]

    @property
    def is_untied(self) -> bool:
        """Whether the decoder starts with another token than EOS, so that its input embeddings are not the output's."""
        return bool(self["decoder_start_token_id"] != self["eos_token_id"])

    def _check(self) -> None:
        if self["activation_function"] not in _ACTIVATIONS:
            raise ConfigurationError(
                f"{self.file}: activation_function {self['activation_function']!r} is not converted; those are "
                f"{', '.join(_ACTIVATIONS)}"
            )
        shared = self.values.get("share_encoder_decoder_embeddings", True)
        if not shared or self.values.get("decoder_vocab_size", self["vocab_size"]) != self["vocab_size"]:
            raise ConfigurationError(f"{self.file}: models with a vocabulary for each side are not converted")
        if self["model_type"] == "mbart" and self.is_untied:
            raise ConfigurationError(
                f"{self.file}: decoder_start_token_id {self['decoder_start_token_id']} is mBART-25's, whose sources "
                "end in a language; of mBART, mBART-50 is converted"
            )

    def fairseq_options(self, has_bias: bool) -> Namespace:
        """Return the options of the fairseq model.

        Args:
            has_bias: the vocabulary projection has a bias.
        """
        activation = _ACTIVATIONS[self["activation_function"]]
        needs_own_model = has_bias or activation == "swish"
        sides = ("encoder", "decoder")
        options = {
            **{f"{side}_embed_dim": self["d_model"] for side in sides},
            **{f"{side}_layers": self[f"{side}_layers"] for side in sides},
            **{f"{side}_attention_heads": self[f"{side}_attention_heads"] for side in sides},
            **{f"{side}_ffn_embed_dim": self[f"{side}_ffn_dim"] for side in sides},
            **{f"{side}_normalize_before": self.family.normalize_before for side in sides},
            **{f"{side}_learned_pos": self.family.stored_positions for side in sides},
        }
        args = Namespace(
            **options,
            arch="marian_transformer" if needs_own_model else "transformer",
            activation_fn=activation,
            no_scale_embedding=not self["scale_embedding"],
            layernorm_embedding=self.family.layernorm_embedding,
            share_all_embeddings=not self.is_untied,
            share_decoder_input_output_embed=not self.is_untied,
            max_source_positions=self["max_position_embeddings"],
            max_target_positions=self["max_position_embeddings"],
            dropout=self.values.get("dropout", 0.0),
            task="translation",
            source_lang="src",
            target_lang="tgt",
            criterion="cross_entropy",
            optimizer="adam",
            lr_scheduler="fixed",
            lr=[0.0],
        )
        base_architecture(args)
        return args


def read_json(file: Path) -> Any:
    """Read a JSON file.

    Raises:
        ConfigurationError: for a file that cannot be read.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file}: cannot be read as JSON ({error}); copy it again") from error

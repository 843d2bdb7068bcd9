"""Supported architectures of Hugging Face, and fairseq's options for each."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from fairseq.models.transformer import base_architecture
from msgspec import Meta

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import first_of
from fairseq_plugins.shared.typed_values import checked, read_json


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


# Far above those of any model, and low enough to refuse a damaged number before memory is full.
_Layers = Annotated[int, Meta(ge=1, le=1000)]
_Size = Annotated[int, Meta(ge=1, le=2**24)]
TokenId = Annotated[int, Meta(ge=0, lt=2**24)]


class _Values(TypedDict, total=False):
    """Types of the settings that are read."""

    model_type: str
    activation_function: str
    d_model: Annotated[int, Meta(ge=1, le=2**16)]
    max_position_embeddings: Annotated[int, Meta(ge=1, le=2**16)]
    vocab_size: _Size
    decoder_vocab_size: _Size
    encoder_layers: _Layers
    decoder_layers: _Layers
    encoder_attention_heads: _Size
    decoder_attention_heads: _Size
    encoder_ffn_dim: _Size
    decoder_ffn_dim: _Size
    pad_token_id: TokenId
    bos_token_id: TokenId
    eos_token_id: TokenId
    decoder_start_token_id: TokenId
    forced_bos_token_id: TokenId
    scale_embedding: bool
    share_encoder_decoder_embeddings: bool
    dropout: Annotated[float, Meta(ge=0, le=1)]


class Config:
    """The settings of a model: config.json, completed by generation_config.json.

    Raises ConfigurationError for a folder without config.json, settings of other types, and models that are not
    converted.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config.json"
        if first_of(folder, self.file.name) is None:
            remedy = "give a folder that save_pretrained wrote, or {--int8} for one of fairseq's"
            raise ConfigurationError(None, self.file, "no such file", remedy)
        generation = first_of(folder, "generation_config.json")
        self.values: dict[str, Any] = {}
        self.own: dict[str, Any] = {}  # those of config.json
        for file in (self.file,) if generation is None else (generation, self.file):
            settings: dict[str, Any] = read_json(file, dict[str, Any])
            self.own = {name: value for name, value in settings.items() if value is not None}
            self.values |= self.own
        try:
            checked(self.values, _Values)
        except ValueError as error:
            remedy = "give the config.json that save_pretrained wrote"
            raise ConfigurationError(None, self.file, str(error), remedy) from error
        if self["model_type"] not in FAMILIES:
            known = ", ".join(FAMILIES)
            problem = f"model_type {self['model_type']!r} is not converted"
            raise ConfigurationError(None, self.file, problem, f"those are {known}")
        self.family = FAMILIES[self["model_type"]]
        self._check()

    def __getitem__(self, name: str) -> Any:
        if self.values.get(name) is None:
            raise ConfigurationError(None, self.file, f"has no {name}", "give a folder that save_pretrained wrote")
        return self.values[name]

    @property
    def needs_bias(self) -> bool:
        """Whether fairseq's model has a bias on the vocabulary projection: with SiLU it is `MarianTransformer`."""
        return _ACTIVATIONS[self["activation_function"]] == "swish"

    @property
    def is_untied(self) -> bool:
        """Whether the decoder starts with another token than EOS, so that its input embeddings are not the output's."""
        return bool(self["decoder_start_token_id"] != self["eos_token_id"])

    def _check(self) -> None:
        if self["activation_function"] not in _ACTIVATIONS:
            problem = f"activation_function {self['activation_function']!r} is not converted"
            raise ConfigurationError(None, self.file, problem, f"those are {', '.join(_ACTIVATIONS)}")
        shared = self.values.get("share_encoder_decoder_embeddings", True)
        if not shared or self.values.get("decoder_vocab_size", self["vocab_size"]) != self["vocab_size"]:
            raise ConfigurationError(None, self.file, "models with a vocabulary for each side are not converted")
        for side in ("encoder", "decoder"):
            heads = self[f"{side}_attention_heads"]
            if self["d_model"] % heads != 0:
                problem = f"d_model {self['d_model']} has no {heads} equal heads"
                raise ConfigurationError(None, self.file, problem, "copy it again")
        pad, start = self["pad_token_id"], self["decoder_start_token_id"]
        if not self.family.stored_positions and (pad != 1 or start == pad):
            # Hugging Face's sinusoids begin after the padding's id, and a padding has none; fairseq's begin after 1.
            problem = f"pad_token_id {pad} and decoder_start_token_id {start} give tokens other positions"
            remedy = "models are converted whose pad_token_id is 1, and their decoder_start_token_id another"
            raise ConfigurationError(None, self.file, problem, remedy)
        if self["model_type"] == "mbart" and self.is_untied:
            problem = f"decoder_start_token_id {start} is mBART-25's, whose sources end in a language"
            raise ConfigurationError(None, self.file, problem, "of mBART, mBART-50 is converted")

    def fairseq_options(self, has_bias: bool) -> Namespace:
        """Return the options of the fairseq model, whose vocabulary projection may have a bias."""
        activation = _ACTIVATIONS[self["activation_function"]]
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
            arch="marian_transformer" if has_bias else "transformer",
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

"""Marian's Transformer (OPUS-MT): fairseq's with a bias on the vocabulary projection, and SiLU ("swish")."""

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerEncoder, TransformerModel, base_architecture
from torch import nn

from fairseq_plugins.models.fairseq_parts import set_activation


class MarianDecoder(TransformerDecoder):
    """fairseq's decoder, with a bias on the vocabulary projection."""

    def build_output_projection(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().build_output_projection(args, dictionary, embed_tokens)
        projection: nn.Linear = self.output_projection
        projection.bias = nn.Parameter(torch.zeros(projection.out_features))


@register_model("marian_transformer")
class MarianTransformer(TransformerModel):
    """A Transformer with `MarianDecoder`; its `activation_fn` may be "swish"."""

    def __init__(self, args: Any, encoder: TransformerEncoder, decoder: MarianDecoder) -> None:
        super().__init__(args, encoder, decoder)
        set_activation(args.activation_fn, encoder, decoder)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> MarianDecoder:
        return MarianDecoder(args, tgt_dict, embed_tokens)


register_model_architecture("marian_transformer", "marian_transformer")(base_architecture)

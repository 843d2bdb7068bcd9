"""Encode a batch with fewer, larger operations than fairseq's encoder, whose time at batch 1 is mostly overhead."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqEncoder
from fairseq.models.transformer import TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_plugins.decoding.reference.attention import additive_mask
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.fixed_shapes import attention
from fairseq_plugins.decoding.reference.rows import may_have_padding, padding_last
from fairseq_plugins.decoding.weights import embeddings, norm, quantized_layer, read_encoder_layer
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.exact_types import changed_part
from fairseq_plugins.models.fairseq_parts import KNOWN_POSITIONS, position_table

logger = logging.getLogger(__name__)

EncoderOut = dict[str, list[Tensor]]


class FusedEncoder:
    """Compute the output of a fairseq encoder in eval mode; encoders other than the Transformer's run unchanged."""

    def __init__(self, encoder: FairseqEncoder, engine: Engine) -> None:
        self.encoder = encoder
        self.engine = engine
        self.layers = [read_encoder_layer(layer) for layer in encoder.layers] if is_known_encoder(encoder) else None
        if engine.int8 and self.layers is None:
            logger.warning("--int8: the encoder %s stays in fp32", type(encoder).__name__)
        elif engine.int8:
            self.layers = [quantized_layer(layer) for layer in self.layers or []]
        self.positions = None
        if self.layers is not None:
            self.embedding = embeddings(encoder.embed_tokens.weight, engine.int8)
        if self.layers is not None and isinstance(encoder.embed_positions, KNOWN_POSITIONS):
            self.positions = position_table(encoder, encoder.max_positions())
        self.embedding_norm = norm(getattr(encoder, "layernorm_embedding", None))
        self.final_norm = norm(getattr(encoder, "layer_norm", None))

    def __call__(self, net_input: dict[str, Any]) -> EncoderOut:
        """Encode `src_tokens` [B, S].

        Returns:
            fairseq's encoder output: encoder_out [S, B, D], encoder_padding_mask [B, S], encoder_embedding [B, S, D].
        """
        if self.layers is None:
            return self._run_unknown(net_input)
        tokens = net_input["src_tokens"]
        x, padding, embedding = self._encode(tokens)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
        }

    def _encode(self, tokens: Tensor, assume_padding: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Return states [B, S, D], padding [B, S] and embeddings [B, S, D] of source tokens [B, S].

        With `assume_padding` do not look for padding, and mask it as if there were some.
        """
        encoder = self.encoder
        padding = tokens == encoder.padding_idx
        mask = ~padding[:, None, None, :] if assume_padding or may_have_padding(padding) else None
        embedding = encoder.embed_scale * F.embedding(tokens, self.embedding)
        x = embedding
        if self.positions is not None:
            # Padding may be on the left, and its own embedding does not matter. A drafter's table may be shorter than
            # a source: later positions have the last embedding, as in the kernels.
            position = ((~padding).cumsum(1) - 1).clamp(0, len(self.positions) - 1)
            x = x + self.positions[position]
        elif encoder.embed_positions is not None:
            x = x + encoder.embed_positions(tokens)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if mask is not None:
            x = x.masked_fill(padding[:, :, None], 0)
        x = self._run_batch_invariant(x, padding) if self.engine.batch_invariant else self._run(x, mask)
        return x if self.final_norm is None else self.final_norm(x), padding, embedding

    def _run(self, x: Tensor, mask: Tensor | None) -> Tensor:
        mask = additive_mask(mask, x.dtype)

        def attend(qkv: Tensor, heads: int) -> Tensor:
            query, key, value = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)

        return self._run_layers(x, attend)

    def _run_batch_invariant(self, x: Tensor, padding: Tensor) -> Tensor:
        """Run the layers in fixed shapes, with padding [B, S] moved to the end meanwhile."""
        order = padding_last(padding)[:, :, None].expand_as(x)
        last = ((~padding).sum(1, keepdim=True) - 1).expand_as(padding)

        def attend(qkv: Tensor, heads: int) -> Tensor:
            qkv = qkv.unflatten(-1, (3, heads, -1))
            return attention(qkv[:, :, 0], qkv[:, :, 1:], last)

        return torch.empty_like(x).scatter_(1, order, self._run_layers(x.gather(1, order), attend))

    def _run_layers(self, x: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        assert self.layers is not None
        for layer in self.layers:
            x = self.engine.layer(layer, x, partial(attend, heads=layer.heads))
        return x

    def _run_unknown(self, net_input: dict[str, Any]) -> EncoderOut:
        """Run an unknown encoder; a batch-invariant engine runs it on one sentence at a time, without padding."""
        if not self.engine.batch_invariant:
            found: EncoderOut = self.encoder.forward_torchscript(net_input)
            return found
        tokens = net_input["src_tokens"]
        if tokens.dim() != 2:
            problem = f"the encoder {type(self.encoder).__name__} reads no tokens, and its output in half precision "
            problem += "depends on the batch"
            remedy = "leave the option out, or use {--decoder beam}"
            raise ConfigurationError(None, "--fp16, --bf16", problem, remedy)
        padding = tokens == self.encoder.dictionary.pad()
        outputs = [
            self.encoder.forward_torchscript({"src_tokens": row[real][None], "src_lengths": real.sum()[None]})
            for row, real in zip(tokens, ~padding, strict=True)
        ]
        result: EncoderOut = {"encoder_padding_mask": [padding]}
        for name in {"encoder_out", "encoder_embedding"} & set(outputs[0]):
            parts = [output[name][0].flatten(0, 1) for output in outputs]
            whole = parts[0].new_zeros(*padding.shape, parts[0].size(-1))
            whole[~padding] = torch.cat(parts)
            result[name] = [whole.transpose(0, 1) if name == "encoder_out" else whole]
        return result


def is_known_encoder(encoder: FairseqEncoder) -> bool:
    """Return whether an encoder is fairseq's Transformer encoder without overridden methods or additions."""
    return (
        isinstance(encoder, TransformerEncoderBase)
        and encoder.quant_noise is None
        and isinstance(encoder.embed_tokens, nn.Embedding)
        and changed_part(encoder, (TransformerEncoderBase, TransformerEncoderLayerBase)) is None
        and not any(layer.return_fc for layer in encoder.layers)
    )

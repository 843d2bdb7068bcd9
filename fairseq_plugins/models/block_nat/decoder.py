"""The drafter's decoder: a prefix and blocks of masks in one pass."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerDecoder
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_plugins.data.block_masking import Blocks
from fairseq_plugins.models.fairseq_parts import position_table
from fairseq_plugins.models.transition import TransitionScores
from fairseq_plugins.models.verifier_features import FeatureReader, layer_numbers
from fairseq_plugins.shared.fingerprints import dictionary_fingerprint

SURVIVAL_BINS = 20
"""Number of bins of survival; the same as in csrc/policy.h."""


@dataclass(frozen=True)
class Attended:
    """Mask and context of self-attention in training blocks."""

    visible: Tensor  # [B, 1, T, C + S], True where attention is allowed
    context: Tensor | None = None  # [C, B, D], prepended to keys and values; None for none (C = 0)


class MaskedAttention(MultiheadAttention):
    """fairseq's self-attention with a mask for every sentence and context before the inputs."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Attended, **unused: Any
    ) -> tuple[Tensor, None]:
        """Attend from `query` [T, B, D] to `key` [S, B, D]; return the output [T, B, D] and no weights."""
        if attn_mask.context is not None:
            key = value = torch.cat([attn_mask.context, key])

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

        x = F.scaled_dot_product_attention(
            heads(self.q_proj(query)),
            heads(self.k_proj(key)),
            heads(self.v_proj(value)),
            attn_mask=attn_mask.visible,
            dropout_p=self.dropout_module.p if self.training else 0.0,
        )
        return self.out_proj(x.permute(2, 0, 1, 3).flatten(2)), None


def _attend(query: Tensor, key: Tensor, value: Tensor, padding: Tensor) -> Tensor:
    """Attend from queries [B, T, D] to keys and values [B, S, D], without those of padding [B, S]."""
    # With a dimension for heads: without one a GPU takes plain operations instead of a fused kernel.
    mask = ~padding[:, None, None]
    return F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], attn_mask=mask)[:, 0]


class BlockNatDecoder(TransformerDecoder):
    """Decoder of `block_nat`; its layers and weights are those of fairseq's Transformer decoder."""

    # CachedDecoder supports the addition of this class: mask vectors.
    runs_in_cached_decoder = True

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        width = embed_tokens.embedding_dim
        self.mask_id = len(dictionary)
        self.reads_features: bool = args.drafter_context == "features"
        self.drafter_attention: str = "features" if self.reads_features else args.drafter_attention
        if self.reads_features:
            self.reader = FeatureReader(layer_numbers(args.feature_layers), len(self.layers), self.embed_dim)
        self.mask_vector = nn.Parameter(torch.randn(width) * width**-0.5 * self.embed_scale)
        rank: int = args.transition_rank
        self.transition = None
        if rank > 0:
            state, dropout = args.transition_state, args.transition_dropout
            self.transition = TransitionScores(len(dictionary), rank, self.output_embed_dim, state, dropout)
        self.copy_attention = nn.Linear(self.embed_dim, width) if args.src_embedding_copy else None
        for layer in self.layers.children():  # iterating itself, LayerDrop would leave some out
            attention = MaskedAttention(self.embed_dim, layer.nh, dropout=args.attention_dropout, self_attention=True)
            attention.load_state_dict(layer.self_attn.state_dict())
            layer.self_attn = attention
        # Saved in the checkpoint, so that decoding can check that the drafter fits.
        self.register_buffer("trained_block_size", torch.tensor([args.block_size or 0]))
        self.register_buffer("dictionary_fingerprint", dictionary_fingerprint(dictionary))
        self.register_buffer("verifier_fingerprint", torch.tensor([0]))
        # How often each token was a target: see decoding/reference/drafters/path.py.
        self.register_buffer("target_counts", torch.zeros(len(dictionary), dtype=torch.long))
        # Drafted and accepted tokens of the validation set, by position and survival bin.
        size = (2, max(args.block_size or 0, 1), SURVIVAL_BINS)
        self.register_buffer("survival_counts", torch.zeros(size, dtype=torch.long))

    def mask_vectors(
        self,
        positions: Tensor,
        encoder_out: dict[str, list[Tensor]],
        linear: Callable[..., Tensor] = F.linear,
        attend: Callable[..., Tensor] = _attend,
    ) -> Tensor:
        """Return the mask embeddings at `positions` [B, T], [B, T, D] or broadcastable to it.

        This is the learned vector; `--src-embedding-copy` adds a soft copy of the source embeddings, by attention from
        the target position to source positions and embeddings (as GLAT's decoder input). `linear` and `attend` replace
        the operations of this module.
        """
        if self.copy_attention is None:
            return self.mask_vector
        source = encoder_out["encoder_embedding"][0]
        # Of a fixed size, so that embeddings do not depend on the length of other sources.
        table = position_table(self, self.max_positions())
        assert table is not None
        queried = table[positions.clamp(max=table.size(0) - 1)]
        query = linear(queried, self.copy_attention.weight, self.copy_attention.bias)
        padding = encoder_out["encoder_padding_mask"][0]
        # Left-padded sources: the first real token has position 0.
        position = ((~padding).cumsum(1) - 1).clamp(min=0, max=table.size(0) - 1)
        return self.mask_vector + attend(query, source + table[position], source, padding)

    def block_logits(self, hidden: Tensor, blocks: Blocks, targets: Tensor | None = None) -> Tensor:
        """Scores [n, V] of the n targets, given the true tokens before them.

        Args:
            hidden: [B, N*K, D], of `block_hidden`.
            blocks: the blocks.
            targets: [n], indices into the B*N*K positions; None for all.
        """

        def chosen(states: Tensor) -> Tensor:
            return states if targets is None else states.index_select(0, targets)

        logits = self.output_layer(chosen(hidden.flatten(0, 1)))
        if self.transition is None:
            return logits
        by_block = (-1, blocks.block_size)
        factors = self.transition.factors(hidden.reshape(*by_block, hidden.size(2)), blocks.previous.reshape(by_block))
        return torch.addmm(logits, chosen(factors.flatten(0, 1)), self.transition.after.weight.t())

    def block_hidden(
        self, blocks: Blocks, encoder_out: dict[str, list[Tensor]], features: Tensor | None = None
    ) -> Tensor:
        """Hidden states [B, N*K, D] of training blocks, all computed in one pass.

        Args:
            blocks: the blocks.
            encoder_out: output of the encoder.
            features: [B, M, F], the verifier's states of the sentences, for drafters that read them.
        """
        # With the verifier's states, only the blocks are run.
        first = 0 if features is None else blocks.prefix_width
        tokens, positions = blocks.tokens[:, first:], blocks.positions[:, first:]
        is_mask = (tokens == self.mask_id)[:, :, None]
        x = self.embed_scale * self.embed_tokens(tokens.clamp(max=self.mask_id - 1))
        x = torch.where(is_mask, self.mask_vectors(positions, encoder_out).to(x), x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            table = position_table(self, blocks.prefix_width + blocks.block_size)
            assert table is not None
            x = x + table[positions.clamp(max=table.size(0) - 1)]
        contexts = None
        if features is not None:
            contexts, added = self.reader(features)
            contexts = self.dropout_module(contexts).transpose(1, 2)
            x = x + _before_anchors(added, blocks)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)
        memory, padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        numbers = {layer: number for number, layer in enumerate(self.layers.children())}
        for layer in self.layers:  # with LayerDrop, some of them
            context = None if contexts is None else contexts[numbers[layer]]
            if context is not None and layer.normalize_before:
                context = layer.self_attn_layer_norm(context)
            x = layer(x, memory, padding, self_attn_mask=Attended(blocks.visible[:, None], context))[0]
        x = x[blocks.prefix_width - first :]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)


def _before_anchors(states: Tensor, blocks: Blocks) -> Tensor:
    """Return for every input of anchored blocks the state of the token before its anchor, [B, N*K, D]; 0 for none.

    Args:
        states: [B, M, D].
        blocks: anchored blocks.
    """
    anchor = blocks.positions[:, blocks.prefix_width :] - (blocks.draft_positions - 1)
    chosen = states.gather(1, (anchor - 1).clamp(min=0)[:, :, None].expand(-1, -1, states.size(2)))
    return chosen.masked_fill((anchor == 0)[:, :, None], 0)

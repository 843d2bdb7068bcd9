"""Blockwise parallel decoding: a Transformer with k heads that predict the next k tokens (Stern et al. 2018)."""

import logging
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel, base_architecture
from torch import Tensor, nn

from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.checkpoint.settings import as_dict
from fairseq_plugins.errors import ConfigurationError

logger = logging.getLogger(__name__)

_DEFAULT_HEADS = 4
# Options copied from the base model.
_SIZES = ("encoder_", "decoder_", "share_", "max_source_positions", "max_target_positions", "activation_fn")
_FLAGS = ("no_scale_embedding", "layernorm_embedding", "no_token_positional_embeddings", "no_decoder_final_norm")


class BlockwiseDecoder(TransformerDecoder):
    """fairseq's Transformer decoder with a layer of k heads between its output and the vocabulary projection."""

    # CachedDecoder calls output_layer for scores: those of head 1.
    runs_in_cached_decoder = True

    def __init__(self, args: Any, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        self.heads: int = args.blockwise_heads
        self.identity_first_head: bool = args.identity_first_head
        hidden = args.head_ffn_embed_dim or args.decoder.ffn_embed_dim
        self.head_expand = nn.Linear(self.output_embed_dim, self.heads * hidden)
        self.head_shrink = nn.Linear(self.heads * hidden, self.heads * self.output_embed_dim)
        # Every head starts as the base model's own prediction.
        nn.init.zeros_(self.head_shrink.weight)
        nn.init.zeros_(self.head_shrink.bias)

    def head_states(self, hidden: Tensor, first: int, last: int) -> Tensor:
        """Return states [..., last - first + 1, D] of the heads `first` .. `last` (1 to k) for decoder output [..., D].

        A feed-forward layer of hidden size k x d_hidden and output size k x d_model, with a residual connection from
        the input to each output (section 6). With an identity first head, head 1 is the input itself (footnote 1).
        """
        # In training the heads stay in the graph: PyTorch's data parallelism waits for a gradient of every weight.
        if first == last == 1 and self.identity_first_head and not torch.is_grad_enabled():
            return hidden[..., None, :]
        width = self.output_embed_dim
        rows = slice((first - 1) * width, last * width)
        inner = self.head_expand(hidden).relu()
        change = nn.functional.linear(inner, self.head_shrink.weight[rows], self.head_shrink.bias[rows])
        states = hidden[..., None, :] + change.unflatten(-1, (-1, width))
        if first == 1 and self.identity_first_head:
            states = torch.cat([hidden[..., None, :], states[..., 1:, :]], dim=-2)
        return states

    def project(self, states: Tensor) -> Tensor:
        """Apply the base model's vocabulary projection, which all heads share."""
        return super().output_layer(states)

    def output_layer(self, features: Tensor) -> Tensor:
        """Return the scores of head 1, p_1, with which fairseq decodes."""
        return self.project(self.head_states(features, 1, 1)[..., 0, :])


@register_model("blockwise_transformer")
class BlockwiseTransformer(TransformerModel):
    """A pretrained Transformer with k prediction heads (Stern et al. 2018, sections 4 and 6)."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's Transformer options and those of the heads."""
        super().add_args(parser)
        add = parser.add_argument
        base = "stock fairseq Transformer to put the heads on: its sizes and weights are taken over"
        add("--base-path", metavar="MODEL.pt", help=base)
        freeze = "train the heads only; without it, all is fine-tuned (sec. 6.1)"
        add("--freeze-base", action="store_true", help=freeze)
        identity = "leave head 1 to the base model: with --freeze-base the output is exactly its own (footnote 1)"
        add("--identity-first-head", action="store_true", help=identity)
        heads = f"how many tokens are predicted together, k (default: --block-size, else {_DEFAULT_HEADS})"
        add("--blockwise-heads", type=int, metavar="K", help=heads)
        hidden = "hidden units of each head's feed-forward layer (default: those of a decoder layer)"
        add("--head-ffn-embed-dim", type=int, metavar="N", help=hidden)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "BlockwiseTransformer":
        """Build the model: from `--base-path` in training, from its own checkpoint in decoding.

        Raises ConfigurationError for fewer than 2 heads, or a base that is missing or not a Transformer.
        """
        blockwise_transformer(args)
        args.blockwise_heads = args.blockwise_heads or getattr(task.cfg, "block_size", None) or _DEFAULT_HEADS
        if args.blockwise_heads < 2:
            remedy = "give at least 2, one for the next token and one more"
            raise ConfigurationError("--blockwise-heads", args.blockwise_heads, remedy=remedy)
        if not args.base_path or getattr(task, "loading_checkpoint", False):
            return super().build_model(args, task)
        state, base = read_checkpoint(args.base_path, "--base-path")
        for name, value in (as_dict(base) or {}).items():
            if name.startswith(_SIZES) or name in _FLAGS:
                setattr(args, name, value)
        model = super().build_model(args, task)
        _load_base(model, state["model"], args.base_path)
        return model

    def __init__(self, args: Any, encoder: nn.Module, decoder: BlockwiseDecoder) -> None:
        super().__init__(args, encoder, decoder)
        self.base_is_frozen: bool = args.freeze_base
        if self.base_is_frozen:
            self.requires_grad_(False)
            for module in (decoder.head_expand, decoder.head_shrink):
                module.requires_grad_(True)

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> BlockwiseDecoder:
        return BlockwiseDecoder(args, tgt_dict, embed_tokens)

    def train(self, mode: bool = True) -> "BlockwiseTransformer":
        """Set the mode; a frozen base stays in eval mode, since its dropout would only disturb the heads."""
        return super().train(mode and not self.base_is_frozen)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        heads: list[int] | None = None,
        positions: Sequence[Tensor] | None = None,
        **options: Any,
    ) -> Any:
        """Run consecutive heads of 1 to k with teacher forcing; None runs head 1 as fairseq's Transformer does.

        Args:
            positions: where to score with each head, as indices into the B x T positions; None scores at all.

        Returns:
            scores [N, V] of every head at its N positions, else [B, T, V]. Head i scores the token i positions after
            the last one read.
        """
        if heads is None:
            return super().forward(src_tokens, src_lengths, prev_output_tokens, **options)
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        features = self.decoder(prev_output_tokens, encoder_out=encoder_out, features_only=True)[0]
        of_heads = self.decoder.head_states(features, heads[0], heads[-1]).unbind(-2)
        if positions is not None:
            of_heads = [states.flatten(0, 1)[chosen] for states, chosen in zip(of_heads, positions, strict=True)]
        return [self.decoder.project(states) for states in of_heads]


def _load_base(model: BlockwiseTransformer, weights: dict[str, Tensor], path: str) -> None:
    """Load the base model's weights; only those of the heads may be missing."""
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False)
        problems = [name for name in missing if ".head_" not in name] + list(unexpected)
    except RuntimeError as error:
        problems = [" ".join(str(error).split())[:200]]
    if problems:
        problem = "its weights do not fit a fairseq Transformer over this data's dictionaries "
        problem += f"({'; '.join(problems[:3])})"
        raise ConfigurationError("--base-path", path, problem, "give a checkpoint of {--arch transformer}")
    logger.info("--base-path %s: %d tensors taken over", path, len(weights))


@register_model_architecture("blockwise_transformer", "blockwise_transformer")
def blockwise_transformer(args: Namespace) -> None:
    """Set the defaults: the sizes of the base model, or Transformer-base without one."""
    for name in ("base_path", "blockwise_heads", "head_ffn_embed_dim"):
        setattr(args, name, getattr(args, name, None))
    for name in ("freeze_base", "identity_first_head"):
        setattr(args, name, getattr(args, name, False))
    base_architecture(args)

"""The NAT drafter: a Transformer whose decoder reads a prefix and fills a block of masks in one pass."""

import logging
import zlib
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel, base_architecture
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_plugins.data.block_masking import Blocks, glance
from fairseq_plugins.decoding.cached_decoder import position_table
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.loading import load_model

logger = logging.getLogger(__name__)


def fingerprint(*parts: Any) -> Tensor:
    """A number [1] that tells dictionaries (or weights) apart, to be kept in a checkpoint."""
    value = 0
    for part in parts:
        value = zlib.crc32(part if isinstance(part, bytes) else str(part).encode(), value)
    return torch.tensor([value])


def dictionary_fingerprint(dictionary: Dictionary) -> Tensor:
    """Fingerprint [1] of the symbols of a dictionary, in order."""
    return fingerprint("\n".join(dictionary.symbols))


def encoder_fingerprint(encoder: nn.Module) -> Tensor:
    """Fingerprint [1] of an encoder's weights in half precision, so that fp16 copies of a model count as the same."""
    weights = (value for name, value in encoder.state_dict().items() if not name.endswith("version"))
    return fingerprint(*(value.detach().half().cpu().numpy().tobytes() for value in weights))


class MaskedAttention(MultiheadAttention):
    """fairseq's self-attention for a mask that differs between sentences: [B, 1, T, S], True where allowed."""

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, **unused: Any
    ) -> tuple[Tensor, None]:
        """Attend from `query` [T, B, D] to `key` [S, B, D]; returns the output [T, B, D] and no weights."""

        def heads(x: Tensor) -> Tensor:
            return x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3)

        x = F.scaled_dot_product_attention(
            heads(self.q_proj(query)),
            heads(self.k_proj(key)),
            heads(self.v_proj(value)),
            attn_mask=attn_mask,
            dropout_p=self.dropout_module.p if self.training else 0.0,
        )
        return self.out_proj(x.permute(2, 0, 1, 3).flatten(2)), None


class BlockNatDecoder(TransformerDecoder):
    """Decoder of `block_nat`; its layers and weights are those of fairseq's Transformer decoder."""

    # CachedDecoder knows what this class adds: mask vectors, and positions before every layer.
    runs_in_cached_decoder = True

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        width = embed_tokens.embedding_dim
        self.mask_id = len(dictionary)
        self.drafter_attention: str = args.drafter_attention
        self.positions_every_layer: bool = args.positions_every_layer
        self.mask_vector = nn.Parameter(torch.randn(width) * width**-0.5 * self.embed_scale)
        self.copy_attention = nn.Linear(self.embed_dim, width) if args.src_embedding_copy else None
        for layer in self.layers:
            attention = MaskedAttention(
                self.embed_dim, layer.nh, dropout=args.attention_dropout, self_attention=True
            )
            attention.load_state_dict(layer.self_attn.state_dict())
            layer.self_attn = attention
        # Kept in the checkpoint, so that decoding can refuse what does not fit.
        self.register_buffer("trained_block_size", torch.tensor([args.block_size or 0]))
        self.register_buffer("dictionary_fingerprint", dictionary_fingerprint(dictionary))
        self.register_buffer("encoder_fingerprint", torch.tensor([0]))

    def mask_vectors(self, positions: Tensor, encoder_out: dict[str, list[Tensor]]) -> Tensor:
        """What masks at `positions` [B, T] are fed, [B, T, D] or broadcastable to it.

        The learned vector; with `--src-embedding-copy` plus a soft copy of the source embeddings, attended from the
        position in the target to position and embedding in the source (as GLAT feeds its decoder).
        """
        if self.copy_attention is None:
            return self.mask_vector
        source = encoder_out["encoder_embedding"][0]
        table = position_table(self, max(int(positions.max()) + 1, source.size(1)))
        query = self.copy_attention(table[positions.clamp(max=table.size(0) - 1)])
        padding = encoder_out["encoder_padding_mask"][0]
        # Left-padded sources: the first real token has position 0.
        place = ((~padding).cumsum(1) - 1).clamp(min=0, max=table.size(0) - 1)
        copied = F.scaled_dot_product_attention(
            query, source + table[place], source, attn_mask=~padding[:, None, :]
        )
        return self.mask_vector + copied

    def block_hidden(self, blocks: Blocks, encoder_out: dict[str, list[Tensor]]) -> Tensor:
        """Hidden states [B, N*K, D] of the masks of training blocks, all computed in one pass."""
        is_mask = (blocks.tokens == self.mask_id)[:, :, None]
        x = self.embed_scale * self.embed_tokens(blocks.tokens.clamp(max=self.mask_id - 1))
        x = torch.where(is_mask, self.mask_vectors(blocks.positions, encoder_out).to(x), x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        position = None
        if self.embed_positions is not None:
            table = position_table(self, blocks.prefix_width + blocks.block_size)
            position = table[blocks.positions.clamp(max=table.size(0) - 1)]
            x = x + position
            position = position.transpose(0, 1)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)
        visible = blocks.visible[:, None]
        memory, padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        for index, layer in enumerate(self.layers):
            if self.positions_every_layer and index > 0 and position is not None:
                x = x + position
            x = layer(x, memory, padding, self_attn_mask=visible)[0]
        x = x[blocks.prefix_width :]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x)


@register_model("block_nat")
class BlockNat(TransformerModel):
    """Non-autoregressive drafter of GAD and SpecDec (GAD section 3.1, Appendix C)."""

    def __init__(self, args: Namespace, encoder: nn.Module, decoder: BlockNatDecoder) -> None:
        super().__init__(args, encoder, decoder)
        self.shares_encoder: bool = args.share_encoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's Transformer options and the drafter's own."""
        super().add_args(parser)
        parser.add_argument(
            "--drafter-attention",
            choices=["full", "prefix-causal"],
            help="what the prefix attends to: full = everything, as in the papers, computed anew every iteration; "
            "prefix-causal = what is left of it, so that it can be cached (default: prefix-causal)",
        )
        parser.add_argument(
            "--share-encoder",
            action="store_true",
            help="read the frozen encoder of --verifier-path instead of training one; the checkpoint then holds "
            "the decoder only, and the drafter works with this verifier only",
        )
        parser.add_argument(
            "--init-encoder-from", metavar="VERIFIER.pt", help="start the encoder from this checkpoint's"
        )
        parser.add_argument(
            "--init-decoder-from",
            metavar="VERIFIER.pt",
            help="start the decoder from this checkpoint's: embeddings and as many layers as there are",
        )
        parser.add_argument(
            "--src-embedding-copy",
            action="store_true",
            help="add a soft copy of the source embeddings to the mask vector, as GLAT does",
        )
        parser.add_argument(
            "--positions-every-layer",
            action="store_true",
            help="add position embeddings before every decoder layer, not only the first",
        )

    @classmethod
    def build_model(cls, args: Namespace, task: Any, verifier: nn.Module | None = None) -> "BlockNat":
        """Build a drafter.

        Args:
            args: model options.
            task: the task, for dictionaries and, in training, `--verifier-path` and `--block-size`.
            verifier: whose encoder to share; by default the task's.

        Raises:
            ConfigurationError: when options contradict each other or an initial checkpoint does not fit.
        """
        block_nat_base(args)
        args.block_size = getattr(args, "block_size", None) or getattr(task.cfg, "block_size", None)
        model = super().build_model(args, task)
        source_width, target_width = args.encoder_embed_dim, model.decoder.embed_tokens.embedding_dim
        if args.src_embedding_copy and source_width != target_width:
            raise ConfigurationError(
                f"--src-embedding-copy: feeds source embeddings ({source_width} wide) to the decoder ({target_width} "
                "wide); give encoder and decoder the same --encoder-embed-dim and --decoder-embed-dim"
            )
        if args.share_encoder:
            verifier = verifier or task.training_verifier()
            if verifier is None:
                raise ConfigurationError(
                    "--share-encoder: needs the verifier whose encoder to share; add --verifier-path VERIFIER.pt"
                )
            model.adopt_encoder(verifier.encoder)
        for option in ("init_encoder_from", "init_decoder_from"):
            # Not when a trained drafter is loaded: its own weights follow, and the file may be gone.
            if getattr(args, option, None) and not getattr(task, "loading_checkpoint", False):
                _initialise(model, getattr(args, option), task, option)
        return model

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> BlockNatDecoder:
        return BlockNatDecoder(args, tgt_dict, embed_tokens)

    def adopt_encoder(self, encoder: nn.Module) -> None:
        """Read this encoder's output from now on; it is frozen and not part of the checkpoint.

        Raises:
            ConfigurationError: when the encoder's width differs from what the drafter's cross-attention reads.
        """
        width = encoder.layers[0].embed_dim
        expected = self.decoder.layers[0].encoder_attn.kdim
        if width != expected:
            raise ConfigurationError(
                f"--share-encoder: the verifier's encoder is {width} wide, the drafter reads {expected}; "
                f"train it with --encoder-embed-dim {width}"
            )
        self.encoder = encoder.requires_grad_(False).eval()
        self.decoder.encoder_fingerprint = encoder_fingerprint(encoder).to(self.decoder.encoder_fingerprint.device)

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, blocks: Blocks, glancing_ratio: float = 0.0
    ) -> dict[str, Tensor]:
        """Predict masked blocks, in training with glancing.

        Args:
            src_tokens: [B, S].
            src_lengths: [B].
            blocks: the masked blocks.
            glancing_ratio: share of the wrong first predictions to reveal before the second pass; 0 for one pass.

        Returns:
            logits: [n, V] for the n masks that are targets.
            targets: [n].
            glanced_correct, glanced_total: counts [] of the first pass (0 without one).
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        pad = self.decoder.padding_idx
        zero = blocks.targets.new_zeros(())
        correct, total = zero, zero
        if glancing_ratio > 0:
            with torch.no_grad():
                hidden = self.decoder.block_hidden(blocks, encoder_out)
                predicted = self.decoder.output_layer(hidden).argmax(-1)
                correct = ((predicted == blocks.targets) & (blocks.targets != pad)).sum()
                total = (blocks.targets != pad).sum()
                blocks = glance(blocks, predicted, glancing_ratio, pad)
        is_target = blocks.targets != pad
        hidden = self.decoder.block_hidden(blocks, encoder_out)[is_target]
        return {
            "logits": self.decoder.output_layer(hidden),
            "targets": blocks.targets[is_target],
            "glanced_correct": correct,
            "glanced_total": total,
        }

    def train(self, mode: bool = True) -> "BlockNat":
        super().train(mode)
        if self.shares_encoder:
            self.encoder.eval()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().state_dict(*args, **kwargs)
        if self.shares_encoder:
            for name in [name for name in state if name.startswith("encoder.")]:
                del state[name]
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, **kwargs: Any) -> Any:
        if self.shares_encoder:
            trained = int(state_dict["decoder.encoder_fingerprint"])
            if trained != int(self.decoder.encoder_fingerprint):
                raise ConfigurationError(
                    "--share-encoder: this drafter was trained on the encoder of another verifier; "
                    "decode with the verifier it was trained with, or train a drafter for this one"
                )
            own = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
            state_dict = {**own, **state_dict}
        return super().load_state_dict(state_dict, strict, **kwargs)


def _initialise(model: BlockNat, path: str, task: Any, option: str) -> None:
    """Copy the encoder or the decoder of a checkpoint into the drafter, as far as it has layers."""
    flag = "--" + option.replace("_", "-")
    source = load_model(path, task, flag)
    part = "encoder" if "encoder" in option else "decoder"
    theirs, ours = (getattr(m, part).layers[0].activation_fn for m in (source, model))
    if theirs is not ours:
        raise ConfigurationError(
            f"{flag} {path}: its layers use {theirs.__name__}, the drafter's {ours.__name__}; train the drafter with "
            f"--activation-fn {theirs.__name__}"
        )
    wanted, given = getattr(model, part), getattr(source, part).state_dict()
    own = wanted.state_dict()
    shared = {name: value for name, value in given.items() if name in own and not name.endswith("fingerprint")}
    for name, value in shared.items():
        if own[name].shape != value.shape:
            raise ConfigurationError(
                f"{flag} {path}: {part}.{name} is {tuple(value.shape)} there and {tuple(own[name].shape)} in the "
                "drafter; give the drafter the same sizes"
            )
    wanted.load_state_dict(shared, strict=False)
    logger.info("%s %s: %d of %d tensors of the %s taken over", flag, path, len(shared), len(own), part)


@register_model_architecture("block_nat", "block_nat")
@register_model_architecture("block_nat", "block_nat_base")
def block_nat_base(args: Namespace) -> None:
    """Transformer-base: 6-6 layers, 512/2048, 8 heads (GAD section 5.1)."""
    args.drafter_attention = getattr(args, "drafter_attention", None) or "prefix-causal"
    for name in ("share_encoder", "src_embedding_copy", "positions_every_layer"):
        setattr(args, name, getattr(args, name, False))
    args.activation_fn = getattr(args, "activation_fn", "gelu")
    base_architecture(args)


@register_model_architecture("block_nat", "block_nat_tiny")
def block_nat_tiny(args: Namespace) -> None:
    """4-4 layers, 128/256, 4 heads: the size that suits some ten thousand sentences."""
    for side in ("encoder", "decoder"):
        for name, value in (("embed_dim", 128), ("ffn_embed_dim", 256), ("layers", 4), ("attention_heads", 4)):
            setattr(args, f"{side}_{name}", getattr(args, f"{side}_{name}", value))
    block_nat_base(args)


@register_model_architecture("block_nat", "block_nat_big")
def block_nat_big(args: Namespace) -> None:
    """Transformer-big: 6-6 layers, 1024/4096, 16 heads (GAD section 5.3.2)."""
    for side in ("encoder", "decoder"):
        for name, value in (("embed_dim", 1024), ("ffn_embed_dim", 4096), ("attention_heads", 16)):
            setattr(args, f"{side}_{name}", getattr(args, f"{side}_{name}", value))
    block_nat_base(args)


@register_model_architecture("block_nat", "block_nat_12_2")
def block_nat_12_2(args: Namespace) -> None:
    """Deep encoder, shallow decoder: 12-2 layers of base size (SpecDec Appendix B.5)."""
    args.encoder_layers = getattr(args, "encoder_layers", 12)
    args.decoder_layers = getattr(args, "decoder_layers", 2)
    block_nat_base(args)

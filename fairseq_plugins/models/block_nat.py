"""The NAT drafter: a Transformer whose decoder reads a prefix and fills a block of masks in one pass.

The prefix is read as tokens, or as the verifier's states of them (`--drafter-context features`).
"""

import logging
import zlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoder, TransformerModel, base_architecture
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_plugins.data.block_masking import Blocks, glance
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.loading import build_model, read_checkpoint
from fairseq_plugins.models.positions import position_table
from fairseq_plugins.models.transition import TransitionScores
from fairseq_plugins.models.verifier_features import FeatureReader, fit_to_verifier, layer_numbers

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


def weights_fingerprint(module: nn.Module) -> Tensor:
    """Fingerprint [1] of a module's weights in half precision, so that fp16 copies of a model count as the same."""
    weights = (value for name, value in module.state_dict().items() if not name.endswith("version"))
    return fingerprint(*(value.detach().half().cpu().numpy().tobytes() for value in weights))


@dataclass(frozen=True)
class Attended:
    """What training blocks attend to in self-attention.

    Attributes:
        visible: [B, 1, T, C + S], True where allowed.
        context: [C, B, D], keys and values in front of the inputs' own; None for none (C = 0).
    """

    visible: Tensor
    context: Tensor | None = None


class MaskedAttention(MultiheadAttention):
    """fairseq's self-attention for a mask that differs between sentences, and with context in front of the inputs."""

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Attended, **unused: Any
    ) -> tuple[Tensor, None]:
        """Attend from `query` [T, B, D] to `key` [S, B, D]; returns the output [T, B, D] and no weights."""
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


class BlockNatDecoder(TransformerDecoder):
    """Decoder of `block_nat`; its layers and weights are those of fairseq's Transformer decoder."""

    # CachedDecoder knows what this class adds: mask vectors, and positions before every layer.
    runs_in_cached_decoder = True

    def __init__(self, args: Namespace, dictionary: Dictionary, embed_tokens: nn.Embedding) -> None:
        super().__init__(args, dictionary, embed_tokens)
        width = embed_tokens.embedding_dim
        self.mask_id = len(dictionary)
        self.reads_features: bool = args.drafter_context == "features"
        self.drafter_attention: str = "features" if self.reads_features else args.drafter_attention
        if self.reads_features:
            self.reader = FeatureReader(layer_numbers(args.feature_layers), len(self.layers), self.embed_dim)
        self.positions_every_layer: bool = args.positions_every_layer
        self.mask_vector = nn.Parameter(torch.randn(width) * width**-0.5 * self.embed_scale)
        rank: int = args.transition_rank
        self.transition = TransitionScores(len(dictionary), rank) if rank > 0 else None
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
        self.register_buffer("verifier_fingerprint", torch.tensor([0]))
        # How often each token was a target: see decoding/drafters/vocabulary.py.
        self.register_buffer("target_counts", torch.zeros(len(dictionary), dtype=torch.long))

    def mask_vectors(self, positions: Tensor, encoder_out: dict[str, list[Tensor]]) -> Tensor:
        """What masks at `positions` [B, T] are fed, [B, T, D] or broadcastable to it.

        The learned vector; with `--src-embedding-copy` plus a soft copy of the source embeddings, attended from the
        position in the target to position and embedding in the source (as GLAT feeds its decoder).
        """
        if self.copy_attention is None:
            return self.mask_vector
        source = encoder_out["encoder_embedding"][0]
        # No look at the positions themselves, for which a device would be waited for.
        table = position_table(self, max(self.max_positions(), positions.size(1), source.size(1)))
        query = self.copy_attention(table[positions.clamp(max=table.size(0) - 1)])
        padding = encoder_out["encoder_padding_mask"][0]
        # Left-padded sources: the first real token has position 0.
        place = ((~padding).cumsum(1) - 1).clamp(min=0, max=table.size(0) - 1)
        copied = F.scaled_dot_product_attention(
            query, source + table[place], source, attn_mask=~padding[:, None, :]
        )
        return self.mask_vector + copied

    def block_logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Scores [..., V] from hidden states [..., D] and the tokens [...] before."""
        logits = self.output_layer(hidden)
        return logits if self.transition is None else self.transition(logits, previous)

    def block_hidden(
        self, blocks: Blocks, encoder_out: dict[str, list[Tensor]], features: Tensor | None = None
    ) -> Tensor:
        """Hidden states [B, N*K, D] of training blocks, all computed in one pass.

        Args:
            blocks: the blocks.
            encoder_out: what the encoder returns.
            features: [B, M, F] the verifier's states of the sentences, for drafters that read them.
        """
        # Where states stand for the sentence, only the blocks are run.
        first = 0 if features is None else blocks.prefix_width
        tokens, positions = blocks.tokens[:, first:], blocks.positions[:, first:]
        is_mask = (tokens == self.mask_id)[:, :, None]
        x = self.embed_scale * self.embed_tokens(tokens.clamp(max=self.mask_id - 1))
        x = torch.where(is_mask, self.mask_vectors(positions, encoder_out).to(x), x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        position = None
        if self.embed_positions is not None:
            table = position_table(self, blocks.prefix_width + blocks.block_size)
            position = table[positions.clamp(max=table.size(0) - 1)]
            x = x + position
            position = position.transpose(0, 1)
        contexts = None
        if features is not None:
            contexts, added = self.reader(features)
            contexts = self.dropout_module(contexts).transpose(1, 2)
            x = x + _before_anchors(added, blocks)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x).transpose(0, 1)
        memory, padding = encoder_out["encoder_out"][0], encoder_out["encoder_padding_mask"][0]
        for index, layer in enumerate(self.layers):
            if self.positions_every_layer and index > 0 and position is not None:
                x = x + position
            context = None if contexts is None else contexts[index]
            if context is not None and layer.normalize_before:
                context = layer.self_attn_layer_norm(context)
            x = layer(x, memory, padding, self_attn_mask=Attended(blocks.visible[:, None], context))[0]
        x = x[blocks.prefix_width - first :]
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
        # The verifier's decoder, whose states are read: frozen, and not part of the checkpoint.
        self.verifier_decoder: nn.Module | None = None

    @property
    def reads_features(self) -> bool:
        """Whether the prefix is read as the verifier's states."""
        return self.decoder.reads_features

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
            "--drafter-context",
            choices=["tokens", "features"],
            help="how the drafter reads the prefix: tokens = embeds and runs them, as in the papers; features = reads "
            "the states that the verifier (--verifier-path) has of them, with its embeddings and vocabulary "
            "projection, which makes a shallow drafter enough (default: tokens)",
        )
        parser.add_argument(
            "--drafter-layers",
            dest="decoder_layers",
            type=int,
            metavar="N",
            help="the same as --decoder-layers (default with --drafter-context features: 2)",
        )
        parser.add_argument(
            "--feature-layers",
            metavar="N,N,...",
            help="--drafter-context features: which of the verifier's decoder layers to read, 0 for the embedding "
            "(default: what its first layers read, as many as the drafter has, and its last)",
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
            metavar="MODEL.pt",
            help="start the decoder from this checkpoint's: embeddings and as many layers as there are; the "
            "verifier's, or a drafter's, whichever verifier that was trained with",
        )
        parser.add_argument(
            "--src-embedding-copy",
            action="store_true",
            help="add a soft copy of the source embeddings to the mask vector, as GLAT does",
        )
        parser.add_argument(
            "--transition-rank",
            type=int,
            metavar="R",
            help="learn scores of a token given the drafted one before it, a V x V matrix of this rank, and choose a "
            "draft's tokens one after the other among the best of each place (default: 0, each place by itself)",
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
        if args.transition_rank < 0:
            raise ConfigurationError(f"--transition-rank {args.transition_rank}: give 0 (none) or more")
        args.block_size = getattr(args, "block_size", None) or getattr(task.cfg, "block_size", None)
        if args.share_encoder:
            verifier = verifier or task.training_verifier()
            if verifier is None:
                needing = "--drafter-context features" if args.drafter_context == "features" else "--share-encoder"
                raise ConfigurationError(f"{needing}: needs the verifier to read; add --verifier-path VERIFIER.pt")
        if args.drafter_context == "features":
            fit_to_verifier(args, verifier)
        model = super().build_model(args, task)
        source_width, target_width = args.encoder_embed_dim, model.decoder.embed_tokens.embedding_dim
        if args.src_embedding_copy and source_width != target_width:
            raise ConfigurationError(
                f"--src-embedding-copy: feeds source embeddings ({source_width} wide) to the decoder ({target_width} "
                "wide); give encoder and decoder the same --encoder-embed-dim and --decoder-embed-dim"
            )
        if args.drafter_context == "features":
            model.adopt_verifier(verifier)
        elif args.share_encoder:
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
        self._remember_verifier(encoder)

    def adopt_verifier(self, verifier: nn.Module) -> None:
        """Read this verifier's encoder output and decoder states; its weights are frozen and not in the checkpoint."""
        self.adopt_encoder(verifier.encoder)
        decoder = self.verifier_decoder = verifier.decoder.requires_grad_(False).eval()
        for name in ("embed_tokens", "output_projection", "project_in_dim", "project_out_dim", "embed_scale"):
            setattr(self.decoder, name, getattr(decoder, name))
        self._remember_verifier(verifier)

    def _remember_verifier(self, part: nn.Module) -> None:
        self.decoder.verifier_fingerprint = weights_fingerprint(part).to(self.decoder.verifier_fingerprint.device)

    @property
    def borrowed(self) -> tuple[str, ...]:
        """Beginnings of the names of weights that belong to the verifier."""
        if self.reads_features:
            parts = ("embed_tokens", "output_projection", "project_in_dim", "project_out_dim")
            return ("encoder.", "verifier_decoder.", *(f"decoder.{part}." for part in parts))
        return ("encoder.",) if self.shares_encoder else ()

    @torch.no_grad()
    def _verifier_states(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Teacher forcing: states [B, M, F] of the layers to read, and [B, M, D] as they enter the projection."""
        assert self.verifier_decoder is not None
        last, extra = self.verifier_decoder(prev_output_tokens, encoder_out=encoder_out, features_only=True)
        layers = [extra["inner_states"][number].transpose(0, 1) for number in self.decoder.reader.feature_layers]
        return torch.cat(layers, -1), last

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        blocks: Blocks,
        glancing_ratio: float = 0.0,
        soft_targets: bool = False,
    ) -> dict[str, Tensor]:
        """Predict masked blocks, in training with glancing.

        Args:
            src_tokens: [B, S].
            src_lengths: [B].
            blocks: the masked blocks.
            glancing_ratio: share of the wrong first predictions to reveal before the second pass; 0 for one pass.
            soft_targets: return the verifier's distributions, too.

        Returns:
            logits: [n, V] for the n masks that are targets.
            targets: [n].
            places: [n], their places in the draft, from 1.
            verifier_log_probs: [n, V], what the verifier says of these places, with `soft_targets`.
            glanced_correct, glanced_total: counts [] of the first pass (0 without one).
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        features, last = None, None
        if self.reads_features:
            features, last = self._verifier_states(blocks.tokens[:, : blocks.prefix_width], encoder_out)
        elif soft_targets:
            raise ConfigurationError("--soft-targets: needs the verifier's states; add --drafter-context features")
        pad = self.decoder.padding_idx
        if self.training:
            seen = blocks.targets[blocks.targets != pad]
            self.decoder.target_counts.index_add_(0, seen, torch.ones_like(seen))
        zero = blocks.targets.new_zeros(())
        correct, total = zero, zero
        if glancing_ratio > 0:
            with torch.no_grad():
                hidden = self.decoder.block_hidden(blocks, encoder_out, features)
                predicted = self.decoder.block_logits(hidden, blocks.previous).argmax(-1)
                correct = ((predicted == blocks.targets) & (blocks.targets != pad)).sum()
                total = (blocks.targets != pad).sum()
                blocks = glance(blocks, predicted, glancing_ratio, pad)
        is_target = blocks.targets != pad
        hidden = self.decoder.block_hidden(blocks, encoder_out, features)[is_target]
        output = {
            "logits": self.decoder.block_logits(hidden, blocks.previous[is_target]),
            "targets": blocks.targets[is_target],
            "places": blocks.places.expand_as(is_target)[is_target],
            "glanced_correct": correct,
            "glanced_total": total,
        }
        if soft_targets:
            output["verifier_log_probs"] = self._verifier_log_probs(last, blocks, is_target)
        return output

    @torch.no_grad()
    def _verifier_log_probs(self, last: Tensor, blocks: Blocks, is_target: Tensor) -> Tensor:
        """The verifier's log-probabilities [n, V] at the n targets, from its teacher-forced states [B, M, D]."""
        assert self.verifier_decoder is not None
        places = blocks.positions[:, blocks.prefix_width :].clamp(max=last.size(1) - 1)
        states = last.gather(1, places[:, :, None].expand(-1, -1, last.size(2)))[is_target]
        return self.verifier_decoder.output_layer(states).float().log_softmax(-1)

    def train(self, mode: bool = True) -> "BlockNat":
        super().train(mode)
        if self.shares_encoder:
            self.encoder.eval()
        if self.verifier_decoder is not None:
            # Its embeddings and projections, which the drafter uses, have no mode.
            self.verifier_decoder.eval()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().state_dict(*args, **kwargs)
        for name in [name for name in state if name.startswith(self.borrowed)]:
            del state[name]
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, **kwargs: Any) -> Any:
        # Drafters of earlier versions did not count.
        counts = {"decoder.target_counts": self.decoder.target_counts}
        state_dict = {**counts, **state_dict}
        if self.borrowed:
            trained = int(state_dict["decoder.verifier_fingerprint"])
            if trained != int(self.decoder.verifier_fingerprint):
                raise ConfigurationError(
                    f"{'--drafter-context features' if self.reads_features else '--share-encoder'}: this drafter was "
                    "trained on the states of another verifier; decode with the verifier it was trained with, or train "
                    "a drafter for this one"
                )
            own = super().state_dict()
            state_dict = {**{name: own[name] for name in own if name.startswith(self.borrowed)}, **state_dict}
        return super().load_state_dict(state_dict, strict, **kwargs)


def _before_anchors(states: Tensor, blocks: Blocks) -> Tensor:
    """For every input of anchored blocks the state of the token before its anchor, [B, N*K, D]; 0 for none.

    Args:
        states: [B, M, D].
        blocks: anchored blocks.
    """
    anchor = blocks.positions[:, blocks.prefix_width :] - (blocks.places - 1)
    chosen = states.gather(1, (anchor - 1).clamp(min=0)[:, :, None].expand(-1, -1, states.size(2)))
    return chosen.masked_fill((anchor == 0)[:, :, None], 0)


def _weights_of(path: str, task: Any, flag: str, part: str) -> tuple[dict[str, Tensor], Callable[[Tensor], Tensor]]:
    """Weights and activation function of the encoder or the decoder of a checkpoint."""
    state, cfg = read_checkpoint(path, flag)
    if "decoder.verifier_fingerprint" in state["model"]:
        # A drafter that reads another verifier cannot be built here, and need not be.
        beginning = f"{part}."
        weights = {n.removeprefix(beginning): v for n, v in state["model"].items() if n.startswith(beginning)}
        return weights, utils.get_activation_fn(cfg.activation_fn)
    source = getattr(build_model(state, cfg, path, task, flag), part)
    return source.state_dict(), source.layers[0].activation_fn


def _initialise(model: BlockNat, path: str, task: Any, option: str) -> None:
    """Copy the encoder or the decoder of a checkpoint into the drafter, as far as it has layers."""
    flag = "--" + option.replace("_", "-")
    part = "encoder" if "encoder" in option else "decoder"
    given, theirs = _weights_of(path, task, flag, part)
    ours = getattr(model, part).layers[0].activation_fn
    if theirs is not ours:
        raise ConfigurationError(
            f"{flag} {path}: its layers use {theirs.__name__}, the drafter's {ours.__name__}; train the drafter with "
            f"--activation-fn {theirs.__name__}"
        )
    wanted = getattr(model, part)
    own = wanted.state_dict()
    shared = {
        name: value
        for name, value in given.items()
        if name in own
        and not name.endswith(("fingerprint", "trained_block_size", "target_counts"))
        and not f"{part}.{name}".startswith(model.borrowed)
    }
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
    args.drafter_context = getattr(args, "drafter_context", None) or "tokens"
    args.feature_layers = getattr(args, "feature_layers", None)
    args.drafter_attention = getattr(args, "drafter_attention", None) or "prefix-causal"
    args.transition_rank = getattr(args, "transition_rank", None) or 0
    for name in ("share_encoder", "src_embedding_copy", "positions_every_layer"):
        setattr(args, name, getattr(args, name, False))
    if args.drafter_context == "features":
        args.share_encoder = True
        args.decoder_layers = getattr(args, "decoder_layers", 2)
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

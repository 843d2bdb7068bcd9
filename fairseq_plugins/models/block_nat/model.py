"""The model `block_nat`: encoder, decoder and, for features, the verifier; construction, training and checkpoints."""

from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, register_model
from fairseq.models.transformer import TransformerDecoderBase, TransformerModel
from fairseq.modules import LayerDropModuleList
from torch import Tensor, nn

from fairseq_plugins.checkpoint.session import options_of
from fairseq_plugins.data.block_masking import Blocks, glance
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat.decoder import BlockNatDecoder
from fairseq_plugins.models.block_nat.initialisation import initialise
from fairseq_plugins.models.block_nat.options import add_options, check_options, set_defaults, take_sizes
from fairseq_plugins.models.fairseq_parts import set_activation
from fairseq_plugins.models.support import unsupported_reason
from fairseq_plugins.models.verifier_features import fit_to_verifier
from fairseq_plugins.shared.fingerprints import weights_fingerprint

_PROJECTIONS = ("embed_tokens", "output_projection", "project_in_dim", "project_out_dim")
# Prefixes of the names of weights that belong to the verifier, with --drafter-context features.
OF_VERIFIER = ("encoder.", "verifier_decoder.", *(f"decoder.{name}." for name in _PROJECTIONS))

# The option by which a drafter reads states of the verifier, by whether it reads its features.
_READING: dict[bool, tuple[str, str | None]] = {
    False: ("--share-encoder", None),
    True: ("--drafter-context", "features"),
}


@register_model("block_nat")
class BlockNat(TransformerModel):
    """Non-autoregressive drafter of GAD and SpecDec (GAD section 3.1, Appendix C)."""

    def __init__(self, args: Namespace, encoder: nn.Module, decoder: BlockNatDecoder) -> None:
        super().__init__(args, encoder, decoder)
        set_activation(args.activation_fn, encoder, decoder)
        self.shares_encoder: bool = args.share_encoder
        self.tunes_verifier: bool = args.tune_verifier
        # The decoder whose states are read. Like the encoder it is frozen and not saved, except with --tune-verifier.
        self.verifier_decoder: TransformerDecoderBase | None = None

    @property
    def reads_features(self) -> bool:
        """Whether the drafter reads the verifier's states instead of tokens."""
        return self.decoder.reads_features

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's Transformer options and the drafter's own."""
        super().add_args(parser)
        add_options(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: Any, verifier: FairseqEncoderDecoderModel | None = None) -> "BlockNat":
        """Build a drafter for a verifier, by default that of the task's `--verifier-path`.

        Raises ConfigurationError if options contradict each other or an initial checkpoint does not fit.
        """
        set_defaults(args)
        check_options(args)
        args.block_size = getattr(args, "block_size", None) or getattr(options_of(task), "block_size", None)
        if args.share_encoder:
            verifier = verifier or task.training_verifier()
            if verifier is None:
                problem = "needs the verifier to read"
                remedy = "add {--verifier-path VERIFIER.pt}"
                raise ConfigurationError(*_READING[args.drafter_context == "features"], problem, remedy)
        is_new = not getattr(task, "loading_checkpoint", False)
        if is_new:
            take_sizes(args, getattr(verifier, "args", None) if args.drafter_context == "features" else None)
            if verifier is not None and args.share_encoder and "encoder_embed_dim" not in args.given_options:
                args.encoder_embed_dim = verifier.encoder.layers[0].embed_dim
        if args.drafter_context == "features":
            fit_to_verifier(args, verifier)
        model = super().build_model(args, task)
        reason = unsupported_reason(model.decoder)
        if reason is not None:
            raise ConfigurationError("--arch", "block_nat", f"cannot draft: {reason}", "leave that out")
        source_width, target_width = args.encoder_embed_dim, model.decoder.embed_tokens.embedding_dim
        if args.src_embedding_copy and source_width != target_width:
            problem = f"feeds source embeddings ({source_width} wide) to the decoder ({target_width} wide)"
            remedy = "give encoder and decoder the same {--encoder-embed-dim} and {--decoder-embed-dim}"
            raise ConfigurationError("--src-embedding-copy", None, problem, remedy)
        if args.drafter_context == "features":
            model.adopt_verifier(verifier)
        elif verifier is not None and args.share_encoder:
            model.adopt_encoder(verifier.encoder)
        for option in ("init_encoder_from", "init_decoder_from"):
            # Not for a loaded drafter, which has its own weights; the file may no longer exist.
            if getattr(args, option, None) and is_new:
                initialise(model, getattr(args, option), task, option)
        return model

    @classmethod
    def build_decoder(cls, args: Any, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> BlockNatDecoder:
        return BlockNatDecoder(args, tgt_dict, embed_tokens)

    def adopt_encoder(self, encoder: FairseqEncoder) -> None:
        """Use this encoder, which is frozen and not part of the checkpoint; refuse one of another width."""
        width = encoder.layers[0].embed_dim
        expected = self.decoder.layers[0].encoder_attn.kdim
        if width != expected:
            problem = f"the verifier's encoder is {width} wide, the drafter reads {expected}"
            raise ConfigurationError("--share-encoder", None, problem, f"train it with {{--encoder-embed-dim {width}}}")
        self.encoder = encoder.requires_grad_(self.tunes_verifier).eval()
        self._remember_verifier(encoder)

    def adopt_verifier(self, verifier: FairseqEncoderDecoderModel) -> None:
        """Use this verifier's encoder output and decoder states."""
        self.adopt_encoder(verifier.encoder)
        decoder = self.verifier_decoder = verifier.decoder.requires_grad_(self.tunes_verifier).eval()
        if isinstance(decoder.layers, LayerDropModuleList):
            decoder.layers.p = 0.0  # their states are read by number
        for name in (*_PROJECTIONS, "embed_scale"):
            setattr(self.decoder, name, getattr(decoder, name))
        self._remember_verifier(verifier)

    @staticmethod
    def check_verifier(state: dict[str, Any], args: Any, verifier: FairseqEncoderDecoderModel) -> None:
        """Raise ValueError if a checkpoint's drafter was trained on the encoder or states of another verifier."""
        reads_features = getattr(args, "drafter_context", None) == "features"
        trained = state.get("decoder.verifier_fingerprint")
        if trained is None or not (reads_features or getattr(args, "share_encoder", False)):
            return
        if int(trained) != int(weights_fingerprint(verifier if reads_features else verifier.encoder)):
            raise ValueError("was trained on the states of another verifier")

    def _remember_verifier(self, part: nn.Module) -> None:
        self.decoder.verifier_fingerprint = weights_fingerprint(part).to(self.decoder.verifier_fingerprint.device)

    @property
    def borrowed(self) -> tuple[str, ...]:
        """Prefixes of the names of weights that belong to the verifier."""
        if self.reads_features:
            return OF_VERIFIER
        return ("encoder.",) if self.shares_encoder else ()

    @property
    def not_saved(self) -> tuple[str, ...]:
        """Prefixes of the names of weights that are not part of the checkpoint."""
        return () if self.tunes_verifier else self.borrowed

    def _verifier_states(
        self, prev_output_tokens: Tensor, encoder_out: dict[str, list[Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return teacher-forced states [B, M, F] of the layers to read, and [B, M, D] of the last layer."""
        assert self.verifier_decoder is not None
        last, extra = self.verifier_decoder(prev_output_tokens, encoder_out=encoder_out, features_only=True)
        layers = [extra["inner_states"][number].transpose(0, 1) for number in self.decoder.reader.feature_layers]
        return torch.cat(layers, -1), last

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
            draft_positions: [n], their positions in the draft, from 1.
            verifier_logits: [B, M, V], the verifier's for the sentences, with `--tune-verifier`.
            glanced_correct, glanced_total: counts [] of the first pass (0 without one).
        """
        encoder_out = self.encoder(src_tokens, src_lengths=src_lengths)
        features: Tensor | None = None
        last: Tensor | None = None
        if self.reads_features:
            features, last = self._verifier_states(blocks.tokens[:, : blocks.prefix_width], encoder_out)
        pad = self.decoder.padding_idx
        if self.training:
            self.decoder.target_counts.index_add_(0, blocks.targets.flatten(), (blocks.targets != pad).flatten().long())
        zero = blocks.targets.new_zeros(())
        correct, total = zero, zero
        if glancing_ratio > 0:
            with torch.no_grad():
                hidden = self.decoder.block_hidden(blocks, encoder_out, features)
                predicted = self.decoder.block_logits(hidden, blocks).argmax(-1).view_as(blocks.targets)
                correct = ((predicted == blocks.targets) & (blocks.targets != pad)).sum()
                total = (blocks.targets != pad).sum()
                blocks = glance(blocks, predicted, glancing_ratio, pad)
        hidden = self.decoder.block_hidden(blocks, encoder_out, features)
        # The one synchronisation of an update before its gradients: how many targets there are.
        targets = (blocks.targets != pad).flatten().nonzero()[:, 0]
        output = {
            "logits": self.decoder.block_logits(hidden, blocks, targets),
            "targets": blocks.targets.flatten()[targets],
            "draft_positions": blocks.draft_positions[targets % blocks.targets.size(1)],
            "glanced_correct": correct,
            "glanced_total": total,
        }
        if self.tunes_verifier:
            assert self.verifier_decoder is not None
            output["verifier_logits"] = self.verifier_decoder.output_layer(last)
        return output

    def train(self, mode: bool = True) -> "BlockNat":
        super().train(mode)
        if self.tunes_verifier:
            return self
        if self.shares_encoder:
            self.encoder.eval()
        if self.verifier_decoder is not None:
            # The embeddings and projections that the drafter shares do not depend on the mode.
            self.verifier_decoder.eval()
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state = super().state_dict(*args, **kwargs)
        for name in [name for name in state if name.startswith(self.not_saved)]:
            del state[name]
        return state

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, **kwargs: Any) -> Any:
        # Of a RuntimeError, as of PyTorch's misfits, fairseq-train's line names the file.
        instead = "--init-decoder-from would start from its weights"
        if "decoder.verifier_fingerprint" not in state_dict:
            raise RuntimeError(f"it is no drafter, or one from before version 0.1; {instead}")
        # Drafters of earlier versions have no counts.
        counts = {f"decoder.{name}": getattr(self.decoder, name) for name in ("target_counts", "survival_counts")}
        state_dict = {**counts, **state_dict}
        trained, size = (given["decoder.survival_counts"].size(1) for given in (state_dict, counts))
        if trained != size:
            raise RuntimeError(f"trained with --block-size {trained}, not {size}; {instead}")
        if self.not_saved:
            trained = int(state_dict["decoder.verifier_fingerprint"])
            if trained != int(self.decoder.verifier_fingerprint):
                problem = "this drafter was trained on the states of another verifier"
                remedy = "decode with the verifier it was trained with, or train a drafter for this one"
                raise ConfigurationError(*_READING[self.reads_features], problem, remedy)
            own = super().state_dict(keep_vars=True)
            state_dict = {**{name: own[name] for name in own if name.startswith(self.borrowed)}, **state_dict}
        return super().load_state_dict(state_dict, strict, **kwargs)

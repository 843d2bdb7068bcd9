"""Fuse the verifier's decoder states for a drafter with `--drafter-context features` (docs/drafters.md)."""

from argparse import Namespace

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor, nn

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.support import unsupported_reason


class FeatureReader(nn.Module):
    """Projects the verifier's states of a token to the drafter's representation of it.

    DFlash (arXiv 2602.06036) fuses the states once for all layers. One fusion per layer lets a layer copied from the
    verifier start with the same inputs as there. The newest state, which predicted the last token, is also added to the
    drafter's input, as in EAGLE (arXiv 2401.15077).

    Args:
        feature_layers: decoder layers of the verifier whose states are read, 0 for the embedding.
        drafter_layers: layers of the drafter, L.
        width: width of both, D.
    """

    def __init__(self, feature_layers: list[int], drafter_layers: int, width: int) -> None:
        super().__init__()
        self.feature_layers = feature_layers
        self.drafter_layers = drafter_layers
        self.linear = nn.Linear(len(feature_layers) * width, (drafter_layers + 1) * width)
        nn.init.zeros_(self.linear.bias)
        # Without noise: noise makes a copy of all verifier layers predict another next token in one of seven cases.
        nn.init.zeros_(self.linear.weight)
        weight = self.linear.weight.data.view(drafter_layers + 1, width, len(feature_layers), width)
        for layer in range(drafter_layers):
            chosen = feature_layers.index(layer) if layer in feature_layers else -1
            weight[layer, :, chosen] = torch.eye(width)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Fuse features [B, T, F], the concatenated states of the layers; returns as `split`."""
        return self.split(self.linear(features))

    def split(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """Split the output [B, T, (L + 1) * D] of `linear`.

        Returns:
            contexts [L, B, T, D], which each layer reads instead of its own states of the tokens; and [B, T, D], added
            to the input of a block whose anchor comes after the token.
        """
        parts = fused.unflatten(-1, (self.drafter_layers + 1, -1))
        return parts[:, :, :-1].permute(2, 0, 1, 3), parts[:, :, -1]


def layer_numbers(text: str) -> list[int]:
    """Parse the layer numbers of `--feature-layers`; raise ConfigurationError for invalid ones."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0:
        problem = "give numbers of the verifier's decoder layers, 0 for the embedding, with commas between"
        raise ConfigurationError("--feature-layers", text, problem)
    return numbers


def fit_to_verifier(args: Namespace, verifier: FairseqEncoderDecoderModel) -> None:
    """Set the sizes in a drafter's options `args` to those of the verifier whose states and embeddings it uses.

    Raises ConfigurationError for an unsupported verifier, or options that contradict `features`.
    """
    decoder = verifier.decoder
    reason = unsupported_reason(decoder)
    if reason is not None:
        raise ConfigurationError("--drafter-context", "features", f"the verifier cannot be used for drafting: {reason}")
    if args.drafter_attention == "full":
        problem = "a drafter with {--drafter-context features} runs no prefix"
        raise ConfigurationError("--drafter-attention", "full", problem, "leave it out")
    args.encoder_embed_dim = verifier.encoder.layers[0].embed_dim
    args.decoder_embed_dim = decoder.embed_dim
    args.decoder_input_dim = decoder.embed_tokens.embedding_dim
    args.decoder_output_dim = decoder.output_embed_dim
    args.share_all_embeddings = args.share_decoder_input_output_embed = False
    count = len(decoder.layers)
    if args.feature_layers is None:
        # Inputs of the verifier's first layers, one for each of the drafter's, and the output of the last.
        args.feature_layers = ",".join(map(str, [*range(min(args.decoder_layers, count)), count]))
    highest = max(layer_numbers(args.feature_layers))
    if highest > count:
        raise ConfigurationError("--feature-layers", highest, f"the verifier's decoder has {count} layers")

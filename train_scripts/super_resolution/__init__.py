"""A Transformer for images as sequences, initialised with coordinates and intensities.

Image Transformer (Parmar et al. 2018), the base model of Stern et al. 2018, section 7.2, reads coordinates of rows and
columns. Here they initialise fairseq's learned positions, and intensities initialise the embeddings. The decoder's
first layer initially attends to the input pixel at its own position, so that the untrained model enlarges its input.
Everything else is fairseq's Transformer: checkpoints decode and take blockwise heads like any other. This folder is the
`--user-dir` of the recipe; it includes fairseq_plugins.
"""

import math
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from torch import Tensor

from fairseq_plugins.errors import ConfigurationError

# Pixels along a side of the input (Stern et al. 2018, section 7.2).
LOW_SIZE = 8
# Initial scales of the decoder's cross-attention: of queries and keys, and of its output.
_QUERY_SCALE, _OUTPUT_SCALE = 2.0, 6.0


def wavelengths(longest: float, shortest: float, count: int) -> Tensor:
    """Return wavelengths from longest to shortest, [count]."""
    return torch.logspace(math.log2(longest), math.log2(shortest), count, base=2)


def waves(values: Tensor, longest: float, shortest: float, count: int) -> Tensor:
    """Return sines and cosines [N, 2 * count] of values [N], at wavelengths from longest to shortest."""
    angles = 2 * math.pi * values[:, None] / wavelengths(longest, shortest, count)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def coordinates(size: int, width: int) -> Tensor:
    """Return features of channel, row and column of every token of an image, [3 * size * size, width].

    Rows and columns are in pixels of the low resolution, so that coordinates of input and output agree.
    """
    position = torch.arange(3 * size * size)
    count = (width - 3) // 4
    features = torch.zeros(len(position), width)
    features[position, position % 3] = 1
    middle = 0.5 * LOW_SIZE / size
    rows = (position // (3 * size)) * LOW_SIZE / size + middle
    columns = (position // 3 % size) * LOW_SIZE / size + middle
    features[:, 3 : 3 + 2 * count] = waves(rows, 4 * LOW_SIZE, 1, count)
    features[:, 3 + 2 * count : 3 + 4 * count] = waves(columns, 4 * LOW_SIZE, 1, count)
    return features


@register_model("image_transformer")
class ImageTransformer(TransformerModel):
    """fairseq's Transformer over a dictionary of intensities, with learned positions initialised by coordinates."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's Transformer options and those of the image."""
        super().add_args(parser)
        parser.add_argument("--image-size", type=int, metavar="N", help="pixels along a side of the output")

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "ImageTransformer":
        """Build the model and initialise its embeddings with intensities and coordinates.

        Raises ConfigurationError without an image size, or for embeddings too narrow for coordinates.
        """
        image_transformer(args)
        if not args.image_size or args.image_size < LOW_SIZE:
            raise ConfigurationError(
                "--image-size", args.image_size, remedy=f"give at least {LOW_SIZE} pixels along a side"
            )
        if args.encoder_embed_dim < 16:
            raise ConfigurationError("--encoder-embed-dim", args.encoder_embed_dim, remedy="give at least 16")
        model = super().build_model(args, task)
        half = args.encoder_embed_dim // 2
        _set_values(model.decoder.embed_tokens.weight.data, task.target_dictionary, half, args.no_scale_embedding)
        for positions, size in (
            (model.encoder.embed_positions, LOW_SIZE),
            (model.decoder.embed_positions, args.image_size),
        ):
            features = coordinates(size, args.encoder_embed_dim - half)
            first = positions.padding_idx + 1
            positions.weight.data[first:].normal_(std=0.01)
            positions.weight.data[first : first + len(features), half:] = features
        _look_at_own_pixel(model.decoder, half)
        return model


def _set_values(embeddings: Tensor, dictionary: Dictionary, half: int, unscaled: bool) -> None:
    """Give similar intensities similar embeddings: waves in the first half of the width, zeros in the other."""
    numbers = [(index, int(symbol)) for index, symbol in enumerate(dictionary.symbols) if symbol.isdecimal()]
    if not numbers:
        problem = "the dictionary has no numbers"
        raise ConfigurationError("--arch", "image_transformer", problem, "give a corpus of images")
    indices, values = (torch.tensor(column) for column in zip(*numbers, strict=True))
    features = waves(values.float(), 1024, 16, half // 2)
    # fairseq scales embeddings by the square root of their width.
    scale = 1.0 if unscaled else embeddings.size(1) ** -0.5
    embeddings[indices] = 0.0
    embeddings[indices, : features.size(1)] = scale * features


def _look_at_own_pixel(decoder: Any, half: int) -> None:
    """Let heads of the first layer attend to the input pixel at a token's position and copy its intensity.

    Features before `half` are intensities, those after it coordinates. A head compares the shortest waves of the
    coordinates that still tell neighbouring pixels apart, as many as fit its width.
    """
    attention, width = decoder.layers[0].encoder_attn, decoder.embed_dim
    count = (width - half - 3) // 4
    long = [index for index, length in enumerate(wavelengths(4 * LOW_SIZE, 1, count).tolist()) if length >= 2]
    waves_of_a_head = long[max(0, len(long) - (attention.head_dim - 3) // 4) :]
    compared = [0, 1, 2, *(3 + part * count + index for part in range(4) for index in waves_of_a_head)]
    if len(compared) > attention.head_dim:
        return
    identity = torch.eye(width)
    with torch.no_grad():
        for head in range(max(1, attention.num_heads // 2)):
            rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            for projection in (attention.q_proj, attention.k_proj):
                projection.weight[rows] = 0
                projection.bias[rows] = 0
                projection.weight[rows][range(len(compared)), [half + index for index in compared]] = _QUERY_SCALE
            attention.v_proj.weight[rows] = identity[rows]
            attention.v_proj.bias[rows] = 0
            attention.out_proj.weight[:, rows] = _OUTPUT_SCALE * identity[:, rows]


@register_model_architecture("image_transformer", "image_transformer")
def image_transformer(args: Namespace) -> None:
    """Set the defaults: learned positions, and embeddings shared by input and output."""
    args.image_size = getattr(args, "image_size", None)
    args.encoder_learned_pos = args.decoder_learned_pos = True
    args.share_all_embeddings = True
    base_architecture(args)

"""A Transformer for images as sequences: it knows from the start where a token is and how bright.

Image Transformer (Parmar et al. 2018), the base model of Stern et al. 2018, section 7.2, reads coordinates of rows and
columns. Here they are the initial values of fairseq's learned positions, and the value of a number that of its
embedding. The decoder begins by looking at the input pixel in whose place it writes, so that what it says before any
training is the input, enlarged. Everything else is fairseq's Transformer, so its checkpoints decode and take blockwise
heads like any other.
"""

import math
from argparse import ArgumentParser, Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerModel, base_architecture
from torch import Tensor

from fairseq_plugins.data.image_size import LOW_SIZE
from fairseq_plugins.errors import ConfigurationError

# How closely the decoder looks at first (the scale of queries and keys), and how much what it finds there weighs beside
# the token before.
_SHARPNESS, _LOUDNESS = 2.0, 6.0


def wavelengths(longest: float, shortest: float, count: int) -> Tensor:
    """Lengths that fall from longest to shortest, [count]."""
    return torch.logspace(math.log2(longest), math.log2(shortest), count, base=2)


def waves(values: Tensor, longest: float, shortest: float, count: int) -> Tensor:
    """Sines and cosines of values [N], at wavelengths that fall from longest to shortest: [N, 2 * count]."""
    angles = 2 * math.pi * values[:, None] / wavelengths(longest, shortest, count)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def coordinates(size: int, width: int) -> Tensor:
    """Channel, row and column of every token of an image, [3 * size * size, width].

    Rows and columns count in pixels of the low resolution, so that a place means the same in input and output.
    """
    place = torch.arange(3 * size * size)
    count = (width - 3) // 4
    features = torch.zeros(len(place), width)
    features[place, place % 3] = 1
    middle = 0.5 * LOW_SIZE / size
    rows = (place // (3 * size)) * LOW_SIZE / size + middle
    columns = (place // 3 % size) * LOW_SIZE / size + middle
    features[:, 3 : 3 + 2 * count] = waves(rows, 4 * LOW_SIZE, 1, count)
    features[:, 3 + 2 * count : 3 + 4 * count] = waves(columns, 4 * LOW_SIZE, 1, count)
    return features


@register_model("image_transformer")
class ImageTransformer(TransformerModel):
    """fairseq's Transformer over a dictionary of intensities, with learned positions; the coordinates initialise it."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's Transformer options and the image's."""
        super().add_args(parser)
        parser.add_argument("--image-size", type=int, metavar="N", help="pixels along a side of the output")

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> "ImageTransformer":
        """Build the model and put values and coordinates into its embeddings.

        Raises:
            ConfigurationError: without an image size, or for embeddings too narrow for coordinates.
        """
        image_transformer(args)
        if not args.image_size or args.image_size < LOW_SIZE:
            raise ConfigurationError(f"--image-size {args.image_size}: give at least {LOW_SIZE} pixels along a side")
        if args.encoder_embed_dim < 16:
            raise ConfigurationError(f"--encoder-embed-dim {args.encoder_embed_dim}: give at least 16")
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
    """Let near intensities have near embeddings: waves in the first half of the width, nothing in the other."""
    numbers = [(index, int(symbol)) for index, symbol in enumerate(dictionary.symbols) if symbol.isdecimal()]
    if not numbers:
        raise ConfigurationError("--arch image_transformer: the dictionary has no numbers; give a corpus of images")
    indices, values = (torch.tensor(column) for column in zip(*numbers, strict=True))
    features = waves(values.float(), 1024, 16, half // 2)
    # fairseq multiplies embeddings by the root of their width when it reads them.
    scale = 1.0 if unscaled else embeddings.size(1) ** -0.5
    embeddings[indices] = 0.0
    embeddings[indices, : features.size(1)] = scale * features


def _look_at_own_pixel(decoder: Any, half: int) -> None:
    """Let heads of the first layer find the input pixel of a token's place, and say its value.

    Coordinates stand after `half` of the width, values before. A head compares as many waves of the coordinates as it
    has room for: the shortest that cannot take a pixel for its neighbour.
    """
    attention, width = decoder.layers[0].encoder_attn, decoder.embed_dim
    count = (width - half - 3) // 4
    long = [index for index, length in enumerate(wavelengths(4 * LOW_SIZE, 1, count).tolist()) if length >= 2]
    waves_of_a_head = long[max(0, len(long) - (attention.head_dim - 3) // 4) :]
    compared = [0, 1, 2, *(3 + part * count + index for part in range(4) for index in waves_of_a_head)]
    if len(compared) > attention.head_dim:
        return
    said = torch.eye(width)
    with torch.no_grad():
        for head in range(max(1, attention.num_heads // 2)):
            rows = slice(head * attention.head_dim, (head + 1) * attention.head_dim)
            for projection in (attention.q_proj, attention.k_proj):
                projection.weight[rows] = 0
                projection.bias[rows] = 0
                projection.weight[rows][range(len(compared)), [half + index for index in compared]] = _SHARPNESS
            attention.v_proj.weight[rows] = said[rows]
            attention.v_proj.bias[rows] = 0
            attention.out_proj.weight[:, rows] = _LOUDNESS * said[:, rows]


@register_model_architecture("image_transformer", "image_transformer")
def image_transformer(args: Namespace) -> None:
    """Learned positions, one set of embeddings for input and output."""
    args.image_size = getattr(args, "image_size", None)
    args.encoder_learned_pos = args.decoder_learned_pos = True
    args.share_all_embeddings = True
    base_architecture(args)

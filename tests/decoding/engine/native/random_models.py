"""Random layers and steps for the kernels, and what PyTorch makes of them."""

import random
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from fairseq.modules import gelu
from fairseq_plugins.decoding.engine.native.layers import Ends
from torch import Tensor

from fairseq_plugins.decoding.engine.attention import BeamAttention, ChainAttention, PackedAttention
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.layers import transformer_layer
from fairseq_plugins.decoding.engine.layout import BeamLayout, Chain, Span, StepLayout
from fairseq_plugins.decoding.engine.weights import Layer, Linear, Norm, quantized_layer

PAD, EOS, UNK = 1, 2, 3


def random_linear(inputs: int, outputs: int) -> Linear:
    """A linear layer whose outputs are about as large as its inputs; every other one has weights that are halves."""
    weight = torch.randn(outputs, inputs) / inputs**0.5
    return weight.half().float() if torch.rand(()) < 0.5 else weight, torch.randn(outputs) / 10


def random_norm(width: int) -> Norm:
    return Norm(1 + torch.randn(width) / 10, torch.randn(width) / 10, 1e-5)


@dataclass(frozen=True)
class Sizes:
    """Of a decoder.

    Attributes:
        layers, heads, width: width is a multiple of heads.
        wide: width of the layer between.
        vocabulary: more than the special symbols.
        int8: whether weights of layers are int8.
    """

    layers: int = 2
    heads: int = 2
    width: int = 16
    wide: int = 24
    vocabulary: int = 40
    normalize_before: bool = False
    gelu: bool = False
    int8: bool = False

    @classmethod
    def some(cls, choose: random.Random) -> "Sizes":
        """Small ones, also such that fit no register."""
        heads = choose.choice([1, 2, 3, 4])
        return cls(
            layers=choose.randint(1, 3),
            heads=heads,
            width=heads * choose.choice([1, 3, 4, 8, 11, 16, 20]),
            wide=choose.choice([1, 5, 16, 24, 70]),
            vocabulary=choose.choice([4, 5, 40, 67, 130]),
            normalize_before=choose.random() < 0.5,
            gelu=choose.random() < 0.5,
            int8=choose.random() < 0.3,
        )


def random_layers(sizes: Sizes, has_cross: bool = True) -> list[Layer]:
    """Layers of a decoder, or of an encoder without cross-attention."""
    d = sizes.width
    layers = [
        Layer(
            heads=sizes.heads,
            normalize_before=sizes.normalize_before,
            self_qkv=random_linear(d, 3 * d),
            self_out=random_linear(d, d),
            self_norm=random_norm(d),
            cross_query=random_linear(d, d) if has_cross else None,
            cross_out=random_linear(d, d) if has_cross else None,
            cross_norm=random_norm(d) if has_cross else None,
            fc1=random_linear(d, sizes.wide),
            activation=gelu if sizes.gelu else F.relu,
            fc2=random_linear(sizes.wide, d),
            final_norm=random_norm(d),
        )
        for _ in range(sizes.layers)
    ]
    return [quantized_layer(layer) for layer in layers] if sizes.int8 else layers


def random_ends(sizes: Sizes, positions: int | None = 64) -> Ends:
    """What stands around the layers of a decoder that normalises its output."""
    return Ends(
        embedding=torch.randn(sizes.vocabulary, sizes.width),
        scale=0.5,
        positions=None if positions is None else torch.randn(positions, sizes.width),
        embedding_norm=random_norm(sizes.width),
        final_norm=random_norm(sizes.width),
    )


@dataclass(frozen=True)
class Step:
    """What a step of a decoder is given.

    Attributes:
        tokens: [B, T] or [R].
        layout: of these.
        cache: [layers, B, capacity, 2, H, D / H], of hypotheses in a `BeamLayout`.
        cross: [layers, B, S, 2, H, D / H].
        cross_allowed: [B, S], or None.
    """

    tokens: Tensor
    layout: Chain | StepLayout | BeamLayout
    cache: Tensor
    cross: Tensor
    cross_allowed: Tensor | None


def random_step(sizes: Sizes, choose: random.Random, batch: int, width: int, packed: bool = False) -> Step:
    """A step of `width` rows of each of `batch` sentences; where it is packed, of as many or fewer rows."""
    inner = (2, sizes.heads, sizes.width // sizes.heads)
    lengths = [choose.randint(0, 9) for _ in range(batch)]
    span = Span(min(lengths, default=0), max(lengths, default=0))
    layout: Chain | StepLayout = Chain(torch.tensor(lengths, dtype=torch.long), span, width)
    slots, source = layout.slots, choose.randint(1, 12)
    if packed:
        layout = _without_some_rows(layout.spelled_out(), choose)
    shape = layout.sentence.shape if isinstance(layout, StepLayout) else (batch, width)
    allowed = torch.rand(batch, source) < 0.7
    if source:
        allowed[:, 0] = True
    return Step(
        tokens=torch.randint(sizes.vocabulary, shape),
        layout=layout,
        cache=torch.randn(sizes.layers, batch, slots + choose.randint(0, 3), *inner),
        cross=torch.randn(sizes.layers, batch, source, *inner),
        cross_allowed=allowed if choose.random() < 0.5 else None,
    )


def _without_some_rows(layout: StepLayout, choose: random.Random) -> StepLayout:
    kept = torch.tensor([choose.random() < 0.8 for _ in layout.sentence], dtype=torch.bool)
    rows = (layout.sentence, layout.position, layout.slot, layout.last_visible)
    return StepLayout(*[row[kept] for row in rows], layout.slots)


def random_beams(sizes: Sizes, choose: random.Random, batch: int, beam: int) -> Step:
    """A step of `beam` hypotheses of each of `batch` sentences, which share what they like."""
    inner = (2, sizes.heads, sizes.width // sizes.heads)
    each = [choose.randint(0, 9) for _ in range(batch)]
    lengths = torch.tensor(each, dtype=torch.long).repeat_interleave(beam)
    slots, source, rows = max(each) + 1, choose.randint(1, 12), batch * beam
    own = torch.arange(beam).repeat(batch)[:, None]
    past = torch.arange(slots + choose.randint(0, 3)) < lengths[:, None]
    holders = torch.where(past, torch.randint(beam, past.shape), own)
    allowed = torch.rand(batch, source) < 0.7
    allowed[:, 0] = True
    # Hypotheses of a sentence without a token are the same.
    tokens = torch.randint(sizes.vocabulary, (rows,))
    tokens = torch.where(lengths == 0, tokens.view(batch, beam)[:, :1].repeat(1, beam).flatten(), tokens)
    return Step(
        tokens=tokens,
        layout=BeamLayout(lengths, Span(min(each), max(each)), beam, holders),
        cache=torch.randn(sizes.layers, rows, slots + choose.randint(0, 3), *inner),
        cross=torch.randn(sizes.layers, batch, source, *inner),
        cross_allowed=allowed if choose.random() < 0.5 else None,
    )


def step_in_pytorch(layers: list[Layer], ends: Ends, step: Step) -> Tensor:
    """The normalised output, [B, T, D] or [R, D]; writes the cache as the kernels do."""
    layout = step.layout
    x = F.embedding(step.tokens, ends.embedding) * ends.scale
    if ends.positions is not None:
        position = layout.slot() if isinstance(layout, Chain) else layout.position
        x = x + ends.positions[position.clamp(max=len(ends.positions) - 1)]
    x = x if ends.embedding_norm is None else ends.embedding_norm(x)
    kinds = {Chain: ChainAttention, StepLayout: PackedAttention, BeamLayout: BeamAttention}
    readable = None if step.cross_allowed is None else step.cross_allowed[:, None, None]
    attention = kinds[type(layout)](layout, readable, x.dtype)
    for index, layer in enumerate(layers):
        x = transformer_layer(
            layer,
            x,
            Engine().apply,
            partial(attention.own, heads=layer.heads, cache=step.cache[index]),
            partial(attention.source, heads=layer.heads, cross=step.cross[index]),
        )
    return x if ends.final_norm is None else ends.final_norm(x)

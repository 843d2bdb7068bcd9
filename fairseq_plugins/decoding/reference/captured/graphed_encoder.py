"""Encode in rounded shapes, from CUDA graphs."""

import math

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor

from fairseq_plugins.decoding.reference.captured.graph_capture import CapturedSteps, Graphs, Outputs, Run
from fairseq_plugins.decoding.reference.captured.shapes import MAX_ROWS, rounded_up
from fairseq_plugins.decoding.reference.encoder import FusedEncoder
from fairseq_plugins.decoding.reference.engine import Engine

# The source length is rounded up to a power of two, at least this.
_MIN_SOURCE = 32


def fused_encoder(encoder: FairseqEncoder, engine: Engine) -> FusedEncoder:
    """Return a `FusedEncoder`, which runs from graphs if the engine has them for the encoder's device."""
    if engine.graphs is None or not engine.has_graphs(next(encoder.parameters()).device):
        return FusedEncoder(encoder, engine)
    return GraphedEncoder(encoder, engine, engine.graphs)


class GraphedEncoder(FusedEncoder):
    """A `FusedEncoder` whose shapes are rounded and captured when one is used again."""

    def __init__(self, encoder: FairseqEncoder, engine: Engine, graphs: Graphs) -> None:
        super().__init__(encoder, engine)
        self.steps = CapturedSteps(graphs)

    def _encode(self, tokens: Tensor, assume_padding: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        rows, width = tokens.shape
        shape = rounded_up(rows), rounded_up(width, _MIN_SOURCE)
        if self.positions is None or math.prod(shape) > MAX_ROWS:
            return super()._encode(tokens, assume_padding)
        encode = super()._encode

        def make() -> Outputs:
            weight = self.encoder.embed_tokens.weight
            states, embedding = (weight.new_empty(*shape, weight.size(1)) for _ in range(2))
            return tokens.new_empty(shape), states, tokens.new_empty(shape, dtype=torch.bool), embedding

        def fill(inputs: Outputs) -> None:
            padded, *_ = inputs
            assert padded is not None
            padded.fill_(self.encoder.padding_idx)
            padded[:rows, :width] = tokens

        def step(inputs: Outputs) -> Run:
            padded, *kept = (value for value in inputs if value is not None)

            def run() -> Outputs:
                outputs = encode(padded, assume_padding=True)
                # Copied out of the memory pool of the graphs, where another graph would overwrite them.
                return tuple(memory.copy_(value) for memory, value in zip(kept, outputs, strict=True))

            return run

        outputs = self.steps.run(shape, make, fill, step)
        # Cloned, because drafters keep them while the next batch is encoded.
        x, padding, embedding = (value[:rows, :width].clone() for value in outputs if value is not None)
        return x, padding, embedding

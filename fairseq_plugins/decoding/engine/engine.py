"""How PyTorch's operations run for a generator: made once from the options and handed down to all layers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.fixed_shapes import by_rows
from fairseq_plugins.decoding.engine.fixed_shapes import linear as fixed_linear
from fairseq_plugins.decoding.engine.graph_capture import Graphs
from fairseq_plugins.decoding.engine.weights import Linear, Precision, in_floats


@dataclass(frozen=True)
class Engine:
    """How layers are run. Without anything it is PyTorch's operations, one after the other: the reference.

    Attributes:
        precision: of linear layers.
        graphs: steps in rounded shapes as CUDA graphs, None for one operation after the other in any shape; without
            effect on a CPU.
        batch_invariant: use fixed shapes, so that the result of a row does not depend on the other rows of a step.
            Half precision needs this: rounding would flip tokens.
    """

    precision: Precision = Precision.FP32
    graphs: Graphs | None = None
    batch_invariant: bool = False

    def has_graphs(self, device: torch.device) -> bool:
        """Whether steps on a device have rounded shapes and memory that stays, as graphs want them."""
        return self.graphs is not None and device.type == self.graphs.device_type

    def linear(self, layer: Linear) -> Callable[[Tensor], Tensor]:
        """A linear layer as a function of x [..., inputs]."""
        return lambda x: self.apply(x, layer)

    def apply(self, x: Tensor, layer: Linear) -> Tensor:
        """Apply a linear layer to x [..., inputs]."""
        return (fixed_linear if self.batch_invariant else F.linear)(x, *in_floats(layer))

    def rowwise(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A function of rows [..., I] as this engine runs it."""
        return by_rows(function) if self.batch_invariant else function

    def log_softmax(self, scores: Tensor) -> Tensor:
        """Log-probabilities in fp32 of scores [..., V], maybe in their place: but for weights nothing is as large."""
        if scores.device.type != "cpu":
            return torch.log_softmax(scores, -1, dtype=torch.float32)
        scores = scores.float().contiguous()
        for part in scores:
            part.copy_(part.log_softmax(-1))
        return scores

    def log_probs_of(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities [B, T] in fp32 of tokens [B, T], of scores [B, T, V], which stay as they are."""
        return torch.log_softmax(scores, -1, dtype=torch.float32).gather(2, tokens[:, :, None])[:, :, 0]

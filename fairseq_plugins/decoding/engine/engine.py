"""What a generator runs on: made once from the options, and handed down to all that runs layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_plugins.decoding.engine.fixed_shapes import by_rows
from fairseq_plugins.decoding.engine.graph_capture import Graphs
from fairseq_plugins.decoding.engine.native.kernels import Kernels, Packing
from fairseq_plugins.decoding.engine.native.layers import NativeLinear
from fairseq_plugins.decoding.engine.native.source import NativeLinears
from fairseq_plugins.decoding.engine.weights import Linear, Precision


@dataclass(frozen=True)
class Engine:
    """How layers are run. Without anything it is PyTorch's operations, one after the other: the reference.

    Attributes:
        kernels: compiled steps on a CPU, None for PyTorch's operations.
        precision: of linear layers.
        graphs: steps in rounded shapes as CUDA graphs, None for one operation after the other in any shape; without
            effect on a CPU.
        steady: what a row of a step gives depends on nothing else in the step: the kernels run steps of any size, and
            PyTorch's operations have fixed shapes. For half precision, where anything else flips tokens.
    """

    kernels: Kernels | None = None
    precision: Precision = Precision.FP32
    graphs: Graphs | None = None
    steady: bool = False

    def has_graphs(self, device: torch.device) -> bool:
        """Whether steps on a device have rounded shapes and memory that stays, as graphs want them."""
        return self.graphs is not None and device.type == self.graphs.device_type

    def for_many_rows(self) -> "Engine":
        """The same for methods whose steps seldom have few rows."""
        if self.kernels is None:
            return self
        kernels = Kernels(self.kernels.packing, self.kernels.functions, self.kernels.any_size, many_rows=True)
        return replace(self, kernels=kernels)

    def linear(self, layer: Linear) -> Callable[[Tensor], Tensor]:
        """A linear layer as a function of x [..., inputs]."""
        if self.kernels is not None and self.kernels.can_run(layer):
            return self.kernels.linear(layer, self.precision)
        return lambda x: self.apply(x, layer)

    def linears_into(self, layers: Sequence[Linear]) -> Callable[[Tensor, Tensor], object]:
        """Linear layers of the same size as a function of x [R, ..., inputs] and what gets the results.

        That is a contiguous tensor [layers, R, ...] of as many numbers.
        """
        functions = [self.linear(layer) for layer in layers]
        if all(isinstance(function, NativeLinear) for function in functions):
            return NativeLinears(functions)

        def write(x: Tensor, to: Tensor) -> None:
            for function, part in zip(functions, to, strict=True):
                part.copy_(function(x).view_as(part))

        return write

    def apply(self, x: Tensor, layer: Linear) -> Tensor:
        """A linear layer of x [..., inputs] in PyTorch."""
        return self.rowwise(lambda rows: F.linear(rows, *layer))(x)

    def rowwise(self, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """A function of rows [..., I] in PyTorch as this engine runs it."""
        return by_rows(function) if self.steady else function

    def log_softmax(self, scores: Tensor) -> Tensor:
        """Log-probabilities in fp32 of scores [..., V], maybe in their place: but for weights nothing is as large."""
        if scores.device.type != "cpu":
            return torch.log_softmax(scores, -1, dtype=torch.float32)
        scores = scores.float().contiguous()
        if self.kernels is None or not self.kernels.log_softmax(scores):
            for part in scores:
                part.copy_(part.log_softmax(-1))
        return scores

    def log_probs_of(self, scores: Tensor, tokens: Tensor) -> Tensor:
        """Log-probabilities [B, T] in fp32 of tokens [B, T], of scores [B, T, V], which stay as they are."""
        return torch.log_softmax(scores, -1, dtype=torch.float32).gather(2, tokens[:, :, None])[:, :, 0]

    def argmax(self, scores: Tensor) -> Tensor:
        """Indices [...] of the highest of scores [..., V], the first ones."""
        best = None if self.kernels is None else self.kernels.argmax(scores)
        return scores.argmax(-1) if best is None else best


def make_engine(
    compiled: bool = True,
    packing: Packing = Packing.AUTO,
    int8: bool = False,
    graphs: Graphs | None = None,
    steady: bool = False,
) -> Engine:
    """The engine that the options ask for.

    Args:
        compiled: use the CPU kernels, where they can be built.
        packing: which large weights are held a second time, in the order in which the kernels read them fastest.
        int8: round the weights of linear layers.
        graphs: see `Engine`.
        steady: see `Engine`.
    """
    return Engine(
        kernels=Kernels.build(packing, any_size=steady) if compiled else None,
        precision=Precision.INT8_WEIGHTS if int8 else Precision.FP32,
        graphs=graphs,
        steady=steady,
    )

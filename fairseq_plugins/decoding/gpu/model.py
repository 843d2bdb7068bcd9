"""Convert fairseq's modules for the GPU engine: the weights stay where they are, in the model's own type."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu import interface as gpu
from fairseq_plugins.decoding.gpu.weights import Linear as DeviceLinear
from fairseq_plugins.decoding.kernel_module import KernelModule, Unsupported
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.weights import Linear, QuantizedLinear


@dataclass(frozen=True)
class GpuWeights(KernelWeights):
    """Converts for the GPU engine.

    Attributes:
        device: where the weights are; a CPU in Triton's interpreter.
    """

    device: torch.device = torch.device("cuda")

    @property
    def module(self) -> KernelModule:
        return gpu

    def linear(self, layer: Linear, exact: bool = False) -> DeviceLinear:
        if isinstance(layer, QuantizedLinear) or (self.int8 and not exact):
            raise Unsupported("--int8")
        weight, bias = layer
        return gpu.linear(self.array(weight), self.array(bias))

    def for_drafts(self) -> "GpuWeights":
        """Return this converter: drafts have the precision of the model."""
        return self

    def may_fuse(self, weight: Tensor) -> bool:
        """Return False: the norms of the layers are in the kernel of the projections."""
        return False

    def check(self, tensor: Tensor, dtype: torch.dtype | None) -> None:
        """Raise Unsupported for a tensor on another device."""
        if tensor.device.type != self.device.type:
            raise Unsupported(f"the weights are on {tensor.device.type}")

"""The backend of the GPU engine: iterations run on the device; the host launches them and learns what has ended."""

import os
from importlib.util import find_spec

import torch

from fairseq_plugins.decoding.kernel_backend import KernelBackend
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec

_CAPABILITY = (8, 0)


class GpuBackend(KernelBackend):
    """Runs a method on the GPU engine; `active_sentences` is that of `TorchBackend`."""

    name = "gpu"

    def __init__(
        self,
        spec: MethodSpec,
        options: MethodOptions,
        context: MethodContext,
        active_sentences: int = 0,
    ) -> None:
        model = context.models[0]
        settings = {"places": active_sentences} if active_sentences else {}
        lengths = {"outputs": model.max_decoder_positions(), "sources": model.encoder.max_positions()}
        super().__init__(spec, options, context, **lengths, **settings)
        self.reason = "Triton's kernels run all of it on this GPU"

    def refusal(self, context: MethodContext) -> str | None:
        if find_spec("triton") is None:
            return "Triton is not installed"
        device = next(context.models[0].parameters()).device
        if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            return f"the models are on {device.type}"
        if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"it needs a GPU of compute capability {_CAPABILITY[0]}.{_CAPABILITY[1]} or later"
        return None

    def weights(self, context: MethodContext) -> KernelWeights:
        # Imported here: without Triton there is no engine.
        from fairseq_plugins.decoding.gpu.model import GpuWeights

        device = next(context.models[0].parameters()).device
        return GpuWeights(int8=context.kernel_weights.int8, batch_invariant=True, device=device)

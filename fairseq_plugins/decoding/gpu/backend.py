"""The backend of the GPU engine: iterations run on the device; the host launches them and learns what has ended."""

import os
from importlib import import_module

import torch

from fairseq_plugins.decoding.kernel_backend import KernelBackend
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.decoding.reference.fixed_shapes import missing_triton, triton_problem
from fairseq_plugins.errors import FEWER_SENTENCES, out_of_gpu_memory

_CAPABILITY, _TRITON = (8, 0), (3, 6)


class GpuBackend(KernelBackend):
    """Runs a method on the GPU engine; `active_sentences` is that of `TorchBackend`.

    Raises ConfigurationError if the GPU has too little memory: the engine takes it here, for any batch.
    """

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
        try:
            super().__init__(spec, options, context, **lengths, **settings)
        except torch.OutOfMemoryError as error:
            raise out_of_gpu_memory(error, FEWER_SENTENCES) from error
        self.reason = "Triton's kernels run all of it on this GPU"

    def refusal(self, context: MethodContext) -> str | None:
        device = next(context.models[0].parameters()).device
        if device.type != "cuda":
            is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
            return (missing_triton() or None) if is_interpreted else f"the models are on {device.type}"
        if torch.version.hip is not None or torch.cuda.get_device_capability(device) < _CAPABILITY:
            return f"it needs an NVIDIA GPU of compute capability {_CAPABILITY[0]}.{_CAPABILITY[1]} or later"
        problem = triton_problem()
        if problem:
            return problem
        version = import_module("triton").__version__
        if tuple(map(int, version.split(".")[:2])) < _TRITON:
            return f"it needs Triton {_TRITON[0]}.{_TRITON[1]} or later, and this is {version}"
        return None

    def weights(self, context: MethodContext) -> KernelWeights:
        # Imported here: without Triton there is no engine.
        from fairseq_plugins.decoding.gpu.model import GpuWeights

        device = next(context.models[0].parameters()).device
        return GpuWeights(int8=context.kernel_weights.int8, batch_invariant=True, device=device)

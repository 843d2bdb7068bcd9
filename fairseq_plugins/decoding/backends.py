"""Choose the backend of a run, and say why."""

import os
from dataclasses import replace

from fairseq_plugins.checkpoint.compact_weights import restore
from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.kernel_backend import KernelBackend
from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.recording.trace_writer import TraceWriter
from fairseq_plugins.decoding.reference.backend import TorchBackend

Backend = KernelBackend | TorchBackend
"""Decodes batches. Its `name` is "native", "gpu", "cuda-graphs" or "torch"; its `reason`, why it was chosen."""


def choose_backend(
    spec: MethodSpec,
    options: MethodOptions,
    context: MethodContext,
    trace: TraceWriter | None = None,
    active_sentences: int = 0,
) -> Backend:
    """Return the fastest backend that supports a method; its `reason` says why a faster one does not.

    `trace` and `active_sentences` are those of `TorchBackend`.
    """
    context = replace(context, is_traced=context.is_traced or trace is not None)
    device, graphs = next(context.models[0].parameters()).device, context.engine.graphs
    not_triton = ""
    if os.environ.get("SPEC_DEC_GPU") == "triton" and graphs is not None and graphs.enabled:
        try:
            return GpuBackend(spec, options, context, active_sentences)
        except Unsupported as refusal:
            not_triton = f"; not on Triton's kernels: {refusal}"
    if device.type == "cpu":
        try:
            return NativeBackend(spec, options, context)
        except Unsupported as refusal:
            name, reason = "torch", str(refusal)
    elif context.engine.has_graphs(device) and graphs is not None and graphs.enabled:
        name, reason = "cuda-graphs", "steps are captured on this GPU"
    else:
        name, reason = "torch", "--no-cuda-graphs" if graphs else "--eval-bleu changes the weights"
    assert spec.build is not None
    restore(context.models)
    reason += not_triton
    method = spec.build(context, options)
    return TorchBackend(method, name, reason, trace, active_sentences, context.beam if spec.searches_beams else None)

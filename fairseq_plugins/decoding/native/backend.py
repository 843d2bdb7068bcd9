"""The backend of the compiled kernels: one call decodes a batch from source tokens to outputs."""

from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.checkpoint.compact_weights import restore
from fairseq_plugins.decoding.kernel_backend import KernelBackend
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.reference.encoder import FusedEncoder
from fairseq_plugins.decoding.reference.engine import Engine


class NativeBackend(KernelBackend):
    """Runs a method on the compiled kernels."""

    name = "native"
    takes_encoded = True

    def __init__(self, spec: MethodSpec, options: MethodOptions, context: MethodContext) -> None:
        super().__init__(spec, options, context)
        # An encoder that the kernels do not support runs in PyTorch.
        weights = self.method.weights
        engine = Engine(int8=weights.int8, batch_invariant=weights.batch_invariant)
        if not self.encodes:
            restore(context.models)
        self.encoder = None if self.encodes else FusedEncoder(context.models[0].encoder, engine)
        self.reason = f"the compiled kernels run all of it on this CPU ({kernels().instruction_set()})"

    def refusal(self, context: MethodContext) -> str | None:
        device = next(context.models[0].parameters()).device.type
        return None if device == "cpu" else f"the models are on {device}"

    def weights(self, context: MethodContext) -> KernelWeights:
        return context.kernel_weights

    def inputs(self, sample: dict[str, Any], pad: int) -> tuple[Tensor, dict[str, Any]]:
        """Return the sources of a batch, encoded if the kernels cannot do that."""
        kernels().set_threads(torch.get_num_threads())
        more: dict[str, Any] = {}
        source = sample["net_input"]["src_tokens"]
        if self.encoder is not None:
            output = self.encoder(sample["net_input"])
            encoded = output["encoder_out"][0].transpose(0, 1)
            source = _tokens_of(source, encoded)
            if output["encoder_padding_mask"]:
                source = source.masked_fill(output["encoder_padding_mask"][0], pad)
            more["encoded"] = encoded[source != pad]
            if output.get("encoder_embedding"):
                more["embedding"] = output["encoder_embedding"][0][source != pad]
        return source, more


def _tokens_of(source: Tensor, encoded: Tensor) -> Tensor:
    """Return the source tokens; for speech, which has none, a zero for every encoder state."""
    if source.dim() == 2 and source.dtype == torch.long and source.size(1) == encoded.size(1):
        return source
    return encoded.new_zeros(encoded.shape[:2], dtype=torch.long)

"""The backend of the GPU engine: iterations run on the device; the host launches them and learns what has ended."""

import os
from collections.abc import Generator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec, NativeMethod
from fairseq_plugins.decoding.native import NotNative
from fairseq_plugins.decoding.native.backend import hypotheses_of, limits_of, refusal
from fairseq_plugins.decoding.reference.search.beam import eos_forbidden_error
from fairseq_plugins.decoding.reference.state import Decoded, Hypothesis, StepOutput

_CAPABILITY = (8, 0)


class GpuBackend:
    """Runs a method on the GPU engine; raises NotNative for anything that it does not support."""

    name = "gpu"

    def __init__(
        self,
        spec: MethodSpec,
        options: MethodOptions,
        context: MethodContext,
        is_traced: bool = False,
        active_sentences: int = 0,
    ) -> None:
        reason = refusal(spec, context, is_traced) or _refusal(context)
        if reason is not None:
            raise NotNative(reason)
        # Imported here: without Triton there is no engine.
        from fairseq_plugins.decoding.gpu.model import GpuWeights

        assert context.weights is not None and spec.build_native is not None
        model = context.models[0]
        device = next(model.parameters()).device
        weights = GpuWeights(precision=context.weights.precision, batch_invariant=True, device=device)
        method: NativeMethod = spec.build_native(replace(context, weights=weights), options)
        encoder = weights.encoder(model.encoder)
        if encoder is None:
            raise NotNative(f"the encoder is a {type(model.encoder).__name__}")
        self.method, self.module = method, weights.module
        self.temperature, self.searches_beams = context.temperature, spec.searches_beams
        settings = {"places": active_sentences} if active_sentences else {}
        self.engine = self.module.Generator(
            encoder=encoder,
            verifier=weights.decoder(model.decoder, method.projection),
            drafter=method.drafter,
            acceptance=method.acceptance,
            policy=method.policy,
            head=method.head,
            beam=context.beam if spec.searches_beams else 0,
            outputs=model.max_decoder_positions(),
            sources=model.encoder.max_positions(),
            **settings,
        )
        self.reason = "Triton's kernels run all of it on this GPU"

    def decode(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> Decoded:
        """Decode as `Backend.decode` does."""
        with torch.inference_mode():
            self._begin(sample, constraints, first_token)
            if self.searches_beams:
                return self._decode_beams(constraints)
            self.engine.run()
            return self._decoded()

    def steps(
        self, sample: dict[str, Any], constraints: Constraints, first_token: int
    ) -> Generator[list[StepOutput], None, Decoded]:
        """Decode as `Backend.steps` does."""
        with torch.inference_mode():
            self._begin(sample, constraints, first_token)
        has_ended = False
        while not has_ended:
            with torch.inference_mode():
                has_ended = self.engine.run(1)
                steps = [StepOutput(*step) for step in self.engine.last_iteration()]
            yield steps
        with torch.inference_mode():
            return self._decoded()

    def _begin(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> None:
        if self.method.on_batch is not None:
            self.method.on_batch(sample)
        self.engine.begin(
            sample["net_input"]["src_tokens"],
            **limits_of(constraints),
            first_token=first_token,
            temperature=self.temperature,
            prefix=constraints.prefix,
            drafts=[] if self.method.drafts is None else self.method.drafts(sample),
        )

    def _decoded(self) -> Decoded:
        tokens, log_probs, lengths, emitted = self.engine.outputs()
        pairs = zip(tokens.split_with_sizes(lengths), log_probs.split_with_sizes(lengths), strict=True)
        return Decoded([[Hypothesis(*pair, pair[1].sum())] for pair in pairs], emitted)

    def _decode_beams(self, constraints: Constraints) -> Decoded:
        try:
            nbest, steps = self.engine.run_beams()
        except self.module.EosForbidden:
            raise eos_forbidden_error(constraints.max_len) from None
        return Decoded([hypotheses_of(hypotheses) for hypotheses in nbest], [[count] for count in steps])


def _refusal(context: MethodContext) -> str | None:
    """Return why the engine cannot run here; None if it may."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if context.sampling is not None:
        return "--sampling"
    device = next(context.models[0].parameters()).device
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"the models are on {device.type}"
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < _CAPABILITY:
        return f"it needs a GPU of compute capability {_CAPABILITY[0]}.{_CAPABILITY[1]} or later"
    return None

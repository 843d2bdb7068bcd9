"""The backends of kernels: a method runs on a module of kernels, from source tokens to outputs."""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded, Hypothesis, StepOutput
from fairseq_plugins.decoding.kernel_module import FoundHypothesis, FoundOutput, KernelModule, Unsupported
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.method import KernelMethod, MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search.beam import eos_forbidden_error


class KernelBackend(ABC):
    """Runs a method on a module of kernels.

    Args:
        spec, options, context: the method.
        settings: further arguments of the module's `Generator`.

    Raises:
        Unsupported: for anything that the kernels do not support.

    Attributes:
        method: its parts, made of the module's objects.
        generator: of the module, which decodes.
    """

    name: str
    reason: str
    takes_encoded = False  # whether `inputs` encodes sources where the kernels cannot

    def __init__(
        self,
        spec: MethodSpec,
        options: MethodOptions,
        context: MethodContext,
        **settings: Any,
    ) -> None:
        reason = _refusal(spec, context) or self.refusal(context)
        if reason is not None:
            raise Unsupported(reason)
        assert spec.build_kernels is not None
        model = context.models[0]
        self.method: KernelMethod = spec.build_kernels(replace(context, weights=self.weights(context)), options)
        weights = self.method.weights
        self.module: KernelModule = weights.module
        self.temperature, self.sampling = context.temperature, context.sampling
        self.searches_beams = spec.searches_beams
        encoder = weights.encoder(model.encoder)
        if encoder is None and not self.takes_encoded:
            raise Unsupported(f"the encoder is a {type(model.encoder).__name__}")
        self.encodes = encoder is not None
        self.generator = self.module.Generator(
            encoder=encoder,
            verifier=weights.decoder(model.decoder, self.method.projection),
            drafter=self.method.drafter,
            acceptance=self.method.acceptance,
            policy=self.method.policy,
            head=self.method.head,
            beam=context.beam if spec.searches_beams else 0,
            **settings,
        )

    @abstractmethod
    def refusal(self, context: MethodContext) -> str | None:
        """Return why the kernels cannot run here; None if they may."""

    @abstractmethod
    def weights(self, context: MethodContext) -> KernelWeights:
        """Return what converts weights for the module."""

    def inputs(self, sample: dict[str, Any], pad: int) -> tuple[Tensor, dict[str, Any]]:
        """Return the sources [B, S] of a batch, and further arguments of the generator's `begin`."""
        return sample["net_input"]["src_tokens"], {}

    def decode(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> Decoded:
        """Decode as `Backend.decode` does."""
        with torch.inference_mode():
            self._begin(sample, constraints, first_token)
            if self.searches_beams:
                return self._decode_beams(constraints)
            self.generator.run()
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
                has_ended = self.generator.run(1)
                steps = [StepOutput(*step) for step in self.generator.last_iteration()]
            yield steps
        with torch.inference_mode():
            return self._decoded()

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each part of an iteration."""
        return dict(self.generator.seconds())

    def _begin(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> None:
        if self.method.on_batch is not None:
            self.method.on_batch(sample)
        source, more = self.inputs(sample, constraints.pad)
        self.generator.begin(
            source.contiguous(),
            pad=constraints.pad,
            unk=constraints.unk,
            eos=constraints.eos,
            first_token=first_token,
            temperature=self.temperature,
            prefix=None if constraints.prefix is None else constraints.prefix.contiguous(),
            drafts=[] if self.method.drafts is None else self.method.drafts(sample),
            noise_keys=sample.get("noise_keys"),
            **limits_of(constraints, self.sampling),
            **more,
        )

    def _decoded(self) -> Decoded:
        outputs = self.generator.outputs()
        return Decoded([[hypothesis_of(output)] for output in outputs], [emitted for _, _, emitted in outputs])

    def _decode_beams(self, constraints: Constraints) -> Decoded:
        try:
            found = self.generator.run_beams()
        except self.module.EosForbidden:
            raise eos_forbidden_error(constraints.max_len) from None
        return Decoded([hypotheses_of(hypotheses) for hypotheses, _ in found], [[steps] for _, steps in found])


def limits_of(constraints: Constraints, sampling: Sampling | None) -> dict[str, Any]:
    """Return the arguments of a generator that limit the tokens of a batch or a sentence."""
    return {
        "min_len": constraints.min_len,
        "max_len": constraints.max_len,
        "unk_penalty": constraints.unk_penalty,
        "suppressed": constraints.suppressed.everywhere,
        "begin_suppressed": constraints.suppressed.at_beginning,
        "topk": 0 if sampling is None else sampling.topk,
        "topp": 0.0 if sampling is None else sampling.topp,
    }


def hypothesis_of(output: FoundOutput) -> Hypothesis:
    """Return an output of greedy search."""
    tokens, log_probs, _ = output
    scores = torch.from_numpy(log_probs)
    return Hypothesis(torch.from_numpy(tokens), scores, scores.sum())


def hypotheses_of(found: list[FoundHypothesis]) -> list[Hypothesis]:
    """Return the hypotheses of a sentence."""
    return [
        Hypothesis(torch.from_numpy(tokens), torch.from_numpy(log_probs), torch.tensor(score))
        for tokens, log_probs, score in found
    ]


def _refusal(spec: MethodSpec, context: MethodContext) -> str | None:
    """Return why no kernels can run a method, as far as is known before it is built; None if they may."""
    if context.weights is None:
        return "--no-compiled-steps"
    if context.is_traced:
        return "--trace-file needs scores of rejected tokens, which the kernels do not compute"
    if context.no_repeat_ngram_size:
        return "--no-repeat-ngram-size"
    if context.strategy is not None:
        return f"{context.strategy.option}: fairseq's own search object chooses"
    if len(context.models) > 1:
        return "an ensemble of several models"
    return f"--decoder {spec.name} runs no verifier" if spec.build_kernels is None else None

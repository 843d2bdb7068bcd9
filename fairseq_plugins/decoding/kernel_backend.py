"""The base of the backends of kernels: they run a method on a module of kernels, from source tokens to outputs.

They decode whole batches, and continuous batches, which sentences join and leave meanwhile.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.decoded import Decoded, Hypothesis, StepOutput
from fairseq_plugins.decoding.kernel_module import AnySentence, FoundHypothesis, FoundOutput, KernelModule, Unsupported
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.method import KernelMethod, MethodContext, MethodOptions, MethodSpec
from fairseq_plugins.decoding.reference.arithmetic import on_device
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search.beam import eos_forbidden_error

_NO_SAMPLING = Sampling()
Event = tuple[int, StepOutput | Decoded | Exception]
"""Number of a sentence, and an iteration of it, its end (`Decoded` of one sentence), or why it has no output."""


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

    def __init__(self, spec: MethodSpec, options: MethodOptions, context: MethodContext, **settings: Any) -> None:
        reason = _refusal(spec, context) or self.refusal(context)
        if reason is not None:
            raise Unsupported(reason)
        assert spec.build_kernels is not None
        model = context.models[0]
        self.device = next(model.parameters()).device
        self.method: KernelMethod = spec.build_kernels(replace(context, weights=self.weights(context)), options)
        weights = self.method.weights
        self.module: KernelModule = weights.module
        self.sampling = replace(context.sampling or _NO_SAMPLING, temperature=context.temperature)
        self.beam = context.beam if spec.searches_beams else 0
        self.max_len = self.eos = 0  # of an open batch
        encoder = weights.encoder(model.encoder)
        if encoder is None and not self.takes_encoded:
            raise Unsupported(f"the encoder is a {type(model.encoder).__name__}")
        self.encodes = encoder is not None
        self.generator = self.module.Generator(
            encoder=encoder,
            verifier=weights.decoder(
                model.decoder,
                self.method.projection,
                screens=not spec.searches_beams and self.method.acceptance is None,
            ),
            drafter=self.method.drafter,
            acceptance=self.method.acceptance,
            policy=self.method.policy,
            head=self.method.head,
            beam=self.beam,
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
        """Decode a fairseq batch whose outputs begin with `first_token`."""
        with torch.inference_mode(), on_device(self.device):
            self._begin(sample, constraints, first_token)
            if self.beam:
                try:
                    return self._decoded_beams(self.generator.run_beams())
                except self.module.EosForbidden:
                    raise eos_forbidden_error(constraints.max_len) from None
            self.generator.run()
            return self._decoded(self.generator.outputs())

    def steps(
        self, sample: dict[str, Any], constraints: Constraints, first_token: int
    ) -> Generator[list[StepOutput], None, Decoded]:
        """Decode a batch as `decode` does, and yield each iteration's result for every sentence."""
        with torch.inference_mode(), on_device(self.device):
            self._begin(sample, constraints, first_token)
        has_ended = False
        while not has_ended:
            with torch.inference_mode(), on_device(self.device):
                has_ended = self.generator.run(1)
                steps = [StepOutput(*step) for step in self.generator.last_iteration()]
            yield steps
        with torch.inference_mode(), on_device(self.device):
            return self._decoded(self.generator.outputs())

    # Continuous batches. After `open` the backend decodes nothing else; all methods may be called from any thread.
    # `cancel`, `load` and `close` are the generator's own.

    def open(
        self, constraints: Constraints, first_token: int, threads: int, max_source: int, max_sentences: int = 0
    ) -> None:
        """Open a batch that sentences join, as `KernelGenerator.open`, with limits that all share.

        `max_len` of the limits is the largest of any sentence. Raises Unsupported for a method that admits none.
        """
        if not self.encodes:
            raise Unsupported("the encoder has no kernels")
        self.max_len, self.eos = constraints.max_len, constraints.eos
        self.generator.open(
            pad=constraints.pad,
            unk=constraints.unk,
            eos=constraints.eos,
            first_token=first_token,
            threads=threads,
            max_sentences=max_sentences,
            max_source=max_source,
            max_len=constraints.max_len,
        )

    @property
    def draws_in_open_batch(self) -> bool:
        """Whether sentences of an open batch may draw their tokens."""
        return not self.beam and self.method.acceptance is None

    def admit(
        self,
        numbers: Sequence[int],
        sample: dict[str, Any],
        constraints: Constraints,
        beam: int = 1,
        streams: bool = False,
        sampling: Sampling = _NO_SAMPLING,
    ) -> None:
        """Add sentences, which wait until there is room.

        Args:
            numbers: name the sentences in events; unused by others.
            sample: fairseq batch of the sentences.
            constraints: their limits.
            beam: hypotheses that a beam search keeps.
            streams: whether iterations are events.
            sampling: of sentences with `noise_keys`; its temperature also counts where nothing is drawn.

        Raises:
            ValueError: for a sentence that does not fit the batch.
        """
        source = sample["net_input"]["src_tokens"]
        for number, sentence in zip(numbers, self._sentences(source, sample, constraints, beam, sampling), strict=True):
            self.generator.admit(number, sentence, streams=streams)

    def take(self, seconds: float) -> list[Event]:
        """Return the next events; wait up to `seconds` for the first one."""
        return [(number, self._result(*event)) for number, *event in self.generator.take(seconds)]

    def _result(self, output: Any, iteration: Any, error: Any) -> StepOutput | Decoded | Exception:
        if error is not None:
            message, is_forbidden_eos = error
            return eos_forbidden_error(self.max_len) if is_forbidden_eos else RuntimeError(message)
        if iteration is not None:
            drafted, accepted = iteration
            return StepOutput(output, drafted, accepted, finished=output[-1:] == [self.eos])
        return self._decoded_beams([output]) if self.beam else self._decoded([output])

    def _begin(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> None:
        source, more = self.inputs(sample, constraints.pad)
        sentences = self._sentences(source, sample, constraints, max(self.beam, 1), self.sampling)
        symbols = {"pad": constraints.pad, "unk": constraints.unk, "eos": constraints.eos}
        self.generator.begin(sentences, **symbols, first_token=first_token, **more)

    def _sentences(
        self, source: Tensor, sample: dict[str, Any], constraints: Constraints, beam: int, sampling: Sampling
    ) -> list[AnySentence]:
        """Return the sentences of a batch as the module has them, with sources [B, S]."""
        limits = {
            "min_len": constraints.min_len,
            "max_len": constraints.max_len,
            "unk_penalty": constraints.unk_penalty,
            "suppressed": constraints.suppressed.everywhere,
            "begin_suppressed": constraints.suppressed.at_beginning,
            "temperature": sampling.temperature,
            "topk": sampling.topk,
            "topp": sampling.topp,
            "beam": beam,
            "needs_log_probs": sample.get("needs_scores", True),
        }
        prefix, keys = constraints.given_prefix(), sample.get("noise_keys")
        none: list[list[Any]] = [[]] * len(source)
        rows = zip(
            source.tolist(),
            none if prefix is None else prefix[0].tolist(),
            none if self.method.drafts is None else self.method.drafts(sample),
            none if keys is None else keys.tolist(),
            strict=True,
        )
        return [
            self.module.Sentence(
                [token for token in row if token != constraints.pad],
                prefix=forced, drafts=drafts, noise_key=key, **limits,
            )
            for row, forced, drafts, key in rows
        ]  # fmt: skip

    @staticmethod
    def _decoded(outputs: list[FoundOutput]) -> Decoded:
        """Return outputs of greedy search."""
        hypotheses = []
        for found, log_probs, _ in outputs:
            scores = torch.from_numpy(log_probs)
            hypotheses.append([Hypothesis(torch.from_numpy(found), scores, scores.sum())])
        return Decoded(hypotheses, [emitted for _, _, emitted in outputs])

    @staticmethod
    def _decoded_beams(found: list[tuple[list[FoundHypothesis], int]]) -> Decoded:
        """Return the hypotheses of each sentence, and its number of steps."""
        outputs = [
            [
                Hypothesis(torch.from_numpy(tokens), torch.from_numpy(log_probs), torch.tensor(score))
                for tokens, log_probs, score in hypotheses
            ]
            for hypotheses, _ in found
        ]
        return Decoded(outputs, [[steps] for _, steps in found])


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

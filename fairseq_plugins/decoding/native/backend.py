"""The backend of the compiled kernels: one call decodes a batch from source tokens to outputs."""

from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.method import MethodContext, MethodOptions, MethodSpec, NativeMethod
from fairseq_plugins.decoding.native import NotNative
from fairseq_plugins.decoding.native.model import micro_batch_size
from fairseq_plugins.decoding.reference.encoder import FusedEncoder
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search.beam import eos_forbidden_error
from fairseq_plugins.decoding.reference.state import Decoded, Hypothesis, StepOutput


class NativeBackend:
    """Runs a method on the compiled kernels; raises NotNative for anything that they do not support."""

    name = "native"

    def __init__(
        self, spec: MethodSpec, options: MethodOptions, context: MethodContext, is_traced: bool = False
    ) -> None:
        model = context.models[0]
        device = next(model.parameters()).device
        reason = refusal(spec, context, is_traced)
        if reason is None and device.type != "cpu":
            reason = f"the models are on {device.type}"
        if reason is not None:
            raise NotNative(reason)
        assert spec.build_native is not None
        method: NativeMethod = spec.build_native(context, options)
        self.method = method
        self.module = method.weights.module
        self.temperature, self.sampling = context.temperature, context.sampling
        self.searches_beams = spec.searches_beams
        encoder = method.weights.encoder(model.encoder)
        # An encoder that the kernels do not support runs in PyTorch.
        engine = Engine(method.weights.precision, batch_invariant=method.weights.batch_invariant)
        self.encoder = FusedEncoder(model.encoder, engine) if encoder is None else None
        verifier = method.weights.decoder(model.decoder, method.projection)
        min_sentences, rows = micro_batch_size(model.decoder.embed_dim)
        expand, shrink = method.head or (None, None)
        self.kernels = self.module.Generator(
            encoder=encoder,
            verifier=verifier,
            expand=expand,
            shrink=shrink,
            drafter=method.drafter,
            acceptance=method.acceptance,
            policy=method.policy,
            beam=context.beam if spec.searches_beams else 0,
            min_sentences=min_sentences,
            micro_batch_rows=rows,
        )
        instructions = self.module.instruction_set()
        self.reason = f"the compiled kernels run all of it on this CPU ({instructions})"

    def decode(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> Decoded:
        """Decode as `Backend.decode` does."""
        self._begin(sample, constraints, first_token)
        if self.searches_beams:
            return self._decode_beams(constraints)
        self.kernels.run()
        return self._decoded()

    def steps(
        self, sample: dict[str, Any], constraints: Constraints, first_token: int
    ) -> Generator[list[StepOutput], None, Decoded]:
        """Decode as `Backend.steps` does."""
        self._begin(sample, constraints, first_token)
        has_ended = False
        while not has_ended:
            has_ended = self.kernels.run(1)
            yield [StepOutput(*step) for step in self.kernels.last_iteration()]
        return self._decoded()

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each part of an iteration, summed over threads."""
        return dict(self.kernels.seconds())

    def _begin(self, sample: dict[str, Any], constraints: Constraints, first_token: int) -> None:
        if self.method.on_batch is not None:
            self.method.on_batch(sample)
        inputs = sample["net_input"]
        encoded = embedding = None
        source = inputs["src_tokens"]
        if self.encoder is not None:
            output = self.encoder(inputs)
            encoded = output["encoder_out"][0].transpose(0, 1).contiguous()
            embedding = output["encoder_embedding"][0].contiguous() if output.get("encoder_embedding") else None
            source = _tokens_of(source, encoded)
            if output["encoder_padding_mask"]:
                source = source.masked_fill(output["encoder_padding_mask"][0], constraints.pad)
        self.module.set_threads(torch.get_num_threads())
        self.kernels.begin(
            source.contiguous(),
            **limits_of(constraints),
            first_token=first_token,
            temperature=self.temperature,
            prefix=None if constraints.prefix is None else constraints.prefix.contiguous(),
            drafts=[] if self.method.drafts is None else self.method.drafts(sample),
            encoded=encoded,
            embedding=embedding,
            noise_keys=sample.get("noise_keys"),
            topk=0 if self.sampling is None else self.sampling.topk,
            topp=0 if self.sampling is None else self.sampling.topp,
        )

    def _decoded(self) -> Decoded:
        tokens, log_probs, lengths, emitted = self.kernels.outputs()
        ids = torch.from_numpy(tokens).split_with_sizes(lengths)
        scores = torch.from_numpy(log_probs).split_with_sizes(lengths)
        outputs = [[Hypothesis(*pair, pair[1].sum())] for pair in zip(ids, scores, strict=True)]
        return Decoded(outputs, emitted)

    def _decode_beams(self, constraints: Constraints) -> Decoded:
        try:
            nbest, steps = self.kernels.run_beams()
        except self.module.EosForbidden:
            raise eos_forbidden_error(constraints.max_len) from None
        return Decoded([hypotheses_of(hypotheses) for hypotheses in nbest], [[count] for count in steps])


def limits_of(constraints: Constraints) -> dict[str, Any]:
    """Return the limits of a batch as arguments of the kernels' `begin`."""
    names = ("pad", "unk", "eos", "min_len", "max_len", "unk_penalty")
    return {name: getattr(constraints, name) for name in names}


def hypotheses_of(found: list[Any]) -> list[Hypothesis]:
    """Return the kernels' hypotheses of a sentence: (tokens, log-probabilities, score) each."""
    return [
        Hypothesis(torch.from_numpy(tokens), torch.from_numpy(log_probs), torch.tensor(score))
        for tokens, log_probs, score in found
    ]


def refusal(spec: MethodSpec, context: MethodContext, is_traced: bool) -> str | None:
    """Return why no kernels can run a method, as far as is known before it is built; None if they may."""
    if context.weights is None:
        return "--no-compiled-steps"
    if is_traced:
        return "--trace-file needs scores of rejected tokens, which the kernels do not compute"
    if context.no_repeat_ngram_size:
        return "--no-repeat-ngram-size"
    if context.strategy is not None:
        return f"{context.strategy.option}: fairseq's own search object chooses"
    if len(context.models) > 1:
        return "an ensemble of several models"
    return f"--decoder {spec.name} runs no verifier" if spec.build_native is None else None


def _tokens_of(source: Tensor, encoded: Tensor) -> Tensor:
    """Return the source tokens; for speech, which has none, a zero for every encoder state."""
    if source.dim() == 2 and source.dtype == torch.long and source.size(1) == encoded.size(1):
        return source
    return encoded.new_zeros(encoded.shape[:2], dtype=torch.long)

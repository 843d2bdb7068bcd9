"""Verify drafts: run an autoregressive model, or an ensemble, over several tokens at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from fairseq_plugins.decoding.constraints import forbid_repetition
from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.captured.graphed_decoder import cached_decoder
from fairseq_plugins.decoding.reference.captured.graphed_encoder import fused_encoder
from fairseq_plugins.decoding.reference.encoder import EncoderOut
from fairseq_plugins.decoding.reference.engine import Engine, log_softmax
from fairseq_plugins.decoding.reference.layout import BeamLayout, Chain
from fairseq_plugins.decoding.reference.sampling import Choose, Sampling
from fairseq_plugins.decoding.reference.state import DecodingState, Draft, Verification


class ModelEnsemble:
    """Run one or several autoregressive models over the rows of a step.

    Args:
        models: fairseq encoder-decoder Transformers in eval mode.
        engine: runs their layers.
        temperature: fairseq's `--temperature`.
        feature_layers: decoder layers whose states a drafter reads, 0 for the embedding.
        beam: hypotheses per sentence.
        sampling: draws tokens; None for the best ones.
    """

    def __init__(
        self,
        models: Sequence[FairseqEncoderDecoderModel],
        engine: Engine,
        temperature: float = 1.0,
        feature_layers: Sequence[int] = (),
        beam: int = 1,
        sampling: Sampling | None = None,
    ) -> None:
        self.engine = engine
        self.sampling = sampling
        self.beam = beam
        self.encoders = [fused_encoder(model.encoder, engine) for model in models]
        self.decoders: list[CachedDecoder] = [cached_decoder(model.decoder, engine, beam=beam) for model in models]
        self.temperature = temperature
        self.feature_layers = tuple(feature_layers)

    def start(self, sample: dict[str, Any]) -> EncoderOut:
        """Encode the sources of a batch; return the first model's encoder output, for drafters that share it."""
        return self._encode(sample, CachedDecoder.start)

    def append_rows(self, sample: dict[str, Any]) -> EncoderOut:
        """Encode admitted sentences, whose rows follow the active ones; return their encoder output."""
        return self._encode(sample, CachedDecoder.append_rows)

    def _encode(self, sample: dict[str, Any], load: Callable[[CachedDecoder, EncoderOut], None]) -> EncoderOut:
        outputs = [encoder(sample["net_input"]) for encoder in self.encoders]
        for decoder, output in zip(self.decoders, outputs, strict=True):
            load(decoder, output)
        return outputs[0]

    def log_probs(self, tokens: Tensor, layout: BeamLayout) -> Tensor:
        """Return log-probabilities of the ensemble after the rows of a step."""
        return self._mean_log_probs(self._step(tokens, layout)[1])

    def _step(
        self, tokens: Tensor, layout: Chain | BeamLayout, states: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return states of the first model and logits of every model after the rows of a step."""
        hidden = [
            decoder.step(tokens, layout, states=None if number else states)
            for number, decoder in enumerate(self.decoders)
        ]
        return hidden[0], [self._logits(decoder, h) for decoder, h in zip(self.decoders, hidden, strict=True)]

    def _logits(self, decoder: CachedDecoder, hidden: Tensor) -> Tensor:
        logits = decoder.project(hidden)
        return logits if self.temperature == 1.0 else logits / self.temperature

    def _mean_log_probs(self, logits: list[Tensor]) -> Tensor:
        """Return log-probabilities of the ensemble: fairseq averages probabilities, not logits."""
        log_probs = [log_softmax(of_model) for of_model in logits]
        return log_probs[0] if len(log_probs) == 1 else torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows [B'], indices into the current batch."""
        for decoder in self.decoders:
            decoder.select_rows(rows)


class Verifier(ModelEnsemble):
    """Verify drafts with one or several autoregressive models."""

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        """Score the token after the last one and after each of K drafted tokens, in one pass (T = K + 1)."""
        limits = state.constraints
        tokens = torch.cat([state.last_tokens(), draft.tokens], dim=1) if draft.tokens.size(1) else state.last_tokens()
        layout = Chain(state.lengths, state.span, tokens.size(1))
        # Only some drafters read states, and only those of the first model.
        states: list[Tensor] | None = [] if self.feature_layers else None
        hidden, logits = self._step(tokens, layout, states)
        choose = None
        if self.sampling is not None:
            assert state.noise_keys is not None
            positions = state.lengths[:, None] + torch.arange(tokens.size(1), device=tokens.device)
            choose = self.sampling.choose(self.sampling.noise(state.noise_keys, positions, logits[0].size(2)))
        log_probs = self._mean_log_probs(logits)
        if limits.no_repeat_ngram_size:
            forbid_repetition(log_probs, _tokens_with_draft(state, draft), state.lengths, limits.no_repeat_ngram_size)
        return verification(state, log_probs, hidden, self._features(states), choose)

    def _features(self, states: list[Tensor] | None) -> Tensor | None:
        """Return what drafters read of the states before and after each layer."""
        return None if states is None else torch.cat([states[n] for n in self.feature_layers], -1)


def _tokens_with_draft(state: DecodingState, draft: Draft) -> Tensor:
    """Return the tokens [B, L] of every output, followed by its draft."""
    width = draft.tokens.size(1)
    tokens = torch.cat([state.tokens[:, : state.span.longest + 1], torch.zeros_like(draft.tokens)], 1)
    columns = state.lengths[:, None] + torch.arange(1, width + 1, device=tokens.device)
    return tokens.scatter_(1, columns, draft.tokens)


class DrafterIsVerifier:
    """Stands in for the verifier of `--decoder nat`, which has none: the draft's scores are final."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def start(self, sample: dict[str, Any]) -> EncoderOut | None:
        return None

    append_rows = start

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        """Return the draft's log-probabilities [B, K, V] (T = K: the verifier adds no token of its own)."""
        assert draft.log_probs is not None
        return verification(state, draft.log_probs)

    def select_rows(self, rows: Tensor) -> None:
        pass


def verification(
    state: DecodingState,
    log_probs: Tensor,
    hidden: Tensor | None = None,
    features: Tensor | None = None,
    choose: Choose | None = None,
) -> Verification:
    """Return the verification of log-probabilities [B, T, V]; fairseq's constraints are applied in place."""
    constraints, span, forced = state.constraints, state.span, state.forced_tokens(log_probs.size(1))
    # Those of forced tokens, which may be suppressed ones.
    given = None if forced is None else constraints.penalised(log_probs.gather(2, forced[:, :, None])[:, :, 0], forced)
    constraints.apply(log_probs, state.lengths, span.shortest, span.longest)
    best = log_probs.argmax(-1) if choose is None else choose(log_probs)
    if forced is not None and given is not None:
        is_free = forced == constraints.pad
        best = torch.where(is_free, best, forced)
        kept = log_probs.gather(2, best[:, :, None])
        log_probs.scatter_(2, best[:, :, None], torch.where(is_free[:, :, None], kept, given[:, :, None]))
    return Verification(log_probs, best, hidden, features)

"""The verifier: one autoregressive model or an ensemble, run over several tokens at once."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.encoder import EncoderOut, FusedEncoder
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.graphed_decoder import cached_decoder
from fairseq_plugins.decoding.engine.layout import BeamLayout, Chain
from fairseq_plugins.decoding.repetition import forbid_repetition
from fairseq_plugins.decoding.state import Candidates, DecodingState, Draft, Verification


class AnyVerifier(Protocol):
    """Verifies drafts."""

    engine: Engine

    def start(self, sample: dict[str, Any]) -> EncoderOut | None:
        """Encode the sources of a batch; return the encoder output for drafters that share it."""

    def append_rows(self, sample: dict[str, Any]) -> EncoderOut | None:
        """Encode admitted sentences, whose rows follow the active ones."""

    def verify(self, state: DecodingState, draft: Draft) -> Verification | Candidates:
        """Score the token after the last one and after each drafted one; `Candidates` in beam search."""

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows [B'], indices into the current batch."""


class ModelEnsemble:
    """One or several autoregressive models, run over the rows of a step.

    Args:
        models: fairseq encoder-decoder Transformers in eval mode.
        engine: runs their layers.
        temperature: fairseq's `--temperature`.
        feature_layers: decoder layers whose states a drafter reads, 0 for the embedding.
        beam: hypotheses per sentence.
    """

    def __init__(
        self,
        models: Sequence[FairseqEncoderDecoderModel],
        engine: Engine,
        temperature: float = 1.0,
        feature_layers: Sequence[int] = (),
        beam: int = 1,
    ) -> None:
        self.engine = engine
        self.encoders = [FusedEncoder(model.encoder, engine) for model in models]
        self.decoders: list[CachedDecoder] = [cached_decoder(model.decoder, engine, beam=beam) for model in models]
        self.temperature = temperature
        self.feature_layers = feature_layers

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
        return self._mean_log_probs(self._scores(tokens, layout)[1])

    def _scores(
        self, tokens: Tensor, layout: Chain | BeamLayout, states: list[Tensor] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return states of the first model and scores of every model after the rows of a step."""
        hidden = [
            decoder.step(tokens, layout, states=None if number else states)
            for number, decoder in enumerate(self.decoders)
        ]
        scores = [decoder.project(h) for decoder, h in zip(self.decoders, hidden, strict=True)]
        if self.temperature != 1.0:
            scores = [score / self.temperature for score in scores]
        return hidden[0], scores

    def _mean_log_probs(self, scores: list[Tensor]) -> Tensor:
        """Return log-probabilities of the ensemble: fairseq averages probabilities, not scores."""
        log_probs = [self.engine.log_softmax(score) for score in scores]
        return log_probs[0] if len(log_probs) == 1 else torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows [B'], indices into the current batch."""
        for decoder in self.decoders:
            decoder.select_rows(rows)


class Verifier(ModelEnsemble):
    """Runs the last token and the draft through one or several autoregressive models."""

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        """Score the token after the last one and after each of K drafted tokens, in one pass (T = K + 1)."""
        tokens = torch.cat([state.last_tokens(), draft.tokens], dim=1) if draft.tokens.size(1) else state.last_tokens()
        layout = Chain(state.lengths, state.span, tokens.size(1))
        # Only the first model's states are read, and only by some drafters.
        states: list[Tensor] | None = [] if self.feature_layers else None
        hidden, scores = self._scores(tokens, layout, states)
        features = None if states is None else torch.cat([states[n] for n in self.feature_layers], -1)
        if state.constraints.no_repeat_ngram_size:
            log_probs = self._mean_log_probs(scores)
            forbid_repetition(log_probs, _seen(state, draft), state.lengths, state.constraints.no_repeat_ngram_size)
            return verification(state, log_probs, self.engine, hidden, features)
        if len(scores) == 1:
            return verification_of_scores(state, scores[0], self.engine, hidden, features)
        return verification(state, self._mean_log_probs(scores), self.engine, hidden, features)


def _seen(state: DecodingState, draft: Draft) -> Tensor:
    """Return the tokens [B, L] of every output with its draft after them."""
    width = draft.tokens.size(1)
    seen = torch.cat([state.tokens[:, : state.span.longest + 1], torch.zeros_like(draft.tokens)], 1)
    columns = state.lengths[:, None] + torch.arange(1, width + 1, device=seen.device)
    return seen.scatter_(1, columns, draft.tokens)


class DrafterIsVerifier:
    """Replaces the verifier when a NAT model decodes alone: the draft's scores are final."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def start(self, sample: dict[str, Any]) -> None:
        return None

    append_rows = start

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        """Return the draft's log-probabilities [B, K, V] (T = K: the verifier adds no token of its own)."""
        assert draft.log_probs is not None
        return verification(state, draft.log_probs, self.engine)

    def select_rows(self, rows: Tensor) -> None:
        pass


def verification_of_scores(
    state: DecodingState, scores: Tensor, engine: Engine, hidden: Tensor, features: Tensor | None
) -> Verification:
    """Return the verification of one model's scores [B, T, V]; softmax is computed on first use."""
    constraints, lengths, span = state.constraints, state.lengths, state.span
    best = constraints.best(scores, lengths, span.shortest, span.longest)
    best = constraints.force_prefix(best, is_first=span.longest == 0)

    def log_probs() -> Tensor:
        values = engine.log_softmax(scores)
        constraints.apply(values, lengths, span.shortest, span.longest)
        return values

    def of_best(width: int) -> Tensor:
        tokens = best[:, :width]
        return constraints.penalised(engine.log_probs_of(scores[:, :width], tokens), tokens)

    return Verification(log_probs, best, hidden, features, of_best)


def verification(
    state: DecodingState,
    log_probs: Tensor,
    engine: Engine,
    hidden: Tensor | None = None,
    features: Tensor | None = None,
) -> Verification:
    """Return the verification of log-probabilities [B, T, V]; fairseq's constraints are applied in place."""
    constraints, span = state.constraints, state.span
    constraints.apply(log_probs, state.lengths, span.shortest, span.longest)
    best = constraints.force_prefix(log_probs.argmax(-1), is_first=span.longest == 0)
    return Verification(log_probs, best, hidden, features)

"""The verifier: one autoregressive model or an ensemble, run over several tokens at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from fairseq_plugins.decoding import native
from fairseq_plugins.decoding.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.drafters import DecodingState, Draft
from fairseq_plugins.decoding.encoder import FusedEncoder
from fairseq_plugins.decoding.graphs import cached_decoder
from fairseq_plugins.decoding.weights import Precision


@dataclass
class Verification:
    """What the verifier says of the last token and a draft.

    Attributes:
        scores: [B, T, V], log-probabilities of the token after each position.
        hidden: [B, T, D], decoder states of the (first) model, None where no verifier runs.
        features: [B, T, F], the states behind `Verifier.feature_layers` of the first model, side by side.
    """

    scores: Tensor
    hidden: Tensor | None
    features: Tensor | None = None

    def log_probs(self, tokens: Tensor) -> Tensor:
        """Log-probabilities [B, T] of these tokens [B, T]."""
        return self.scores.gather(2, tokens.unsqueeze(2)).squeeze(2)


class Verifier:
    """Runs the last token and the draft through one or several autoregressive models.

    Args:
        models: fairseq encoder-decoder Transformers in eval mode.
        temperature: fairseq's `--temperature`.
        feature_layers: decoder layers whose states a drafter wants to read, 0 for the embedding.
        precision: of their linear layers.
    """

    def __init__(
        self,
        models: Sequence[FairseqEncoderDecoderModel],
        temperature: float = 1.0,
        feature_layers: Sequence[int] = (),
        precision: Precision = Precision.FP32,
    ) -> None:
        self.encoders = [FusedEncoder(model.encoder, precision) for model in models]
        self.decoders = [cached_decoder(model.decoder, precision=precision) for model in models]
        self.temperature = temperature
        self.feature_layers = feature_layers

    def start(self, sample: dict[str, Any]) -> dict[str, list[Tensor]]:
        """Encode a fairseq batch; returns the first model's encoder output, for drafters that share it."""
        return self._encode(sample, CachedDecoder.start)

    def join(self, sample: dict[str, Any]) -> dict[str, list[Tensor]]:
        """Encode more sentences of the batch, which come in behind those present; returns their encoder output."""
        return self._encode(sample, CachedDecoder.join)

    def _encode(
        self, sample: dict[str, Any], hand_over: Callable[[CachedDecoder, dict[str, list[Tensor]]], None]
    ) -> dict[str, list[Tensor]]:
        outputs = [encoder(sample["net_input"]) for encoder in self.encoders]
        for decoder, output in zip(self.decoders, outputs, strict=True):
            hand_over(decoder, output)
        return outputs[0]

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        """Score the token after the last one and after each of K drafted tokens, in one pass (T = K + 1)."""
        tokens = torch.cat([state.last_tokens(), draft.tokens], dim=1)
        # Only the first model's states are read, and only by some drafters.
        states: list[Tensor] | None = [] if self.feature_layers else None
        hidden = [
            decoder.step(tokens, state.lengths, state.span, layers=None if number else states)
            for number, decoder in enumerate(self.decoders)
        ]
        features = None if states is None else torch.cat([states[n] for n in self.feature_layers], -1)
        scores = [decoder.project(h) for decoder, h in zip(self.decoders, hidden, strict=True)]
        if self.temperature != 1.0:
            scores = [score / self.temperature for score in scores]
        log_probs = [native.log_softmax(score) for score in scores]
        if len(log_probs) == 1:
            return Verification(log_probs[0], hidden[0], features)
        # fairseq's ensembles average probabilities, not scores.
        mean = torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
        return Verification(mean, hidden[0], features)

    def keep(self, rows: Tensor) -> None:
        """Go on with these sentences only; rows [B'] are indices into the current batch."""
        for decoder in self.decoders:
            decoder.keep(rows)


class DrafterIsVerifier:
    """Stands in for the verifier when a NAT model decodes alone: the draft's own scores are the last word."""

    def start(self, sample: dict[str, Any]) -> None:
        return None

    join = start

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        """Scores [B, K, V] of the drafted tokens themselves (T = K: there is no token of the verifier's own)."""
        assert draft.logits is not None
        return Verification(draft.logits.float().log_softmax(-1), None)

    def keep(self, rows: Tensor) -> None:
        pass

"""Verifiers whose steps are captured together with acceptance, or with the choice of a beam's hypotheses."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from fairseq.models import FairseqEncoderDecoderModel
from torch import Tensor

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.reference.beam_verifier import BeamVerifier, has_enough
from fairseq_plugins.decoding.reference.captured.graph_capture import Outputs
from fairseq_plugins.decoding.reference.captured.graphed_decoder import GraphedDecoder
from fairseq_plugins.decoding.reference.engine import Engine, log_softmax
from fairseq_plugins.decoding.reference.layout import BeamLayout, Chain
from fairseq_plugins.decoding.reference.sampling import Sampling
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.beam import select_candidates, top
from fairseq_plugins.decoding.reference.state import Accepted, DecodingState, Draft, Selection, Verification
from fairseq_plugins.decoding.reference.verifier import Verifier


def greedy_verifier(
    search: GreedySearch,
    models: Sequence[FairseqEncoderDecoderModel],
    engine: Engine,
    temperature: float = 1.0,
    feature_layers: Sequence[int] = (),
    sampling: Sampling | None = None,
) -> Verifier:
    """Return a `Verifier` for a search, which runs from graphs if the engine has them; other arguments are its own."""
    if _has_graphs(models, engine):
        return GraphedVerifier(search, models, engine, temperature, feature_layers, sampling)
    return Verifier(models, engine, temperature, feature_layers, sampling=sampling)


def beam_verifier(
    models: Sequence[FairseqEncoderDecoderModel], engine: Engine, temperature: float, beam: int
) -> BeamVerifier:
    """Return a `BeamVerifier`, which runs from graphs if the engine has them for the models' device."""
    kind = GraphedBeamVerifier if _has_graphs(models, engine) else BeamVerifier
    return kind(models, engine, temperature, beam=beam)


def _has_graphs(models: Sequence[FairseqEncoderDecoderModel], engine: Engine) -> bool:
    """Return whether one model is to be run from graphs; ensembles average the scores of several."""
    return len(models) == 1 and engine.has_graphs(next(models[0].parameters()).device)


class GraphedVerifier(Verifier):
    """Verifies and accepts in one CUDA graph."""

    def __init__(
        self,
        search: GreedySearch,
        models: Sequence[FairseqEncoderDecoderModel],
        engine: Engine,
        temperature: float,
        feature_layers: Sequence[int],
        sampling: Sampling | None,
    ) -> None:
        super().__init__(models, engine, temperature, feature_layers, sampling=sampling)
        self.search = search

    def verify(self, state: DecodingState, draft: Draft) -> Verification:
        """Verify as `Verifier.verify` does, and accept."""
        decoder, limits = self.decoders[0], state.constraints
        if limits.prefix is not None or limits.no_repeat_ngram_size or draft.log_probs is not None:
            return super().verify(state, draft)
        assert isinstance(decoder, GraphedDecoder)
        rows, width = draft.tokens.size(0), draft.tokens.size(1) + 1
        # The maximum length differs between batches, so it is an input of the graph.
        limits = replace(state.constraints, max_len=0)
        inputs = {
            "drafted": decoder.column(width - 1, rows) if draft.num_drafted is None else draft.num_drafted[:, None],
            "max_len": decoder.column(state.max_len, rows),
            "ended": decoder.column(0, rows) if state.ended is None else state.ended[:, None],
        }
        if state.noise_keys is not None:
            inputs["keys"] = state.noise_keys
        hidden, best, path, counts, log_probs, features = decoder.step_then(
            partial(self._accept_step, limits),
            limits,
            [state.last_tokens(), draft.tokens],
            Chain(state.lengths, state.span, width),
            inputs,
            with_states=bool(self.feature_layers),
        )
        assert hidden is not None and best is not None and path is not None
        assert counts is not None and log_probs is not None
        lengths, span = state.lengths, state.span

        def all_log_probs() -> Tensor:
            values = log_softmax(self._logits(decoder, hidden))
            state.constraints.apply(values, lengths, span.shortest, span.longest)
            return values

        best, path, log_probs = best[:, :width], path[:, :width], log_probs[:, :width]
        features = None if features is None else features[:, :width]
        return Verification(all_log_probs, best, hidden, features, accepted=Accepted(path, counts, log_probs))

    def _accept_step(
        self, limits: Constraints, hidden: Tensor, states: list[Tensor] | None, inputs: dict[str, Tensor]
    ) -> tuple[Tensor | None, ...]:
        """Accept after a step without waiting for the device; a function `After` of captured/graphed_decoder.py.

        Returns:
            best [B, T], path [B, T], counts [B, 3], log-probabilities [B, T] of the path, features.
        """
        tokens = inputs["tokens"]
        position = inputs["lengths"] + torch.arange(tokens.size(1), device=tokens.device)
        scores = log_softmax(self._logits(self.decoders[0], hidden))
        limits.apply_masks(scores, limits.masks_at(position, inputs["max_len"]))
        noise = None if self.sampling is None else self.sampling.noise(inputs["keys"], position, scores.size(2))
        best = scores.argmax(-1) if self.sampling is None or noise is None else self.sampling.choose(noise)(scores)
        features = self._features(states)
        verified = Verification(scores, best, hidden, features)
        draft = Draft(tokens[:, 1:], inputs["drafted"][:, 0])
        accepted = self.search.accept(draft, verified, limits.eos, inputs["ended"][:, 0])
        return verified.best, accepted.tokens, accepted.counts, verified.log_probs_of(accepted.tokens), features


class GraphedBeamVerifier(BeamVerifier):
    """Verifies and selects in one CUDA graph."""

    def verify(self, state: DecodingState, draft: Draft) -> Selection:
        """Select as `BeamVerifier.verify` does."""
        beams, limits, decoder = state.beams, state.constraints, self.decoders[0]
        assert beams is not None and isinstance(decoder, GraphedDecoder)
        is_plain = limits.prefix is None and not limits.no_repeat_ngram_size and self.strategy is None
        if not is_plain or not has_enough(len(decoder.decoder.dictionary), beams.size):
            return super().verify(state, draft)
        layout = BeamLayout(state.lengths, state.span, beams.size, beams.beam_ancestors)
        size, rows = beams.size, len(beams.scores)
        # The maximum length differs between batches, so it is an input of the graph.
        limits = replace(state.constraints, max_len=0)

        def select(hidden: Tensor, states: list[Tensor] | None, inputs: dict[str, Tensor]) -> Outputs:
            lengths = inputs["lengths"]
            log_probs = self._mean_log_probs([self._logits(decoder, hidden)])
            log_probs.masked_fill_(log_probs.isnan(), -torch.inf)
            limits.apply_masks(log_probs[:, None], limits.masks_at(lengths, inputs["max_len"]))
            before = inputs["scores"].view(torch.double)[:, 0].float()
            ignored = inputs["ignored"].view(-1, size) > 0
            total = (log_probs + before[:, None]).unflatten(0, (-1, size))
            # Of sentences without tokens only the first hypothesis counts, since all are equal.
            is_copy = (lengths.view(-1, size) == 0) & (torch.arange(size, device=lengths.device) > 0)
            candidates = top(total.masked_fill_(is_copy[:, :, None], -torch.inf), 2 * size, total.size(2))
            return select_candidates(candidates, before, ignored, limits.eos)

        inputs = {
            "max_len": decoder.column(state.max_len, rows),
            # Inputs of a graph are integers, so the scores are passed as the bits of doubles.
            "scores": beams.scores.double().view(torch.long)[:, None],
            "ignored": beams.ignored.long().view(-1, 1),
        }
        _, *outputs = decoder.step_then(select, limits, [state.last_tokens()], layout, inputs)
        # Outputs per row are already without padding; outputs per sentence are cut here.
        selected = (value if value.dim() == 1 else value[: rows // size] for value in outputs if value is not None)
        return Selection(*selected)

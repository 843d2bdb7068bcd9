"""Steps of beam search in one call of the kernels: see `beam.h`."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_plugins.decoding.engine.layout import BeamLayout
from fairseq_plugins.decoding.engine.native.build import (
    BeamsStructure,
    CandidatesStructure,
    GoingStructure,
    LimitsStructure,
)
from fairseq_plugins.decoding.engine.native.kernels import sentences_together
from fairseq_plugins.decoding.engine.native.layers import (
    REASONS,
    NativeLayers,
    NativeLinear,
    check,
    require,
)

# What `run_beams` returns then.
_NOTHING_MAY_END = 3


class NothingMayEnd(Exception):
    """An output is as long as it may be, and EOS may not be there."""


@dataclass(frozen=True)
class Going:
    """Where a search is written down that goes on by itself, besides lengths, holders and scores.

    Attributes:
        tokens, log_probs: [R, capacity], as wide as the holders.
        ignored: [B, beam], see `decoding.state.Beams`.
        ended: [B], how many outputs each sentence has.
        steps, finished: [B], of each sentence the steps that were taken, and whether it has ended.
        outputs: tokens and log-probabilities [B, beam, capacity], lengths and sums of log-probabilities [B, beam] of
            the hypotheses that end, behind those that had ended before.
        budget: steps at most.
        enough: the call is over when so many sentences have ended.
    """

    tokens: Tensor
    log_probs: Tensor
    ignored: Tensor
    ended: Tensor
    steps: Tensor
    finished: Tensor
    outputs: tuple[Tensor, Tensor, Tensor, Tensor]
    budget: int
    enough: int

    @classmethod
    def begin(
        cls, tokens: Tensor, log_probs: Tensor, ignored: Tensor, ended: list[int], budget: int, enough: int
    ) -> "Going":
        """With room for what comes."""
        batch, beam = ignored.shape
        outputs = (
            tokens.new_empty(batch, beam, tokens.size(1)),
            log_probs.new_empty(batch, beam, tokens.size(1)),
            tokens.new_empty(batch, beam),
            log_probs.new_empty(batch, beam),
        )
        steps, finished = tokens.new_zeros(batch), ignored.new_zeros(batch)
        return cls(tokens, log_probs, ignored, torch.tensor(ended), steps, finished, outputs, budget, enough)

    def structure(self, lengths: Tensor, holders: Tensor, scores: Tensor, rows_together: int) -> GoingStructure:
        """For the kernels.

        Raises:
            ValueError: for tensors of the wrong shape or type.
        """
        batch, beam = self.ignored.shape
        rows = batch * beam
        check("tokens of hypotheses", self.tokens, (rows, holders.size(1)), torch.long)
        check("log-probabilities of hypotheses", self.log_probs, (rows, holders.size(1)))
        check("ignored places", self.ignored, (batch, beam), torch.bool)
        check("ended hypotheses", self.ended, (batch,), torch.long)
        written = (self.tokens, lengths, holders, self.log_probs, scores, self.ignored)
        counted = (self.steps, self.finished, self.ended, *self.outputs)
        return GoingStructure(
            *(x.data_ptr() for x in written),
            *(self.budget, self.enough, rows_together),
            *(x.data_ptr() for x in counted),
        )


def run_beams(
    layers: NativeLayers,
    tokens: Tensor,
    layout: BeamLayout,
    scores: Tensor,
    cache: Tensor,
    cross: Tensor,
    cross_allowed: Tensor | None,
    projection: NativeLinear,
    limits: LimitsStructure,
    places: Tensor | None = None,
    going: Going | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the last token of every hypothesis; the 2 * beam best continuations of every sentence.

    With `going`, steps are run and written down until sentences have ended, also in `scores` and in the lengths and
    holders of the layout.

    Args:
        layers: of a decoder.
        tokens: [R], R = B * beam.
        layout: where they stand. Of a sentence without any token only the first hypothesis counts.
        scores: [R], sums of log-probabilities.
        cache: [layers, P * beam, capacity, 2, H, D / H], written at the lengths, P = B without `places`.
        cross: [layers, P, S, 2, H, D / H]; cross_allowed: [P, S], as for `NativeLayers.run`.
        projection: to the vocabulary.
        limits: what the next tokens may be.
        places: [B], of every sentence its place in the caches; None where each has its own.
        going: where steps are written down; None for a single one.

    Returns:
        sums of log-probabilities, tokens and parents [B, 2 * beam] as `decoding.state.Candidates` has them; with
        `going` only memory that was used.

    Raises:
        ValueError: for a layout that points outside of the caches, tokens outside of the vocabulary, or tensors of the
            wrong shape or type.
        NothingMayEnd: where the longest output is reached.
    """
    rows, beam = tokens.numel(), layout.beam
    require(layers.ends is not None and layers.has_cross, "only a decoder searches")
    require(beam > 0 and rows % beam == 0, f"{rows} hypotheses, {beam} of each sentence")
    lengths, holders = layout.lengths, layout.holders
    if going is None:
        scores, lengths, holders = (x.contiguous() for x in (scores, lengths, holders))
    tokens = tokens.contiguous()
    check("tokens", tokens, (rows,), torch.long)
    check("lengths", lengths, (rows,), torch.long)
    check("scores", scores, (rows,))
    require(holders.dim() == 2, f"holders are {list(holders.shape)}")
    check("holders", holders, (rows, holders.size(1)), torch.long)
    require(projection.inputs == layers.width, f"the projection reads {projection.inputs} of {layers.width}")
    require(projection.outputs == limits.vocabulary, "the projection has another vocabulary")
    special = (limits.pad, limits.unk, limits.eos)
    require(0 <= min(special) and max(special) < limits.vocabulary, f"no tokens {special} in the vocabulary")
    where = None
    if going is not None:
        where = going.structure(lengths, holders, scores, max(sentences_together(layers.width)))
    held: list[Tensor] = []
    own = layers.memory(cache, layout.slots if going is None else cache.size(2), None, held)
    source = layers.memory(cross, cross.size(2), cross_allowed, held)
    shape = (rows // beam, 2 * beam)
    found = scores.new_empty(shape), tokens.new_empty(shape), tokens.new_empty(shape)
    places = torch.arange(shape[0]) if places is None else places.contiguous()
    check("places", places, (shape[0],), torch.long)
    beams = BeamsStructure(
        *(shape[0], beam, tokens.data_ptr(), lengths.data_ptr(), holders.data_ptr(), holders.size(1)),
        *(scores.data_ptr(), places.data_ptr()),
    )
    asked = CandidatesStructure(projection.structure, limits, shape[1], *(x.data_ptr() for x in found))
    layers.kernels.set_threads(torch.get_num_threads())
    failed = layers.kernels.run_beams(
        *(layers.array, layers.count, ctypes.byref(layers.ends), layers.width),
        *(ctypes.byref(x) for x in (beams, own, source, asked)),
        None if where is None else ctypes.byref(where),
    )
    if failed == _NOTHING_MAY_END:
        raise NothingMayEnd
    require(not failed, REASONS.get(failed, "failed"))
    return found


@dataclass(frozen=True)
class Chosen:
    """What of the candidates ends and what goes on, R = B * size hypotheses.

    Attributes:
        tokens, scores, log_probs: [R], of what goes on; scores are sums.
        parents: [R], the row that each row continues.
        ignored: [B, size], places from which nothing will end in the next step.
        ends: [B, size], which of the best candidates end; None where none does.
    """

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    log_probs: Tensor
    ignored: Tensor
    ends: Tensor | None


def choose_hypotheses(
    kernels: ctypes.CDLL, candidates: tuple[Tensor, Tensor, Tensor], scores: Tensor, ignored: Tensor, eos: int
) -> Chosen:
    """What `search.beam.choose` gives, in one call.

    Args:
        kernels: the compiled library.
        candidates: sums of log-probabilities, tokens and parents [B, C], the best first.
        scores: [B * size], sums of the hypotheses that are continued.
        ignored: [B, size], as it was after the step before.
        eos: this symbol.

    Raises:
        ValueError: for tensors of the wrong shape or type.
    """
    sums, tokens, parents = (x.contiguous() for x in candidates)
    (batch, size), count = ignored.shape, sums.size(-1)
    require(count >= size, f"{count} candidates for {size} hypotheses")
    check("sums of candidates", sums, (batch, count))
    check("tokens of candidates", tokens, (batch, count), torch.long)
    check("parents of candidates", parents, (batch, count), torch.long)
    check("scores", scores, (batch * size,))
    ignored, ends = ignored.clone(), ignored.new_empty(ignored.shape)
    check("ignored places", ignored, (batch, size), torch.bool)
    chosen = torch.empty_like(scores), torch.empty_like(scores)
    where = tokens.new_empty(batch * size), tokens.new_empty(batch * size)
    beams = BeamsStructure(sentences=batch, size=size, scores=scores.data_ptr())
    ended = kernels.choose_hypotheses(
        *(sums.data_ptr(), tokens.data_ptr(), parents.data_ptr(), count, ctypes.byref(beams), eos),
        *(x.data_ptr() for x in (ignored, ends, *where, *chosen)),
    )
    require(ended >= 0, "a candidate continues no hypothesis")
    return Chosen(where[0], where[1], *chosen, ignored, ends if ended else None)

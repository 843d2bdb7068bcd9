"""A step of beam search in one call of the kernels: see `beam.h`."""

import ctypes

import torch
from torch import Tensor

from fairseq_plugins.decoding.engine.layout import BeamLayout
from fairseq_plugins.decoding.engine.native.build import BeamsStructure, CandidatesStructure, LimitsStructure
from fairseq_plugins.decoding.engine.native.layers import (
    REASONS,
    NativeLayers,
    NativeLinear,
    check,
    memory_of,
    require,
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the last token of every hypothesis; the 2 * beam best continuations of every sentence.

    Args:
        layers: of a decoder.
        tokens: [R], R = B * beam.
        layout: where they stand. Of a sentence without any token only the first hypothesis counts.
        scores: [R], sums of log-probabilities.
        cache: [layers, R, capacity, 2, H, D / H], written at the lengths.
        cross: [layers, B, S, 2, H, D / H]; cross_allowed: [B, S], as for `NativeLayers.run`.
        projection: to the vocabulary.
        limits: what the next tokens may be.

    Returns:
        sums of log-probabilities, tokens and parents [B, 2 * beam] as `decoding.state.Candidates` has them.

    Raises:
        ValueError: for a layout that points outside of the caches, tokens outside of the vocabulary, or tensors of the
            wrong shape or type.
    """
    rows, beam = tokens.numel(), layout.beam
    require(layers.ends is not None and layers.has_cross, "only a decoder searches")
    require(beam > 0 and rows % beam == 0, f"{rows} hypotheses, {beam} of each sentence")
    tokens, scores, lengths, holders = (x.contiguous() for x in (tokens, scores, layout.lengths, layout.holders))
    check("tokens", tokens, (rows,), torch.long)
    check("lengths", lengths, (rows,), torch.long)
    check("scores", scores, (rows,))
    require(holders.dim() == 2, f"holders are {list(holders.shape)}")
    check("holders", holders, (rows, holders.size(1)), torch.long)
    require(projection.inputs == layers.width, f"the projection reads {projection.inputs} of {layers.width}")
    require(projection.outputs == limits.vocabulary, "the projection has another vocabulary")
    special = (limits.pad, limits.unk, limits.eos)
    require(0 <= min(special) and max(special) < limits.vocabulary, f"no tokens {special} in the vocabulary")
    own, _ = memory_of(layers, cache, layout.slots, None)
    source, mask = memory_of(layers, cross, cross.size(2), cross_allowed)
    shape = (rows // beam, 2 * beam)
    found = scores.new_empty(shape), tokens.new_empty(shape), tokens.new_empty(shape)
    beams = BeamsStructure(
        *(shape[0], beam, tokens.data_ptr(), lengths.data_ptr(), holders.data_ptr(), holders.size(1)),
        scores.data_ptr(),
    )
    asked = CandidatesStructure(projection.structure, limits, shape[1], *(x.data_ptr() for x in found))
    layers.kernels.set_threads(torch.get_num_threads())
    failed = layers.kernels.run_beams(
        *(layers.array, layers.count, ctypes.byref(layers.ends), layers.width),
        *(ctypes.byref(x) for x in (beams, own, source, asked)),
    )
    require(not failed, REASONS.get(failed, "failed"))
    return found

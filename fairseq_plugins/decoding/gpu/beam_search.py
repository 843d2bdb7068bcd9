"""fairseq's beam search on the device, with the hypotheses of csrc/beam_search.cpp.

The rows of a step are hypotheses, `beam` of each place. Keys and values are not reordered: a table of ancestors tells
attention which hypothesis wrote an earlier position.
"""

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Sizes
from fairseq_plugins.decoding.gpu.kernels import hypotheses as kernels
from fairseq_plugins.decoding.gpu.search import Search
from fairseq_plugins.decoding.gpu.vocabulary import score, tile_of
from fairseq_plugins.decoding.gpu.weights import Transformer

_COLUMNS = 32  # columns of a tile of tokens or ancestors


class EosForbidden(ValueError):
    """EOS is forbidden at the maximum length, where a hypothesis must end."""


class BeamSearch(Search):
    """Continue the hypotheses of all places by a token at a time.

    Args:
        encoder, verifier: the models.
        sizes: of the memory; `beam` hypotheses for each place.

    Raises:
        ValueError: for a beam that is too wide for the vocabulary.
    """

    def __init__(self, encoder: Transformer, verifier: Transformer, sizes: Sizes) -> None:
        assert verifier.projection is not None
        vocabulary, beam = verifier.projection.outputs, sizes.beam
        if 2 * beam + 2 > vocabulary:
            raise ValueError("the beam is too wide for the vocabulary")
        self.beam, count = beam, 2 * beam
        super().__init__(encoder, verifier, sizes, min(count, tile_of(verifier.width)))
        places, columns = sizes.places, sizes.columns

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        floats = torch.float32
        self.candidate_scores, self.candidate_tokens = (
            zeros(places * beam, count, dtype=floats),
            zeros(places * beam, count),
        )
        self.ancestors = zeros(places, 2, beam, columns)
        self.sums = zeros(places, 2, beam, dtype=floats)
        self.ended_tokens, self.ended_log_probs = (
            zeros(places, beam, columns),
            zeros(places, beam, columns, dtype=floats),
        )
        self.ended_scores, self.ended_lengths = zeros(places, beam, dtype=floats), zeros(places, beam)
        self.num_ended = zeros(places)

    def iterate(self, places: int, width: int) -> None:
        """Launch a step of the first `places` places; there are no drafts, so `width` is 0."""
        batch, model, count, beam = self.batch, self.verifier, places * self.beam, self.beam
        launch = self.runner.launch
        x = self.x[: count * model.width].view(count, model.width)
        into = self.scores.of_rows(count)
        arguments = batch.arguments
        step = self.begin_step(places, beam, x, into, arguments, self.ancestors)
        state = self.runner.run(step, x, self.cache, self.source_cache)
        assert model.projection is not None
        score(self.runner, step, state, model.projection, into, batch, draws=False, is_limited=True)
        ranks, hypotheses = triton.next_power_of_2(2 * beam), triton.next_power_of_2(beam)
        kernels.best_continuations[(count,)](
            arguments, into, self.candidate_scores, self.candidate_tokens, BEAM=beam,
            BEST=into.best, COUNT=2 * beam, RANKS=ranks, TILES=triton.next_power_of_2(into.tiles), num_warps=4,
            **launch,
        )  # fmt: skip
        kernels.advance_beams[(places,)](
            arguments, into, self.candidate_scores, self.candidate_tokens, self.ancestors, self.sums,
            self.ended_tokens, self.ended_log_probs, self.ended_scores, self.ended_lengths, self.num_ended, BEAM=beam,
            COUNT=2 * beam, HYPOTHESES=hypotheses,
            RANKS=ranks, COLUMNS=_COLUMNS, num_warps=min(8, max(1, ranks * hypotheses // 64)), **launch,
        )  # fmt: skip

    def results(self, length: int) -> tuple[Tensor, ...]:
        """Return ended hypotheses of all places: tokens and log-probabilities [B, beam, length], scores, lengths."""
        return (
            self.ended_tokens[:, :, :length], self.ended_log_probs[:, :, :length], self.ended_scores,
            self.ended_lengths, self.num_ended,
        )  # fmt: skip

"""Base of trained drafters: a decoder runs masks, and a path goes through its scores (csrc/drafters/trained.h)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.drafter import Drafter
from fairseq_plugins.decoding.gpu.drafters.path import Path, choose_along, choose_independently
from fairseq_plugins.decoding.gpu.kernels import rows
from fairseq_plugins.decoding.gpu.kernels.arguments import SoftCopy
from fairseq_plugins.decoding.gpu.runner import DecoderStep, Input, Runner
from fairseq_plugins.decoding.gpu.search import Encoded, GreedySearch
from fairseq_plugins.decoding.gpu.vocabulary import choose_best, make_scores, score, tile_of
from fairseq_plugins.decoding.gpu.weights import Linear, Transformer


@dataclass(frozen=True)
class MaskWeights:
    """Mask embedding of a trained drafter: a vector [D], plus a soft copy of the source by attention, if given."""

    vector: Tensor
    copy_attention: Linear | None = None
    positions: Tensor | None = None


class TrainedDrafter(Drafter):
    """Runs the last tokens and masks, and chooses a token for each mask (or token, if attention is causal)."""

    def __init__(self, model: Transformer, path: Path, mask: MaskWeights, width: int) -> None:
        assert model.projection is not None
        self.model, self.path, self.mask, self.widths = model, path, mask, (width,)
        # The GRU's products of the hidden states are further outputs of the projection.
        outputs = model.projection.outputs
        tile = tile_of(model.width)
        self.projection, self.outputs = _with_further(model.projection, path.gru_hidden, tile), outputs
        self.queries = None
        if mask.copy_attention is not None:
            assert mask.positions is not None
            copy = mask.copy_attention
            self.queries = torch.nn.functional.linear(mask.positions, copy.weight, copy.bias)

    def take_memory(self, search: GreedySearch, most: int, encoder: Transformer) -> None:
        """Take memory for steps of `most` rows.

        Args:
            search: the search that the drafter belongs to.
            most: rows of a step.
            encoder: the model whose source embeddings are copied.
        """
        super().allocate(search)
        sizes, model, device = search.sizes, self.model, search.device
        self.search = search
        dtype, count, self.encoder = model.embedding.dtype, len(model.layers), encoder

        def zeros(*shape: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, dtype=of, device=device)

        self.runner = Runner(model, most)
        self.cache = zeros(count, sizes.slots, 2, model.width)
        self.source_cache = zeros(count, sizes.source_slots, 2, model.width)
        self.source_projection = model.source_key_value()
        self.x, self.newest = zeros(most, model.width), zeros(sizes.places, model.width)
        self.slots, self.last_visible = (zeros(most, of=torch.int32) for _ in range(2))
        scored = sizes.places * self.width
        self.scores = make_scores(scored, self.outputs, model.width, 1, device)
        self.path_memory = self.path.memory(sizes.places, scored)
        self.from_hidden = zeros(scored * max(self.path.gates, 1), of=torch.float32)

    def begin(self, batch: Batch, encoded: Encoded) -> None:
        """Write keys and values of the sources."""
        encoded.write_keys(self.source_projection, self.model.width, self.source_cache)

    def run(
        self, batch: Batch, places: int, tokens: int, masks: int, in_block: bool = False, adds: bool = False
    ) -> tuple[DecoderStep, Input]:
        """Launch the decoder on the last tokens of each sentence and masks; return the rows and their states.

        Args:
            batch: the sentences.
            places: how many of them.
            tokens, masks: how many rows of a sentence are its last tokens and masks.
            in_block: whether masks see each other; otherwise attention is causal.
            adds: whether `newest` is added to the inputs.
        """
        model, mask, each = self.model, self.mask, tokens + masks
        count = places * each
        x = self.x[:count]
        slots, last = self.slots[:count], self.last_visible[:count]
        copies = self.queries is not None and mask.positions is not None
        soft_copy = SoftCopy(
            self.queries, self.encoder.embedding, self.encoder.scale, mask.positions, mask.positions.size(0),
            model.width**-0.5,
        ) if self.queries is not None and mask.positions is not None else None  # fmt: skip
        rows.drafted_rows[(count,)](
            batch.arguments, mask.vector, soft_copy, self.newest, slots, last, each, tokens, COPIES=copies,
            ADDS=adds, IN_BLOCK=in_block, num_warps=8, **self.runner.rows_arguments(x),
        )  # fmt: skip
        step = DecoderStep(
            count, each, batch.active[:places], slots, batch.bases, last, batch.source_bases,
            batch.source_ends, parts=batch.parts,
        )  # fmt: skip
        return step, self.runner.run(step, x, self.cache, self.source_cache)

    def choose(self, batch: Batch, places: int, step: DecoderStep, state: Input, skipped: int = 0) -> None:
        """Launch the choice of a token for each row but the first `skipped` of a sentence."""
        width = step.per_sentence - skipped
        count, gates = places * width, self.path.gates
        into = self.scores.of_rows(count)
        further = self.from_hidden[: count * gates].view(count, gates) if gates else None
        goes_along, ids = self.path.after is not None, self.path.ids
        # Transition scores are added before the temperature and noise.
        draws = batch.draws and not goes_along
        scores = self.path_memory.scores if goes_along else self.search.all_scores(into)
        score(
            self.runner, step, state, self.projection, into, batch, draws, further=further, skipped=skipped,
            all_scores=scores, ids=ids,
        )  # fmt: skip
        launch = self.runner.launch
        if draws and batch.keeps:
            of_rows = replace(step, rows=count, per_sentence=width)
            choose_best(self.runner, of_rows, into, batch, draws, all_scores=scores, ids=ids)
        if not goes_along:
            choose_independently(self.path, into, batch, places, width, launch)
        else:
            choose_along(self.path, self.path_memory, further, batch, places, width, launch)


def _with_further(projection: Linear, further: Linear | None, tile: int) -> Linear:
    """Return a projection with further outputs, from a multiple of the tile on."""
    if further is None:
        return projection
    missing = -projection.outputs % tile
    weight = torch.nn.functional.pad(projection.weight, (0, 0, 0, missing))
    zeros = projection.weight.new_zeros(projection.outputs)
    bias = torch.nn.functional.pad(zeros if projection.bias is None else projection.bias, (0, missing))
    further_bias = further.weight.new_zeros(further.outputs) if further.bias is None else further.bias
    return Linear(torch.cat([weight, further.weight]), torch.cat([bias, further_bias]))

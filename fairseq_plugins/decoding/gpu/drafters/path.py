"""Choose a draft's tokens from left to right from the scores of its rows (csrc/path.h)."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.kernels.arguments import PathLayers, PathMemory
from fairseq_plugins.decoding.gpu.kernels.transition import choose_alone, choose_next, draw_next
from fairseq_plugins.decoding.gpu.vocabulary import DRAWN, Scores
from fairseq_plugins.decoding.gpu.weights import Linear

# Tokens of a program that adds transition scores.
_TILE = 256


@dataclass
class Path:
    """The layers that choose a draft's tokens: `ids` [N], left factors `before` [V, R], right factors, and the GRU."""

    ids: Tensor
    before: Tensor | None = None
    after: Linear | None = None
    gru_hidden: Linear | None = None
    gru_token: Linear | None = None
    gru_recurrent: Linear | None = None
    to_rank: Linear | None = None

    def __post_init__(self) -> None:
        self.ids = self.ids.to(torch.int32)

    @property
    def gates(self) -> int:
        """Outputs of the GRU's products, 0 without a GRU."""
        return 0 if self.gru_hidden is None else self.gru_hidden.outputs

    def layers(self) -> PathLayers:
        """Return the layers as kernels read them."""
        assert self.after is not None and self.before is not None
        none = self.before
        token, recurrent = (none if layer is None else layer.weight for layer in (self.gru_token, self.gru_recurrent))
        bias = None if self.gru_recurrent is None else self.gru_recurrent.bias
        return PathLayers(
            self.ids, self.before, self.after.weight, token, recurrent, none if bias is None else bias,
            none if self.to_rank is None else self.to_rank.weight, len(self.ids), self.after.inputs,
            1 if self.to_rank is None else self.to_rank.inputs,
        )  # fmt: skip

    def memory(self, places: int, rows: int) -> PathMemory:
        """Return memory for drafts of `rows` rows in all."""
        outputs, state = len(self.ids), 1 if self.to_rank is None else self.to_rank.inputs
        tiles, device = triton.cdiv(outputs, _TILE), self.ids.device
        rows, totals = (rows, places) if self.after is not None else (0, 0)
        best_places = torch.zeros(2, places, tiles, dtype=torch.int32, device=device)
        best_scores, states, scores, sums = (
            torch.zeros(shape, device=device)
            for shape in ((2, places, tiles), (2, places, state), (rows, outputs), (totals, outputs))
        )
        return PathMemory(best_scores, best_places, states, scores, sums, places, tiles)


def choose_independently(
    path: Path, scores: Scores, batch: Batch, places: int, width: int, launch: dict[str, bool]
) -> None:
    """Launch the choice of the best token of each row, in drafts of `width` rows."""
    best, tokens, tiles = scores.best_scores, scores.best_tokens, scores.tiles
    if batch.keeps:
        best, tokens, tiles = scores.log_prob, scores.token, 1  # already chosen
    choose_alone[(places,)](
        batch.arguments, best, tokens, path.ids, width, tiles, STEPS=triton.next_power_of_2(width),
        TILES=triton.next_power_of_2(tiles), num_warps=4, **launch,
    )  # fmt: skip


def choose_along(
    path: Path,
    memory: PathMemory,
    from_hidden: Tensor | None,
    batch: Batch,
    places: int,
    width: int,
    launch: dict[str, bool],
) -> None:
    """Launch the choice of drafts of `width` tokens one after the other, with transition scores."""
    arguments, layers = batch.arguments, path.layers()
    has_bias = path.gru_recurrent is not None and path.gru_recurrent.bias is not None
    for step in range(width + 1):
        # The last launch only writes a token.
        choose_next[(memory.tiles if step < width else 1, places)](
            arguments, layers, memory, memory.scores if from_hidden is None else from_hidden, width, step,
            HAS_STATE=path.to_rank is not None, HAS_BIAS=has_bias, DRAWS=batch.draws, KEEPS=batch.keeps, OUTPUTS=_TILE,
            TILES=triton.next_power_of_2(memory.tiles), RANK=triton.next_power_of_2(layers.rank),
            STATE=triton.next_power_of_2(layers.state_width), num_warps=8, **launch,
        )  # fmt: skip
        if batch.keeps and step < width:
            draw_next[(places,)](arguments, layers, memory, step, CHUNK=DRAWN, num_warps=8, **launch)

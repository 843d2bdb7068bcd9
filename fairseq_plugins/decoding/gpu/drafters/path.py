"""Choose a draft's tokens from left to right from the scores of its rows (csrc/path.h)."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
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


class PathMemory:
    """What the launches of a path pass on: the best token of each tile, and the state of the GRU.

    Two of each, since a launch may not write what its other programs read.
    """

    def __init__(self, path: Path, places: int, rows: int, device: torch.device) -> None:
        outputs, state = len(path.ids), 1 if path.to_rank is None else path.to_rank.inputs
        self.tiles = triton.cdiv(outputs, _TILE)
        self.best_scores = torch.zeros(2, places, self.tiles, device=device)
        self.best_places = torch.zeros(2, places, self.tiles, dtype=torch.int32, device=device)
        self.states = torch.zeros(2, places, state, device=device)
        self.scores = torch.zeros(rows if path.after is not None else 0, outputs, device=device)
        self.totals: Tensor | None = None

    def all_totals(self) -> Tensor:
        """Return memory [B, N] for the scores of a position, for --sampling-topk and --sampling-topp."""
        if self.totals is None:
            self.totals = self.scores.new_zeros(self.states.size(1), self.scores.size(1))
        return self.totals


def choose_independently(
    path: Path, scores: Scores, batch: Batch, places: int, width: int, launch: dict[str, bool]
) -> None:
    """Launch the choice of the best token of each row, in drafts of `width` rows."""
    best, tokens, tiles = scores.best_scores, scores.best_tokens, scores.tiles
    if batch.keeps:
        best, tokens, tiles = scores.log_prob, scores.token, 1  # already chosen
    choose_alone[(places,)](
        best, tokens, path.ids, batch.lengths, batch.place_limits, batch.draft, batch.num_drafted, batch.active,
        batch.draft.stride(0), width, tiles, STEPS=triton.next_power_of_2(width), TILES=triton.next_power_of_2(tiles),
        num_warps=4, **launch,
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
    assert path.after is not None and path.before is not None
    none = memory.scores
    layers = [None if layer is None else layer.weight for layer in (path.gru_token, path.gru_recurrent)]
    bias = None if path.gru_recurrent is None else path.gru_recurrent.bias
    rank = path.after.inputs
    state = 1 if path.to_rank is None else path.to_rank.inputs
    totals = memory.all_totals() if batch.keeps else none
    for step in range(width + 1):
        # The last launch only writes a token.
        choose_next[(memory.tiles if step < width else 1, places)](
            memory.scores, none if from_hidden is None else from_hidden, path.ids, path.before, path.after.weight,
            *(none if weight is None else weight for weight in (*layers, bias)),
            none if path.to_rank is None else path.to_rank.weight, memory.best_scores, memory.best_places,
            memory.states, totals, batch.noise_keys, batch.penalties, batch.tokens, batch.lengths, batch.place_limits,
            batch.draft, batch.num_drafted, batch.active,
            batch.tokens.stride(0), batch.draft.stride(0), width, len(path.ids), rank, state,
            memory.best_scores.size(1), memory.tiles, step, HAS_STATE=path.to_rank is not None,
            HAS_BIAS=bias is not None, DRAWS=batch.draws, KEEPS=batch.keeps, OUTPUTS=_TILE,
            TILES=triton.next_power_of_2(memory.tiles), RANK=triton.next_power_of_2(rank),
            STATE=triton.next_power_of_2(state), num_warps=8, **launch,
        )  # fmt: skip
        if batch.keeps and step < width:
            draw_next[(places,)](
                totals, path.ids, batch.noise_keys, batch.limits, batch.penalties, batch.lengths, memory.best_places,
                batch.active, len(path.ids), memory.best_scores.size(1), memory.tiles, step, CHUNK=DRAWN,
                num_warps=8, **launch,
            )  # fmt: skip

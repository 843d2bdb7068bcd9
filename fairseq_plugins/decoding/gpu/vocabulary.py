"""Score the vocabulary for the rows of a step, and choose the best token of each row, as launches of kernels."""

from dataclasses import dataclass, replace

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.kernels import scores
from fairseq_plugins.decoding.gpu.runner import DecoderStep, Input, Runner, Tiles, chunks
from fairseq_plugins.decoding.gpu.weights import Linear

DRAWN = 1024  # scores that a program reads at a time for --sampling-topk and --sampling-topp


@dataclass(frozen=True)
class Scores:
    """Scores of the rows of a step, in tiles, and the best token of each row.

    Attributes:
        tile: outputs of a tile; the bits of log-probabilities depend on it.
        outputs: scored tokens.
        best: number of the best tokens kept of each tile.
    """

    tile: int
    outputs: int
    best: int
    best_scores: Tensor  # [rows, tiles, best]
    best_tokens: Tensor
    peaks: Tensor  # [rows, tiles]
    sums: Tensor
    watched: Tensor  # [rows]
    watched_scores: Tensor
    only: Tensor
    row_limits: Tensor
    token: Tensor  # [rows], the best
    log_prob: Tensor
    normalizer: Tensor
    drawn_scores: Tensor  # [rows, tiles]

    @property
    def tiles(self) -> int:
        return self.peaks.size(1)

    def of_rows(self, rows: int) -> "Scores":
        """Return those of the first rows."""
        names = [name for name, value in vars(self).items() if isinstance(value, Tensor)]
        return replace(self, **{name: getattr(self, name)[:rows] for name in names})


def tile_of(width: int) -> int:
    """Return how many outputs of the vocabulary are a tile, for states of this width."""
    return 64 if width <= 512 else 32


def make_scores(rows: int, outputs: int, width: int, best: int, device: torch.device) -> Scores:
    """Return memory for the scores of up to `rows` rows."""
    tile = tile_of(width)
    tiles = triton.cdiv(outputs, tile)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(rows, *shape, dtype=dtype, device=device)

    of_tiles, floats = (tiles,), {"dtype": torch.float32}
    return Scores(
        tile, outputs, best, empty(tiles, best, **floats), empty(tiles, best), empty(*of_tiles, **floats),
        empty(*of_tiles, **floats), empty(), empty(**floats), empty(), empty(), empty(), empty(**floats),
        empty(**floats), empty(*of_tiles, **floats),
    )  # fmt: skip


def score(
    runner: Runner,
    step: DecoderStep,
    state: Input,
    projection: Linear,
    into: Scores,
    batch: Batch,
    draws: bool,
    is_limited: bool = False,
    new_x: Tensor | None = None,
    normal: Tensor | None = None,
    further: Tensor | None = None,
    skipped: int = 0,
    all_scores: Tensor | None = None,
    ids: Tensor | None = None,
) -> None:
    """Score the vocabulary for the rows of a step.

    Args:
        projection: [V (+ further outputs, from a multiple of the tile on), D].
        draws: add noise to the scores of tokens, divided by the temperature.
        is_limited: apply the limits and penalties of the batch; otherwise all tokens are scored alike.
        new_x, normal: [rows, D], for the last state, before and after the last norm.
        further: [rows, F], for the products of the further outputs.
        skipped: first rows of each sentence, which are not scored; `into` and `further` have no rows for these.
        all_scores: [rows, V], for the scores of all tokens instead of the best ones.
        ids: [V], the tokens that are scored; None for all of the vocabulary.
    """
    given, constants = state.arguments()
    none, rows = state.x, step.rows
    scored = rows // step.per_sentence * (step.per_sentence - skipped)
    tiles = Tiles.of(scored, runner.model.width, runner.dtype)
    count = 0 if further is None else further.size(1)
    new_x = runner.memory.free(rows, state.x, *([] if normal is None else [normal])) if new_x is None else new_x
    grid = (into.tiles + triton.cdiv(count, into.tile), triton.cdiv(scored, tiles.rows))
    scores.vocabulary[grid](
        *given, new_x, new_x.stride(0), none if normal is None else normal, projection.weight,
        none if projection.bias is None else projection.bias, batch.limits, batch.penalties, into.row_limits,
        into.watched, into.watched_scores, into.best_scores, into.best_tokens, into.peaks, into.sums,
        none if further is None else further, none if all_scores is None else all_scores, into.drawn_scores,
        batch.noise_keys, batch.lengths, into.only if ids is None else ids, step.active, rows, step.per_sentence,
        skipped, into.outputs, count, runner.model.width, HAS_BIAS=projection.bias is not None,
        KEEP=normal is not None, LIMITED=is_limited, BEST=into.best, FURTHER=further is not None,
        STORES=all_scores is not None, DRAWS=draws,
        HAS_IDS=ids is not None, ROWS=tiles.rows, OUTPUTS=into.tile, num_warps=8, **constants,
        **chunks(runner.model.width, runner.dtype), **runner.launch,
    )  # fmt: skip


def choose_best(
    runner: Runner,
    step: DecoderStep,
    into: Scores,
    batch: Batch,
    draws: bool,
    is_limited: bool = False,
    all_scores: Tensor | None = None,
    ids: Tensor | None = None,
) -> None:
    """Reduce the scored tiles to the best token of each row; `all_scores` where some tokens only are kept."""
    keeps = draws and batch.keeps
    scores.best_tokens[(step.rows,)](
        into.best_scores, into.best_tokens, into.peaks, into.sums, into.watched_scores, into.only, into.token,
        into.log_prob, into.normalizer, into.drawn_scores, into.peaks if all_scores is None else all_scores,
        batch.noise_keys, batch.lengths,
        into.only if ids is None else ids, batch.limits, batch.penalties, step.active, step.per_sentence, into.outputs,
        into.tiles, BEST=into.best, LIMITED=is_limited, DRAWS=draws, KEEPS=keeps, HAS_IDS=ids is not None, CHUNK=DRAWN,
        TILES=triton.next_power_of_2(into.tiles), num_warps=8 if keeps else 4, **runner.launch,
    )  # fmt: skip

"""Score the vocabulary for the rows of a step, and choose the best token of each row, as launches of kernels."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from fairseq_plugins.decoding.gpu.batch import Batch
from fairseq_plugins.decoding.gpu.kernels import scores
from fairseq_plugins.decoding.gpu.runner import DecoderStep, Input, Runner, Tiles, chunks
from fairseq_plugins.decoding.gpu.weights import Linear

DRAWN = 1024  # scores that a program reads at a time for --sampling-topk and --sampling-topp


class Scores(NamedTuple):
    """Scores of the rows of a step, in tiles, and the best token of each row; an argument of kernels."""

    best_scores: Tensor  # [rows, tiles, best], of the best allowed tokens of a tile, the best first
    best_tokens: Tensor
    peaks: Tensor  # [rows, tiles], the highest score
    sums: Tensor  # [rows, tiles], of exp(score - peak)
    watched: Tensor  # [rows], a token whose score is wanted, -1 for none
    watched_scores: Tensor  # [rows]
    only: Tensor  # [rows], the only allowed token, -1 where several are
    row_limits: Tensor  # [rows], bits: constants.py
    token: Tensor  # [rows], the best
    log_prob: Tensor  # [rows], of the best token
    normalizer: Tensor  # [rows], the logarithm of the sum of exponentials
    drawn_scores: Tensor  # [rows, tiles], of the best token of a tile, without its noise
    outputs: int  # scored tokens
    tiles: int
    tile: int  # outputs of a tile; the bits of log-probabilities depend on it
    best: int  # number of the best tokens kept of each tile

    def of_rows(self, rows: int) -> "Scores":
        """Return those of the first rows."""
        kept: Any = {name: value[:rows] for name, value in self._asdict().items() if isinstance(value, Tensor)}
        return self._replace(**kept)


def tile_of(width: int) -> int:
    """Return how many outputs of the vocabulary are a tile, for states of this width."""
    return 64 if width <= 512 else 32


def make_scores(rows: int, outputs: int, width: int, best: int, device: torch.device) -> Scores:
    """Return memory for the scores of up to `rows` rows."""
    tile = tile_of(width)
    tiles = triton.cdiv(outputs, tile)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(rows, *shape, dtype=dtype, device=device)

    floats = {"dtype": torch.float32}
    return Scores(
        empty(tiles, best, **floats), empty(tiles, best), empty(tiles, **floats), empty(tiles, **floats), empty(),
        empty(**floats), empty(), empty(), empty(), empty(**floats), empty(**floats), empty(tiles, **floats), outputs,
        tiles, tile, best,
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
    none, rows = state.x, step.rows
    scored = rows // step.per_sentence * (step.per_sentence - skipped)
    tiles = Tiles.of(scored, runner.model.width, runner.dtype)
    count = 0 if further is None else further.size(1)
    new_x = runner.memory.free(rows, state.x, *([] if normal is None else [normal])) if new_x is None else new_x
    given, constants = state.arguments(new_x, normal)
    grid = (into.tiles + triton.cdiv(count, into.tile), triton.cdiv(scored, tiles.rows))
    scores.vocabulary[grid](
        batch.arguments, into, given, projection.weight, none if projection.bias is None else projection.bias,
        none if further is None else further, none if all_scores is None else all_scores,
        into.only if ids is None else ids, step.active, rows, step.per_sentence, skipped, count, runner.model.width,
        HAS_BIAS=projection.bias is not None,
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
        batch.arguments, into, into.peaks if all_scores is None else all_scores, into.only if ids is None else ids,
        step.active, step.per_sentence, BEST=into.best, LIMITED=is_limited, DRAWS=draws, KEEPS=keeps,
        HAS_IDS=ids is not None, CHUNK=DRAWN,
        TILES=triton.next_power_of_2(into.tiles), num_warps=8 if keeps else 4, **runner.launch,
    )  # fmt: skip

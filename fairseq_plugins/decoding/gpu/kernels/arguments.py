"""Arguments of several kernels: named tuples, whose tensors kernels read by the same names.

B is the number of places; the rows of a tensor are one after the other, `..._stride` numbers apart where that is not
the last dimension of its description.
"""

from typing import NamedTuple

from torch import Tensor


class Places(NamedTuple):
    """What is known of the sentences at all places: see `Batch`, of which these are the tensors."""

    tokens: Tensor  # [B, columns], the first token and then the output; in beam search of each hypothesis
    columns: int
    log_probs: Tensor  # [B, columns], of the tokens
    lengths: Tensor  # [B], of the outputs
    active: Tensor  # [B], 0 for an idle place, else how many rows of its sentence are needed
    emitted: Tensor  # [B], tokens of the last iteration
    last_row: Tensor  # [B], the row that predicted the last emitted token
    draft: Tensor  # [B, draft_stride]
    draft_stride: int
    num_drafted: Tensor  # [B]
    status: Tensor  # [B, STATUS]
    source: Tensor  # [B, source_stride], the tokens of each sentence
    source_stride: int
    source_lengths: Tensor  # [B]
    source_ends: Tensor  # [B], the last slot of a source, counted from its base
    bases: Tensor  # [B], first slots of the outputs
    source_bases: Tensor  # [B], first slots of the sources' keys and values
    limits: Tensor  # of all sentences: constants.py
    penalties: Tensor
    place_limits: Tensor  # [B, TOKENS]
    noise_keys: Tensor  # [B, 4]
    prefix: Tensor  # [B, prefix_stride], forced first tokens
    prefix_stride: int


class Embedding(NamedTuple):
    """What embeds the rows of a step, and where to."""

    weight: Tensor  # [V, width]
    table: Tensor  # [table_size, width], positions, where HAS_TABLE
    norm_weight: Tensor  # [width], where HAS_NORM
    norm_bias: Tensor
    x: Tensor  # [rows, width], written
    width: int
    x_stride: int
    table_size: int
    scale: float


class SoftCopy(NamedTuple):
    """The soft copy of a source that a mask embedding adds."""

    queries: Tensor  # [P, D], of each position
    embedding: Tensor  # [V, D], of source tokens
    embedding_scale: float
    table: Tensor  # [table_size, D], positions
    table_size: int
    scale: float


class ProductInput(NamedTuple):
    """The input of a product: what is still to be added, and where the new residual goes."""

    x: Tensor  # [rows, inputs]
    stride: int
    parts: Tensor  # [NPARTS, rows, width], fp32
    before: Tensor  # [width], bias of the parts
    norm_weight: Tensor
    norm_bias: Tensor
    new_x: Tensor  # [rows, width], the new residual
    new_stride: int
    normal: Tensor  # [rows, width], the normalised input, where KEEP


class PathLayers(NamedTuple):
    """The layers that choose a draft's tokens with transition scores."""

    ids: Tensor  # [outputs], the tokens that the drafter scores
    before: Tensor  # [V, rank]
    after: Tensor  # [outputs, rank]
    gru_token: Tensor  # [3 * state_width, rank]
    gru_recurrent: Tensor  # [3 * state_width, state_width]
    recurrent_bias: Tensor  # [3 * state_width]
    to_rank: Tensor  # [rank, state_width]
    outputs: int
    rank: int
    state_width: int


class PathMemory(NamedTuple):
    """What the launches of a path pass on. Two of some, since a launch may not write what its other programs read."""

    best_scores: Tensor  # [2, places, tiles], of positions with even and odd numbers
    best_places: Tensor  # [2, places, tiles], among the ids
    states: Tensor  # [2, places, state_width], of the GRU
    scores: Tensor  # [rows, outputs], of the tokens alone
    totals: Tensor  # [places, outputs], those of a position, where KEEPS
    places: int
    tiles: int

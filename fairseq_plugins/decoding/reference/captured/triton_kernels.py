"""Batch-invariant linear layers and attention (see fixed_shapes.py) in one launch each, with Triton.

A row's result is the same to the last bit in every batch: sums run over tiles of one size in one order, and no sum is
split. Both kernels follow Triton's tutorials (matrix multiplication, fused attention).
"""

import triton
import triton.language as tl
from torch import Tensor

# Tile sizes. They must not depend on the number of rows or slots, because other sizes change the last bits.
_ROWS = 16
_OUTPUTS = 32
_INPUTS = 64
_SLOTS = 32


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x,
    weight,
    bias,
    result,
    rows,
    outputs,
    inputs,
    weight_stride,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = row[:, None] < rows, output[None, :] < outputs
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    for start in range(0, inputs, INPUTS):
        column = start + tl.arange(0, INPUTS)
        x_tile = tl.load(
            x + row[:, None] * inputs + column[None, :], mask=is_row & (column[None, :] < inputs), other=0.0
        )
        weight_tile = tl.load(
            weight + output[None, :] * weight_stride + column[:, None],
            mask=is_output & (column[:, None] < inputs),
            other=0.0,
        )
        total = tl.dot(x_tile, weight_tile, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(result + row[:, None] * outputs + output[None, :], total.to(result.dtype.element_ty), is_row & is_output)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer to x [..., I].

    Args:
        x: inputs of the rows.
        weight: [O, I].
        bias: [O], or None.

    Returns:
        [..., O].
    """
    x = x.contiguous()
    outputs, inputs = weight.shape
    assert weight.stride(1) == 1
    result = x.new_empty(*x.shape[:-1], outputs)
    rows = x.numel() // inputs
    if rows:
        grid = (triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, _ROWS))
        _linear[grid](
            x,
            weight,
            weight if bias is None else bias,
            result,
            rows,
            outputs,
            inputs,
            weight.stride(0),
            HAS_BIAS=bias is not None,
            ROWS=_ROWS,
            OUTPUTS=_OUTPUTS,
            INPUTS=_INPUTS,
        )
    return result


@triton.jit(do_not_specialize=["rows", "slots", "query_batch", "key_batch", "last_batch"])
def _attention(
    query,
    key_value,
    last_visible,
    result,
    rows,
    slots,
    heads,
    scale,
    query_batch,
    query_row,
    query_head,
    key_batch,
    key_slot,
    key_kind,
    key_head,
    last_batch,
    last_row,
    head_width,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    sentence, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    row, dim = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    is_row, is_dim = row < rows, dim < head_width
    last = tl.load(last_visible + sentence * last_batch + row * last_row, mask=is_row, other=0)
    last = tl.maximum(last, 0)
    batch = sentence.to(tl.int64)  # offsets into a large cache do not fit 32 bits
    query_at = query + batch * query_batch + head * query_head + row[:, None] * query_row + dim[None, :]
    queries = tl.load(query_at, mask=is_row[:, None] & is_dim[None, :], other=0.0)
    keys = key_value + batch * key_batch + head * key_head
    running_max = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    attended = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    # Stops after the last tile with a visible slot: further tiles would add nothing.
    for start in range(0, tl.minimum(slots, tl.max(last) + 1), SLOTS):
        slot = start + tl.arange(0, SLOTS)
        is_valid = (slot < slots)[:, None] & is_dim[None, :]
        key_at = keys + slot[:, None] * key_slot + dim[None, :]
        key = tl.load(key_at, mask=is_valid, other=0.0)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(slot[None, :] <= last[:, None], scores, float("-inf"))
        # Finite from the first tile on, because every row sees slot 0.
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        weights, factor = tl.exp(scores - new_max[:, None]), tl.exp(running_max - new_max)
        value = tl.load(key_at + key_kind, mask=is_valid, other=0.0)
        total = total * factor + tl.sum(weights, 1)
        attended = tl.dot(weights.to(value.dtype), value, attended * factor[:, None], input_precision="ieee")
        running_max = new_max
    result_at = result + (batch * rows + row[:, None]) * heads * head_width + head * head_width + dim[None, :]
    values = (attended / total[:, None]).to(result.dtype.element_ty)
    tl.store(result_at, values, is_row[:, None] & is_dim[None, :])


def attention(query: Tensor, key_value: Tensor, last_visible: Tensor) -> Tensor:
    """Compute the attention of T rows for each of B sentences.

    Args:
        query: [B, T, H, W].
        key_value: [B, S, 2, H, W].
        last_visible: [B, T], the last slot that each row reads, below S; negative numbers count as 0.

    Returns:
        [B, T, H * W].
    """
    batch, rows, heads, width = query.shape
    assert query.stride(3) == key_value.stride(4) == 1
    result = query.new_empty(batch, rows, heads * width)
    if result.numel():
        _attention[(triton.cdiv(rows, _ROWS), batch * heads)](
            query,
            key_value,
            last_visible,
            result,
            rows,
            key_value.size(1),
            heads,
            width**-0.5,
            *query.stride()[:3],
            *key_value.stride()[:4],
            *last_visible.stride(),
            width,
            ROWS=_ROWS,
            SLOTS=_SLOTS,
            WIDTH=max(16, triton.next_power_of_2(width)),
        )
    return result

"""What `fixed_shapes` computes, each in one launch, with Triton.

A row's result is the same to the last bit whatever the batch: its sums run over tiles of one size, in one order, and
no sum is split. Both kernels follow the tutorials of Triton (matrix multiplication, fused attention).
"""

import triton
import triton.language as tl
from torch import Tensor

# Tiles. Other sizes change bits, so none of them may depend on how many rows or slots there are.
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
        place = start + tl.arange(0, INPUTS)
        left = tl.load(x + row[:, None] * inputs + place[None, :], mask=is_row & (place[None, :] < inputs), other=0.0)
        right = tl.load(
            weight + output[None, :] * weight_stride + place[:, None],
            mask=is_output & (place[:, None] < inputs),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[None, :]
    tl.store(result + row[:, None] * outputs + output[None, :], total.to(result.dtype.element_ty), is_row & is_output)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Apply a linear layer to x [..., I].

    Args:
        x: rows.
        weight: [O, I].
        bias: [O], None for none.

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
    row, place = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    is_row, is_place = row < rows, place < head_width
    last = tl.load(last_visible + sentence * last_batch + row * last_row, mask=is_row, other=0)
    last = tl.maximum(last, 0)
    here = sentence.to(tl.int64)
    of_row = query + here * query_batch + head * query_head + row[:, None] * query_row + place[None, :]
    queries = tl.load(of_row, mask=is_row[:, None] & is_place[None, :], other=0.0)
    keys = key_value + here * key_batch + head * key_head
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    attended = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    # Tiles of slots that are hidden from all rows would add nothing.
    for start in range(0, tl.minimum(slots, tl.max(last) + 1), SLOTS):
        slot = start + tl.arange(0, SLOTS)
        is_there = (slot < slots)[:, None] & is_place[None, :]
        of_slot = keys + slot[:, None] * key_slot + place[None, :]
        key = tl.load(of_slot, mask=is_there, other=0.0)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(slot[None, :] <= last[:, None], scores, float("-inf"))
        # The first tile has a visible slot for each row, so that this is a number.
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights, factor = tl.exp(scores - higher[:, None]), tl.exp(highest - higher)
        value = tl.load(of_slot + key_kind, mask=is_there, other=0.0)
        total = total * factor + tl.sum(weights, 1)
        attended = tl.dot(weights.to(value.dtype), value, attended * factor[:, None], input_precision="ieee")
        highest = higher
    of_result = result + (here * rows + row[:, None]) * heads * head_width + head * head_width + place[None, :]
    values = (attended / total[:, None]).to(result.dtype.element_ty)
    tl.store(of_result, values, is_row[:, None] & is_place[None, :])


def attention(query: Tensor, key_value: Tensor, last_visible: Tensor) -> Tensor:
    """Attention of T rows of each of B sentences.

    Args:
        query: [B, T, H, W].
        key_value: [B, S, 2, H, W].
        last_visible: [B, T], below S, each row reads the slots 0 .. `last_visible`; below 0 counts as 0.

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

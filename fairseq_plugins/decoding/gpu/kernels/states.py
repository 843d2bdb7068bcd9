"""The Triton kernel that turns states of the verifier into keys and values of a drafter."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.arguments import ProductInput
from fairseq_plugins.decoding.gpu.kernels.layers import is_live, product, wait


@triton.jit(do_not_specialize=["rows", "per_sentence"])
def write_states(
    batch,  # `Places`
    read,  # [rows, (L + 1) * D], contexts of the layers, and what is added to the input of the next draft
    norm_weight,  # [L, D]
    norm_bias,
    weight,  # [L * 2 * D, D]
    bias,  # [L * 2 * D]
    cache,  # [L, slots, 2, D]
    slots,  # [rows]; -1 for none
    newest,  # [B, D]
    active,
    rows,
    per_sentence,
    width,
    read_stride,
    layer_stride,
    eps: tl.constexpr,
    INPUT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid: (tiles of outputs, tiles of rows, layers)."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    layer = tl.program_id(2)
    if not is_live(active, row, rows, per_sentence):
        wait(PDL)
        return
    outputs = 2 * width
    offset = tl.zeros((OUTPUTS,), dtype=tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + layer * outputs + output, mask=output < outputs, other=0.0).to(tl.float32)
    given = ProductInput(
        read + layer * width, read_stride, read, read, norm_weight + layer * width, norm_bias + layer * width, read, 0,
        read,
    )  # fmt: skip
    total = product(
        given, weight + layer * outputs * width, row, output, rows, outputs, width, 0, width, False, eps, INPUT, 0,
        False, False, ROWS, OUTPUTS, CHUNK, CHUNKS, EVEN, PDL,
    )  # fmt: skip
    total += offset[None, :]
    slot = tl.load(slots + row, mask=row < rows, other=-1)[:, None].to(tl.int64)
    to = cache + layer.to(tl.int64) * layer_stride + slot * outputs + output[None, :]
    tl.store(to, total.to(cache.dtype.element_ty), (slot >= 0) & (output[None, :] < outputs))
    if (tl.program_id(0) == 0) & (layer == 0):
        sentence = row // per_sentence
        is_last = (row < rows) & (row % per_sentence + 1 == tl.load(batch.emitted + sentence, mask=row < rows, other=0))
        column = tl.arange(0, WIDTH)
        ok = is_last[:, None] & (column[None, :] < width)
        from_end = read + row[:, None] * read_stride + (read_stride - width + column)[None, :]
        tl.store(newest + sentence[:, None] * width + column[None, :], tl.load(from_end, mask=ok), ok)

"""The Triton kernels of Transformer layers: a decoder layer is five launches, an encoder layer four.

A product begins with what its input still needs: the sum of the partial results of the layer before, bias, residual and
normalisation. Attention (attention.py) ends with partial results of its output projection. These are added in a fixed
order by the next kernel, so the bits of a row depend on nothing but the row.

Weights, norms and biases are loaded before `gdc_wait` (programmatic dependent launch): they travel while the kernel
before still runs. What a kernel may read before it waits: constants, and what was written two launches earlier, since
the kernel before has waited for that. So every program waits, even one that has nothing to do. What is no constant is
loaded with ".cg", past the first-level cache: it may hold what was there earlier, and only the wait clears it for sure.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from fairseq_plugins.decoding.gpu.kernels.constants import (
    GELU,
    PARTS,
    PLAIN,
    POST_NORM,
    PRE_NORM,
    QUERY_KEY_VALUE,
    RELU,
    SILU,
    STORE,
    SUM,
)


@triton.jit
def wait(PDL: tl.constexpr):
    """Wait for the kernels before, and let the next one begin to load its weights."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def before_overwriting():
    """Let all warps of a program read what it is going to overwrite: they are not in step."""
    tl.debug_barrier()


@triton.jit
def best_of(values, axis: tl.constexpr, count):
    """Return the highest value along an axis, the first of equal ones, and its index, which is below `count`.

    Among values that are not numbers, a GPU finds any index, also one of the padding.
    """
    best, index = tl.max(values, axis, return_indices=True, return_indices_tie_break_left=True)
    return best, tl.minimum(index, count - 1)


@triton.jit
def is_live(active, row, rows, per_sentence):
    """Return whether one of these rows is needed: `active` has the number of the first rows that are, by sentence."""
    needed = tl.load(active + row // per_sentence, mask=row < rows, other=0, cache_modifier=".cg")
    return tl.max((row % per_sentence < needed).to(tl.int32), 0) > 0


@triton.jit
def _residual(given, row, column, ok, rows, width, NPARTS: tl.constexpr, HAS_BEFORE: tl.constexpr):
    """Return x plus the partial results and the bias that belongs to these, in fp32."""
    sum = tl.load(given.x + row[:, None] * given.stride + column[None, :], mask=ok, other=0.0).to(tl.float32)
    # Four parts at a time are in flight: more would not fit the registers.
    for first in tl.range(0, NPARTS - NPARTS % 4, 4):
        for part in tl.static_range(4):
            at = given.parts + ((first + part) * rows + row[:, None]) * width + column[None, :]
            sum += tl.load(at, mask=ok, other=0.0)
    for part in tl.static_range(NPARTS - NPARTS % 4, NPARTS):
        sum += tl.load(given.parts + (part * rows + row[:, None]) * width + column[None, :], mask=ok, other=0.0)
    if HAS_BEFORE:
        sum += tl.load(given.before + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    return sum


@triton.jit
def product(
    given,  # `ProductInput`
    weight,  # [outputs, inputs]
    row,
    output,
    rows,
    outputs,
    inputs,
    first_input,
    last_input,
    stores,  # whether this program stores the new residual
    eps: tl.constexpr,
    INPUT: tl.constexpr,
    NPARTS: tl.constexpr,
    HAS_BEFORE: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Return the product [ROWS, OUTPUTS] in fp32; only PLAIN reads other inputs than the whole width."""
    is_row, is_output = row[:, None] < rows, output[None, :] < outputs
    column = first_input + tl.arange(0, CHUNK)
    element = output[None, :] * inputs
    if CHUNKS == 1:
        is_weight = is_output if EVEN else is_output & (column[:, None] < last_input)
        whole = tl.load(weight + element + column[:, None], mask=is_weight, other=0.0)
        is_column = column < last_input
        if INPUT == POST_NORM or INPUT == PRE_NORM:
            scale = tl.load(given.norm_weight + column, mask=is_column, other=0.0)
            shift = tl.load(given.norm_bias + column, mask=is_column, other=0.0)
    wait(PDL)
    dtype = given.x.dtype.element_ty
    total = tl.zeros((ROWS, OUTPUTS), dtype=tl.float32)
    if INPUT == PLAIN:
        for chunk in tl.static_range(CHUNKS):
            at = column + chunk * CHUNK
            ok = is_row & (at[None, :] < last_input)
            values = tl.load(given.x + row[:, None] * given.stride + at[None, :], mask=ok, other=0.0)
            if CHUNKS == 1:
                total = tl.dot(values, whole, total, input_precision="ieee")
            else:
                tile = tl.load(weight + element + at[:, None], mask=is_output & (at[:, None] < last_input), other=0.0)
                total = tl.dot(values, tile, total, input_precision="ieee")
    else:
        mean = tl.zeros((ROWS,), dtype=tl.float32)
        for chunk in tl.static_range(CHUNKS):
            at = column + chunk * CHUNK
            ok = is_row & (at[None, :] < inputs)
            sum = _residual(given, row, at, ok, rows, inputs, NPARTS, HAS_BEFORE)
            mean += tl.sum(sum, 1)
        mean = mean / inputs
        variance = tl.zeros((ROWS,), dtype=tl.float32)
        if INPUT != SUM:
            for chunk in tl.static_range(CHUNKS):
                at = column + chunk * CHUNK
                ok = is_row & (at[None, :] < inputs)
                if CHUNKS > 1:
                    sum = _residual(given, row, at, ok, rows, inputs, NPARTS, HAS_BEFORE)
                centred = tl.where(at[None, :] < inputs, sum - mean[:, None], 0.0)
                variance += tl.sum(centred * centred, 1)
        factor = tl.rsqrt(variance / inputs + eps)
        for chunk in tl.static_range(CHUNKS):
            at = column + chunk * CHUNK
            ok = is_row & (at[None, :] < inputs)
            if CHUNKS > 1:
                sum = _residual(given, row, at, ok, rows, inputs, NPARTS, HAS_BEFORE)
                if INPUT != SUM:
                    scale = tl.load(given.norm_weight + at, mask=at < inputs, other=0.0)
                    shift = tl.load(given.norm_bias + at, mask=at < inputs, other=0.0)
            if INPUT == SUM:
                values = sum
            else:
                values = (sum - mean[:, None]) * factor[:, None] * scale[None, :].to(tl.float32)
                values += shift[None, :].to(tl.float32)
            to = given.new_x + row[:, None] * given.new_stride + at[None, :]
            if stores:
                if INPUT == POST_NORM:
                    tl.store(to, values.to(dtype), ok)
                else:
                    tl.store(to, sum.to(dtype), ok)
                if KEEP:
                    tl.store(given.normal + row[:, None] * inputs + at[None, :], values.to(dtype), ok)
            if CHUNKS == 1:
                total = tl.dot(values.to(dtype), whole, total, input_precision="ieee")
            else:
                tile = tl.load(weight + element + at[:, None], mask=is_output & (at[:, None] < inputs), other=0.0)
                total = tl.dot(values.to(dtype), tile, total, input_precision="ieee")
    return total


@triton.jit
def activate(values, ACTIVATION: tl.constexpr):
    """Apply an activation function."""
    if ACTIVATION == RELU:
        values = tl.maximum(values, 0.0)
    elif ACTIVATION == GELU:
        values = 0.5 * values * (1.0 + tl.erf(values * 0.7071067811865476))
    elif ACTIVATION == SILU:
        values = values * tl.sigmoid(values)
    return values


@triton.jit(do_not_specialize=["rows", "per_sentence"])
def linear(
    given,  # `ProductInput`
    weight,
    bias,
    out,
    residual,  # [any, residual_width], added to each `residual_width` outputs of STORE, where ADDS
    row_map,  # [sentences], the row of `given` (READS) or of `residual` (ADDS) that is read for each row of `out`
    cache,  # QUERY_KEY_VALUE: keys and values of a layer [slots, 2, width]; SOURCE_KEY_VALUE: of all layers
    slots,  # [rows], the slot of each row
    active,  # [rows / per_sentence], how many rows are needed: see `is_live`
    rows,
    per_sentence,
    outputs,
    inputs,
    residual_width,
    layer_stride,  # SOURCE_KEY_VALUE: numbers of a layer in `cache`
    eps: tl.constexpr,
    INPUT: tl.constexpr,
    OUTPUT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    NPARTS: tl.constexpr,
    HAS_BEFORE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    KEEP: tl.constexpr,
    READS: tl.constexpr,
    ADDS: tl.constexpr,
    MAPS: tl.constexpr,  # whether `residual` is read through `row_map`
    WIDTH: tl.constexpr,  # of a key, where there are keys
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Apply a linear layer. Grid: (tiles of outputs, tiles of rows, parts of the inputs)."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    part = tl.program_id(2)
    to_row = row
    if READS:
        # The kernel before writes the map.
        wait(PDL)
        row = tl.load(row_map + row, mask=row < rows // per_sentence, other=rows)
    if not is_live(active, row, rows, per_sentence):
        wait(PDL)
        return
    offset = tl.zeros((OUTPUTS,), dtype=tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)
    first = 0
    last = inputs
    if OUTPUT == PARTS:
        first = part * CHUNK * CHUNKS
        last = tl.minimum(first + CHUNK * CHUNKS, inputs)
    total = product(
        given, weight, row, output, rows, outputs, inputs, first, last, tl.program_id(0) == 0, eps, INPUT, NPARTS,
        HAS_BEFORE, KEEP, ROWS, OUTPUTS, CHUNK, CHUNKS, EVEN, PDL,
    )  # fmt: skip
    is_row, is_output = row[:, None] < rows, output[None, :] < outputs
    ok = is_row & is_output
    if OUTPUT == PARTS:
        tl.store(out + (part * rows + row[:, None]) * outputs + output[None, :], total, ok)
        return
    total = activate(total + offset[None, :], ACTIVATION)
    if OUTPUT == STORE:
        if ADDS:
            of_row = row
            if MAPS:
                of_row = tl.load(row_map + row, mask=row < rows, other=0)
            at = of_row[:, None] * residual_width + (output % residual_width)[None, :]
            total += tl.load(residual + at, mask=ok, other=0.0).to(tl.float32)
        tl.store(out + to_row[:, None] * outputs + output[None, :], total.to(out.dtype.element_ty), ok)
    elif OUTPUT == QUERY_KEY_VALUE:
        slot = tl.load(slots + row, mask=row < rows, other=-1)[:, None].to(tl.int64)
        is_query = output[None, :] < WIDTH
        tl.store(out + row[:, None] * WIDTH + output[None, :], total.to(out.dtype.element_ty), ok & is_query)
        to = cache + slot * (2 * WIDTH) + (output - WIDTH)[None, :]
        tl.store(to, total.to(cache.dtype.element_ty), ok & ~is_query & (slot >= 0))
    else:
        slot = tl.load(slots + row, mask=row < rows, other=-1)[:, None].to(tl.int64)
        layer = (output // (2 * WIDTH)).to(tl.int64)
        to = cache + (layer * layer_stride + output % (2 * WIDTH))[None, :] + slot * (2 * WIDTH)
        tl.store(to, total.to(cache.dtype.element_ty), ok & (slot >= 0))

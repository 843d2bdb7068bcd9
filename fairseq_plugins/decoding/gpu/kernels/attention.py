"""The Triton kernels of attention, each head of a sentence by itself, with its part of the output projection.

Long sources and outputs are split into parts of a fixed length. These are programs of their own, and another launch
joins them in a fixed order. A row that sees one part only has the same bits either way.
"""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.layers import product, wait

# Most numbers of an output projection's tile that is loaded before the wait: more take too many registers, and too much
# shared memory beside the weights of a query.
EARLY = tl.constexpr(8192)


@triton.jit(do_not_specialize=["rows", "per_sentence"])
def attend(
    given,  # `ProductInput` of the query, where CROSS
    query_weight,
    query_bias,
    query,  # [rows, D]
    cache,  # keys and values [slots, 2, D]
    bases,  # [B], the first slot of each sentence
    last_visible,  # [rows], or [B] in cross-attention: the last slot that a row reads, counted from its base
    ancestors,  # [B, 2, BEAM, columns], where BEAM: which hypothesis wrote an earlier position
    columns,
    out_weight,  # [D, D]
    out,  # fp32: [heads, rows, D], of the output projection; where PART, [parts, rows, D], contexts
    peaks,  # where PART: [parts, heads, rows, 2], fp32, the highest score, and the sum of exp(score - highest)
    active,
    rows,
    per_sentence,
    width,
    head_width,
    scale,
    eps: tl.constexpr,
    CROSS: tl.constexpr,
    INPUT: tl.constexpr,
    NPARTS: tl.constexpr,
    HAS_BEFORE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SLOTS: tl.constexpr,
    BEAM: tl.constexpr,  # hypotheses of a sentence: a position has a slot of each; 0 without beam search
    PART: tl.constexpr,  # slots of a part; 0 for all of them and the output projection
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    EVEN: tl.constexpr,
    PDL: tl.constexpr,
):
    """Attention of one head of one sentence; CROSS first projects the query.

    Grid: (sentences * tiles of their rows, heads, tiles of outputs; where PART, parts).
    """
    sentence, row, is_row, offset = _rows_of(rows, per_sentence, ROWS)
    head = tl.program_id(1)
    first = 0
    is_first = tl.program_id(2) == 0
    if PART > 0:
        first = tl.program_id(2) * PART
    dim = tl.arange(0, HEAD)
    is_dim = dim < head_width
    is_idle = tl.load(active + sentence, cache_modifier=".cg") <= tl.min(offset)
    if CROSS:
        last = tl.load(last_visible + sentence, cache_modifier=".cg").to(tl.int32)
        is_idle = is_idle | (first > last)
    if is_idle:
        wait(PDL)
        return
    output = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_out = (output[None, :] < width) & is_dim[:, None]
    from_out = out_weight + output[None, :] * width + (head * head_width + dim)[:, None]
    if PART == 0:
        if HEAD * OUTPUTS <= EARLY:
            out_tile = tl.load(from_out, mask=is_out, other=0.0)
    if CROSS:
        number = tl.where(is_dim, head * head_width + dim, width)
        shift = tl.zeros((HEAD,), dtype=tl.float32)
        if HAS_BIAS:
            shift = tl.load(query_bias + number, mask=is_dim, other=0.0).to(tl.float32)
        projected = product(
            given, query_weight, row, number, rows, width, width, 0, width, (head == 0) & is_first, eps, INPUT, NPARTS,
            HAS_BEFORE, False, ROWS, HEAD, CHUNK, CHUNKS, EVEN, PDL,
        )  # fmt: skip
        queries = (projected + shift[None, :]).to(given.x.dtype.element_ty)
        last = tl.zeros((ROWS,), tl.int32) + last
    else:
        wait(PDL)
        is_query = is_row[:, None] & is_dim[None, :]
        from_query = query + row[:, None] * width + (head * head_width + dim)[None, :]
        queries = tl.load(from_query, mask=is_query, other=0.0)
        last = tl.load(last_visible + row, mask=is_row, other=0).to(tl.int32)
        if PART > 0:
            if first >= (tl.max(last) + 1) * (BEAM if BEAM > 0 else 1):
                return
    end = tl.max(last) + 1
    # Offsets into a large cache do not fit 32 bits.
    keys = cache + tl.load(bases + sentence).to(tl.int64) * (2 * width) + head * head_width
    highest = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    attended = tl.zeros((ROWS, HEAD), dtype=tl.float32)
    if BEAM > 0:
        # Of the two tables, the one for this length (hypotheses.py).
        own = tl.minimum(offset, BEAM - 1)[:, None]
        written = ancestors + ((sentence * 2 + (end + 1) % 2) * BEAM + own).to(tl.int64) * columns
        end *= BEAM
    if PART > 0:
        end = tl.minimum(end, first + PART)
    for start in range(0, end - first, SLOTS):
        slot = first + start + tl.arange(0, SLOTS)
        ok = (slot < end)[:, None] & is_dim[None, :]
        at = keys + slot[:, None] * (2 * width) + dim[None, :]
        key = tl.load(at, mask=ok, other=0.0)
        value = tl.load(at + width, mask=ok, other=0.0)
        scores = tl.dot(queries, tl.trans(key), input_precision="ieee") * scale
        if BEAM > 0:
            position = (slot // BEAM)[None, :]
            earlier = tl.load(written + position, mask=is_row[:, None] & (position < last[:, None]), other=-1)
            visible = (slot % BEAM)[None, :] == tl.where(position == last[:, None], own, earlier)
        else:
            visible = slot[None, :] <= last[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shift_by = new_highest
        if PART > 0:
            # A row may see nothing of a part but the first, in which every row sees position 0.
            shift_by = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        weights, factor = tl.exp(scores - shift_by[:, None]), tl.exp(highest - shift_by)
        total = total * factor + tl.sum(weights, 1)
        attended = tl.dot(weights.to(value.dtype), value, attended * factor[:, None], input_precision="ieee")
        highest = new_highest
    if PART > 0:
        part = tl.program_id(2)
        at = (part * rows + row[:, None]) * width + (head * head_width + dim)[None, :]
        tl.store(out + at, attended, is_row[:, None] & is_dim[None, :])
        to = peaks + ((part * tl.num_programs(1) + head) * rows + row) * 2
        tl.store(to, highest, is_row)
        tl.store(to + 1, total, is_row)
    else:
        if HEAD * OUTPUTS > EARLY:
            out_tile = tl.load(from_out, mask=is_out, other=0.0)
        _project(attended / total[:, None], out_tile, out, head, row, is_row, output, rows, width)


@triton.jit(do_not_specialize=["rows", "per_sentence"])
def join_parts(
    contexts,  # [parts, rows, D], fp32
    peaks,  # [parts, heads, rows, 2]
    last_visible,
    out_weight,
    out,  # [heads, rows, D], fp32
    active,
    rows,
    per_sentence,
    width,
    head_width,
    CROSS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BEAM: tl.constexpr,
    PART: tl.constexpr,
    PDL: tl.constexpr,
):
    """Join the parts of a head's attention, in their order, and project. Where a row has one part, its bits stay.

    Grid: (sentences * tiles of their rows, heads, tiles of outputs).
    """
    sentence, row, is_row, offset = _rows_of(rows, per_sentence, ROWS)
    head = tl.program_id(1)
    dim = tl.arange(0, HEAD)
    is_dim = dim < head_width
    if tl.load(active + sentence, cache_modifier=".cg") <= tl.min(offset):
        wait(PDL)
        return
    output = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_out = (output[None, :] < width) & is_dim[:, None]
    from_out = out_weight + output[None, :] * width + (head * head_width + dim)[:, None]
    if HEAD * OUTPUTS <= EARLY:
        out_tile = tl.load(from_out, mask=is_out, other=0.0)
    wait(PDL)
    if CROSS:
        last = tl.zeros((ROWS,), tl.int32) + tl.load(last_visible + sentence).to(tl.int32)
    else:
        last = tl.load(last_visible + row, mask=is_row, other=0).to(tl.int32)
    if BEAM > 0:
        last = last * BEAM + BEAM - 1
    count = tl.max(last) // PART + 1
    peak = tl.full((ROWS,), float("-inf"), dtype=tl.float32)
    for part in range(0, count):
        at = peaks + ((part * tl.num_programs(1) + head) * rows + row) * 2
        peak = tl.maximum(peak, tl.load(at, mask=is_row & (part <= last // PART), other=float("-inf")))
    # Rows of no sentence get zeros.
    peak = tl.where(is_row, peak, 0.0)
    total = tl.where(is_row, 0.0, 1.0)
    attended = tl.zeros((ROWS, HEAD), dtype=tl.float32)
    for part in range(0, count):
        is_read = is_row & (part <= last // PART)
        at = peaks + ((part * tl.num_programs(1) + head) * rows + row) * 2
        factor = tl.exp(tl.load(at, mask=is_read, other=float("-inf")) - peak)
        total += factor * tl.load(at + 1, mask=is_read, other=0.0)
        place = contexts + (part * rows + row[:, None]) * width + (head * head_width + dim)[None, :]
        attended += factor[:, None] * tl.load(place, mask=is_read[:, None] & is_dim[None, :], other=0.0)
    if HEAD * OUTPUTS > EARLY:
        out_tile = tl.load(from_out, mask=is_out, other=0.0)
    _project(attended / total[:, None], out_tile, out, head, row, is_row, output, rows, width)


@triton.jit
def _rows_of(rows, per_sentence, ROWS: tl.constexpr):
    """Return a program's sentence, its rows (`rows` for none), which of these it has, and their numbers in it."""
    tiles = tl.cdiv(per_sentence, ROWS)
    sentence = tl.program_id(0) // tiles
    offset = (tl.program_id(0) % tiles) * ROWS + tl.arange(0, ROWS)
    is_row = offset < per_sentence
    return sentence, tl.where(is_row, sentence * per_sentence + offset, rows), is_row, offset


@triton.jit
def _project(context, out_tile, out, head, row, is_row, output, rows, width):
    """Store a head's part of the output projection."""
    result = tl.dot(context.to(out_tile.dtype), out_tile, input_precision="ieee")
    ok = is_row[:, None] & (output[None, :] < width)
    tl.store(out + (head * rows + row[:, None]) * width + output[None, :], result, ok)

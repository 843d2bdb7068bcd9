"""The Triton kernel that copies a text after a match, by the same rules as csrc/drafters/copying.cpp."""

import triton
import triton.language as tl

from fairseq_plugins.decoding.gpu.kernels.constants import NEAREST, UNIQUE
from fairseq_plugins.decoding.gpu.kernels.drafts import most_drafted, write_draft
from fairseq_plugins.decoding.gpu.kernels.layers import before_overwriting, wait

# For NEAREST, a matching token outweighs a shift by this many positions.
MATCH_WEIGHT = tl.constexpr(8)
_LOWEST = tl.constexpr(-(2**30))


@triton.jit
def _common_suffix(text, end, ok, output, length, max_match):
    """Return for each end [BLOCK] in a text the number of tokens before it that equal the last of the output.

    The beginnings of text and output count as one more equal token.
    """
    count = tl.zeros_like(end)
    most = tl.minimum(max_match, length)
    equal = ok
    depth = 0
    goes_on = most > 0
    while goes_on:
        for more in tl.static_range(4):
            back = depth + more + 1
            of_text = tl.load(text + end - back, mask=equal & (back <= end), other=-1)
            of_output = tl.load(output + length - back, mask=back <= most, other=-2)
            equal = equal & (of_text == of_output)
            count += equal.to(tl.int32)
        depth += 4
        goes_on = (depth < most) & (tl.max(equal.to(tl.int32), 0) > 0)
    return count + ((count == end) & (count == length) & (count < max_match)).to(tl.int32)


@triton.jit
def copy_draft(
    batch,  # `Places`
    texts,  # [B, text_stride], the texts of a sentence, one after the other
    ends,  # [B, end_stride], their ends; the source's length
    shifts,  # [B, end_stride], of each text: position of the last match minus that in the output, where NEAREST
    counts,  # [B], numbers of texts, where NEAREST
    text_stride,
    end_stride,
    width,
    max_match,
    LOOKUP: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Find the best match of the output's end in the texts, and draft what follows it. Grid: sentences."""
    sentence = tl.program_id(0)
    wait(PDL)
    if tl.load(batch.active + sentence) == 0:
        return
    length = tl.load(batch.lengths + sentence)
    output = batch.tokens + sentence * batch.columns + 1
    own = texts + sentence * text_stride
    number_of_texts, best, second, begin = 1, 0, 0, 0
    if LOOKUP == NEAREST:
        number_of_texts = tl.load(counts + sentence)
        best = -1
    # The match: first token to copy, and how many there are until the text ends.
    first, size = 0, 0
    for number in range(0, number_of_texts):
        text_length = tl.load(ends + sentence * end_stride + number) - begin
        shift, last = 0, text_length
        if LOOKUP == NEAREST:
            shift = tl.load(shifts + sentence * end_stride + number)
            last = text_length - 1
        best_of_text, end_of_text = -1, length + shift
        for start in range(0, last + 1, BLOCK):
            end = start + tl.arange(0, BLOCK)
            ok = end <= last
            score = _common_suffix(own + begin, end, ok, output, length, max_match)
            if LOOKUP == NEAREST:
                score = MATCH_WEIGHT * score - tl.abs(end - length - shift)
            score = tl.where(ok, score, _LOWEST)
            highest = tl.max(score, 0)
            is_highest = score == highest
            first_end = tl.min(tl.where(is_highest, end, last), 0)
            last_end = tl.max(tl.where(is_highest, end, 0), 0)
            rest = tl.max(tl.where(is_highest, _LOWEST, score), 0)
            runner_up = tl.where(first_end < last_end, highest, rest)
            is_better = highest > best
            second = tl.maximum(tl.maximum(second, runner_up), tl.minimum(best, highest))
            best = tl.maximum(best, highest)
            first = tl.where(is_better, begin + first_end, first)
            size = tl.where(is_better, text_length - first_end, size)
            end_of_text = tl.where(highest > best_of_text, first_end, end_of_text)
            best_of_text = tl.maximum(best_of_text, highest)
        if LOOKUP == NEAREST:
            before_overwriting()
            tl.store(shifts + sentence * end_stride + number, end_of_text - length)
            begin += text_length
    if LOOKUP == UNIQUE:
        size = tl.where(best == second, 0, size)
    step = tl.arange(0, STEPS)
    count = tl.minimum(most_drafted(batch, sentence, width), size)
    token = tl.load(own + first + step, mask=step < count, other=0)
    write_draft(batch, sentence, step, token, count, STEPS)

"""Checks of Triton's kernels on a device: the values of `fixed_shapes`, and the same bits in any batch."""

import torch
from torch import Tensor

from fairseq_plugins.decoding.reference import fixed_shapes
from fairseq_plugins.decoding.reference.captured import triton_kernels
from tests.decoding.gpu.interpreter import multiply_by_rows


def _numbers(*shape: int, seed: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def compare_linear(device: str, dtype: torch.dtype) -> None:
    """Rows [37, 72] at once, some of them, one by one, and with more than one batch dimension."""
    x, weight, bias = (
        _numbers(*shape, seed=seed, dtype=dtype, device=device)
        for seed, shape in enumerate([(37, 72), (50, 72), (50,)])
    )
    for offset in (None, bias):
        result = triton_kernels.linear(x, weight, offset)
        expected = fixed_shapes.linear(x.cpu(), weight.cpu(), None if offset is None else offset.cpu())
        torch.testing.assert_close(result.cpu(), expected, rtol=2e-2, atol=2e-2)
        for rows in (slice(0, 1), slice(36, 37), slice(5, 22)):
            assert torch.equal(triton_kernels.linear(x[rows], weight, offset), result[rows])
        assert torch.equal(triton_kernels.linear(x[:36].view(4, 9, 72), weight, offset), result[:36].view(4, 9, 50))
    assert triton_kernels.linear(x[:0], weight, bias).shape == (0, 50)


def compare_attention(device: str, dtype: torch.dtype) -> None:
    """Rows of three sentences at once, of one sentence, alone, and with fewer slots that are hidden."""
    query = _numbers(3, 19, 2, 24, seed=1, dtype=dtype, device=device)
    cache = _numbers(3, 70, 2, 2, 24, seed=2, dtype=dtype, device=device)
    last = torch.randint(0, 60, (3, 19), generator=torch.Generator().manual_seed(3))
    expected = fixed_shapes.attention(query.cpu(), cache.cpu(), last)
    last = last.to(device)
    result = triton_kernels.attention(query, cache, last)
    torch.testing.assert_close(result.cpu(), expected, rtol=2e-2, atol=2e-2)
    for slots in (61, 64):
        assert torch.equal(triton_kernels.attention(query[1:2], cache[1:2, :slots], last[1:2]), result[1:2])
    for row in (0, 7, 18):
        one = slice(row, row + 1)
        assert torch.equal(triton_kernels.attention(query[:, one], cache, last[:, one]), result[:, one])
    # Projected queries, keys and values side by side, and one last slot for all rows of a sentence.
    qkv = _numbers(2, 5, 3, 2, 24, seed=4, dtype=dtype, device=device)
    end = torch.tensor([[4], [2]], device=device)
    joined = triton_kernels.attention(qkv[:, :, 0], qkv[:, :, 1:], end.expand(2, 5))
    apart = triton_kernels.attention(qkv[:, :, 0].contiguous(), qkv[:, :, 1:].contiguous(), end.repeat(1, 5))
    assert torch.equal(joined, apart)


def check_kernels() -> None:
    """In the interpreter, in all precisions."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        compare_linear("cpu", dtype)
        compare_attention("cpu", dtype)


def prepare() -> None:
    """Let no bit depend on other rows."""
    multiply_by_rows()

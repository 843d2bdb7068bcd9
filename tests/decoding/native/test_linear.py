"""Compare the kernels' linear layers, in every weight format, with PyTorch's; equal formats agree bit by bit."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.weights import apply_quantized, quantized
from tests.decoding.native.weight_formats import FORMATS, TILES
from tests.strategies import DETERMINISTIC, example_count

SIZES = {
    "rows": st.integers(1, 40),
    "inputs": st.integers(1, 70),
    "outputs": st.integers(1, 150),
    "has_bias": st.booleans(),
    "seed": st.integers(0, 99),
}
# Also of whole tiles, for any number of them.
INT8_SIZES = {
    **SIZES,
    "rows": st.integers(1, 100),
    "inputs": st.one_of(SIZES["inputs"], st.integers(1, 4).map(lambda tiles: 64 * tiles)),
}


def make(weight: Tensor, bias: Tensor | None, weight_format: Any, scale: Tensor | None = None, **more: bool) -> Any:
    """Return a linear layer of the kernels."""
    return kernels().linear(weight, bias, scale, format=weight_format, **{"batch_invariant": False, **more})


def apply(layer: Any, x: Tensor) -> Tensor:
    """Return the layer's output for x [R, inputs]."""
    return torch.from_numpy(layer(x)).view(len(x), layer.outputs)


def drawn(rows: int, inputs: int, outputs: int, has_bias: bool, seed: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a random input, weight and bias."""
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((rows, inputs), (outputs, inputs), (outputs,)))
    return x, weight, bias if has_bias else None


@pytest.mark.parametrize("batch_invariant", [True, False])
@pytest.mark.parametrize("rows", [256, 257, 300])
def test_many_rows(rows: int, batch_invariant: bool) -> None:
    """From 257 rows on, unpacked weights are packed temporarily, unless the layer is batch-invariant."""
    x, weight, bias = drawn(rows, 65, 100, True, 1)
    layer = make(weight, bias, FORMATS.ROWS, batch_invariant=batch_invariant)
    result = apply(layer, x)
    torch.testing.assert_close(result, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    alone = torch.cat([apply(layer, row[None]) for row in x])
    assert torch.equal(alone, result) == (batch_invariant or rows < 257)


@settings(DETERMINISTIC, max_examples=example_count(80))
@given(weight_format=st.sampled_from([FORMATS.PANELS, FORMATS.ROWS]), **SIZES)
def test_layers_of_any_size(weight_format: Any, **sizes: Any) -> None:
    """A row gives the same among others."""
    x, weight, bias = drawn(**sizes)
    layer = make(weight, bias, weight_format)
    result = apply(layer, x)
    torch.testing.assert_close(result, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    for row in {0, len(x) // 2, len(x) - 1}:
        assert torch.equal(apply(layer, x[row : row + 1]), result[row : row + 1])


@settings(DETERMINISTIC, max_examples=example_count(80))
@given(exponent=st.integers(-20, 12), **SIZES)
def test_weights_that_are_halves_give_the_same_bit_by_bit(exponent: int, **sizes: Any) -> None:
    """Weights include float16's subnormal numbers."""
    if not kernels().supports(FORMATS.FP16_PANELS):
        pytest.skip("no float16 on this processor")
    x, weight, bias = drawn(**sizes)
    weight = (weight * 2.0**exponent).half().float()
    halves, whole = (apply(make(weight, bias, kind), x) for kind in (FORMATS.FP16_PANELS, FORMATS.PANELS))
    assert torch.equal(halves, whole)


TILE_SIZES = {
    "rows": st.integers(1, 70),
    "blocks": st.integers(1, 5),
    "outputs": SIZES["outputs"],
    "has_bias": SIZES["has_bias"],
    "seed": SIZES["seed"],
}


def check_tiles(weight_format: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Check that outputs are as exact as in float32, and those of a row the same alone."""
    if not kernels().supports(weight_format):
        pytest.skip("no tiles on this processor")
    rows, inputs = x.shape
    layer = make(weight, bias, weight_format)
    result = apply(layer, x)
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias)
    # Rounding errors of float32, of each product and each sum.
    magnitude = x.double().abs() @ weight.double().abs().t() + exact.abs()
    # Subnormal parts and sums count as zero.
    lost = 2.0**-125 * (x.double().abs().sum(1)[:, None] + weight.double().abs().sum(1) + 3 * inputs)
    near = magnitude * 2.0**-23 * (2 + inputs // 32) + lost
    assert ((result - exact).abs() <= near).all()
    for row in {0, rows // 2, rows - 1}:
        assert torch.equal(apply(layer, x[row : row + 1]), result[row : row + 1])


@settings(DETERMINISTIC, max_examples=example_count(120))
@given(exponents=st.tuples(st.integers(-20, 3), st.integers(-30, 20)), **TILE_SIZES)
def test_tiles_are_as_exact_as_float32(
    rows: int, blocks: int, exponents: tuple[int, int], outputs: int, has_bias: bool, seed: int
) -> None:
    """Weights have few significant bits, inputs span many orders of magnitude, and other rows vary."""
    x, weight, bias = drawn(rows, 32 * blocks, outputs, has_bias, seed)
    weight = (weight * 2.0 ** exponents[0]).clamp(-63, 63).half().float()
    x = x * 2.0 ** exponents[1] * torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) ** 8
    check_tiles(FORMATS.FP16_AMX_TILES, x, weight, bias)


@settings(DETERMINISTIC, max_examples=example_count(120))
@given(exponents=st.tuples(st.integers(-140, 100), st.integers(-100, 16)), **TILE_SIZES)
def test_fp32_tiles_are_as_exact_as_float32(
    rows: int, blocks: int, exponents: tuple[int, int], outputs: int, has_bias: bool, seed: int
) -> None:
    """Weights and inputs span many orders of magnitude, weights up to subnormal numbers."""
    x, weight, bias = drawn(rows, 32 * blocks, outputs, has_bias, seed)
    spread = torch.Generator().manual_seed(seed)
    weight = weight * 2.0 ** exponents[0] * torch.rand(weight.shape, generator=spread) ** 8
    x = x * 2.0 ** exponents[1] * torch.rand(x.shape, generator=spread) ** 8
    check_tiles(FORMATS.FP32_AMX_TILES, x, weight, bias)


def test_fp32_tiles_take_the_largest_weights() -> None:
    """Parts of a number are never larger: the largest one does not become infinite."""
    most = torch.finfo(torch.float32).max
    weight = torch.tensor([most, -most, most / 2, -most / 3]).repeat(20, 16)
    check_tiles(FORMATS.FP32_AMX_TILES, torch.rand(20, 64) / 64, weight, None)


@pytest.mark.parametrize("inputs", [32, 512, 2048])
def test_errors_of_tiles_beside_those_of_panels(inputs: int) -> None:
    """Tiles sum 16 inputs at a time, so that rounding errors of long sums are smaller."""
    if not kernels().supports(FORMATS.FP32_AMX_TILES):
        pytest.skip("no tiles on this processor")
    x, weight, _ = drawn(40, inputs, 80, False, 1)
    exact = x.double() @ weight.double().t()
    tiles, panels = (
        (apply(make(weight, None, kind), x) - exact).square().mean().sqrt()
        for kind in (FORMATS.FP32_AMX_TILES, FORMATS.PANELS)
    )
    assert tiles < panels


@pytest.mark.parametrize("weight_format", FORMATS)
def test_outputs_do_not_depend_on_threads_or_other_outputs(weight_format: Any) -> None:
    if not kernels().supports(weight_format):
        pytest.skip("not on this processor")
    x, weight, bias = drawn(35, 256, 1000, True, 1)
    weight = weight.half().float()
    expected = apply(make(weight, bias, weight_format, batch_invariant=True), x)
    try:
        for threads in (2, 3):
            kernels().set_threads(threads)
            assert torch.equal(apply(make(weight, bias, weight_format, batch_invariant=True), x), expected)
    finally:
        kernels().set_threads(1)
    for first, last in ((0, 16), (16, 100), (480, 1000), (992, 1000)):
        part = make(weight[first:last], bias[first:last], weight_format, batch_invariant=True)
        assert torch.equal(apply(part, x), expected[:, first:last])


@settings(DETERMINISTIC, max_examples=example_count(80))
@given(exponent=st.integers(-100, 60), **INT8_SIZES)
@example(exponent=0, rows=100, inputs=40, outputs=3, has_bias=False, seed=62)  # a number halfway between two steps
def test_int8_products_of_any_size(exponent: int, **sizes: Any) -> None:
    """They equal PyTorch's bit by bit, alone and among other rows, from fp32 weights and quantised ones."""
    x, weight, bias = drawn(**sizes)
    x[0] = 0
    x[1:] *= 2.0**exponent
    weight[0] = 0
    expected = apply_quantized(x, quantized((weight, bias)))
    assert torch.equal(apply(make(weight, bias, FORMATS.INT8), x), expected)
    held = quantized((weight, bias))
    layer = make(held.weight, bias, FORMATS.INT8, held.scale)
    assert torch.equal(apply(layer, x), expected)
    for row in {len(x) // 2, len(x) - 1}:
        assert torch.equal(apply(layer, x[row : row + 1]), expected[row : row + 1])
    some = max(1, len(x) // 3)
    assert torch.equal(apply(layer, x[:some]), expected[:some])


def test_int8_sums_of_many_inputs_are_exact() -> None:
    """The largest sums, 127 times 127 for each of 20,001 inputs (and of whole tiles), which 24 bits do not hold."""
    for rows, inputs, sign in ((3, 20001, 1), (3, 20001, -1), (20, 20032, 1), (20, 20032, -1)):
        weight = torch.ones(17, inputs)
        layer = make(weight, None, FORMATS.INT8)
        x = torch.full((rows, inputs), 2.0 * sign)
        assert torch.equal(apply(layer, x), apply_quantized(x, quantized((weight, None))))


@pytest.mark.parametrize(
    ("weight_format", "is_copied"),
    [(FORMATS.PANELS, True), (FORMATS.ROWS, False), (FORMATS.FP16_PANELS, True), (FORMATS.FP32_AMX_TILES, True)],
)
def test_which_formats_are_copies(weight_format: Any, is_copied: bool) -> None:
    if not kernels().supports(weight_format):
        pytest.skip("not on this processor")
    weight, x = torch.ones(20, 32), torch.ones(1, 32)
    layer = make(weight, None, weight_format)
    assert (apply(layer, x) == 32).all()
    weight.fill_(2)
    assert (apply(layer, x) == (32 if is_copied else 64)).all()


def huge_page_bytes() -> int:
    """Return the bytes of this process's memory that ask for huge pages."""
    mappings = re.findall(r"^Size: +(\d+) kB.*?^VmFlags:(.*?)$", Path("/proc/self/smaps").read_text(), re.M | re.S)
    return sum(int(size) * 1024 for size, flags in mappings if "hg" in flags.split())


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages")
def test_large_packed_weights_ask_for_huge_pages() -> None:
    """All of a weight but its last page, which other memory shares."""
    before = huge_page_bytes()
    # Above 32 MiB, so that malloc maps new pages, which never are those of an earlier test.
    weight, x = torch.rand(1100, 8000), torch.rand(3, 8000)
    layer = make(weight, None, FORMATS.PANELS)
    assert huge_page_bytes() - before >= weight.nbytes - 2**21
    torch.testing.assert_close(apply(layer, x), F.linear(x, weight), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("weight_format", [FORMATS.PANELS, FORMATS.ROWS])
def test_weights_outlive_the_tensor_that_they_were_read_from(weight_format: Any) -> None:
    x, weight, bias = drawn(3, 400, 500, True, 1)
    expected = F.linear(x, weight, bias)
    layer = make(weight.clone(), bias.clone(), weight_format)
    # Allocations that would reuse freed memory.
    for _ in range(4):
        torch.full((500, 400), torch.nan)
    torch.testing.assert_close(apply(layer, x), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("inputs_of_it", [slice(7, 8), slice(None)])
def test_nan_and_infinity_propagate(number: float, inputs_of_it: slice) -> None:
    for weight_format in filter(kernels().supports, (FORMATS.PANELS, FORMATS.ROWS, FORMATS.INT8, *TILES)):
        inputs = 64 if weight_format in TILES else 33
        x, weight, bias = drawn(5, inputs, 40, True, 1)
        x[2, inputs_of_it] = number
        result = apply(make(weight, bias, weight_format), x)
        assert not result[2].isfinite().any() and result[[0, 1, 3, 4]].isfinite().all()
        if weight_format in (FORMATS.INT8, FORMATS.FP16_AMX_TILES):
            continue
        x, weight, bias = drawn(5, inputs, 40, True, 1)
        weight[3, inputs_of_it] = number
        result = apply(make(weight, bias, weight_format), x)
        assert not result[:, 3].isfinite().any() and result[:, 4:].isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(9), None, FORMATS.PANELS), "incompatible"),
        ((torch.ones(9, 9, device="meta"), None, FORMATS.PANELS), "incompatible"),
        (([[1.0]], None, FORMATS.PANELS), "incompatible"),
        ((torch.ones(16, 33), None, FORMATS.FP16_AMX_TILES), "multiples of 32|does not support the weight format"),
        ((torch.ones(16, 33), None, FORMATS.FP32_AMX_TILES), "multiples of 32|does not support the weight format"),
        ((torch.ones(9, 9).double(), None, FORMATS.PANELS), "another type"),
        ((torch.ones(9, 9).half(), None, FORMATS.PANELS), "another type"),
        ((torch.ones(9, 9), None, FORMATS.INT8, torch.ones(9)), "another type"),
        ((torch.ones(9, 9).to(torch.int8), None, FORMATS.INT8), "another type"),
        ((torch.ones(9, 0), None, FORMATS.PANELS), "empty"),
        ((torch.ones(0, 9), None, FORMATS.PANELS), "empty"),
        ((torch.ones(9, 9), torch.ones(8), FORMATS.PANELS), "a bias has another size"),
        ((torch.ones(9, 9).to(torch.int8), None, FORMATS.PANELS, torch.ones(9)), "scales are for int8"),
        ((torch.ones(9, 9).to(torch.int8), None, FORMATS.INT8, torch.ones(8)), "the scales have another size"),
    ],
)
def test_weights_that_do_not_fit_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make(*arguments)


@pytest.mark.parametrize("x", [torch.zeros(3, 8), torch.zeros(3, 0), torch.zeros(9), torch.zeros(3, 9, device="meta")])
def test_inputs_that_do_not_fit_are_refused(x: Tensor) -> None:
    with pytest.raises((ValueError, TypeError)):
        make(torch.ones(9, 9), None, FORMATS.PANELS)(x)


def test_inputs_of_other_types_and_layouts_are_converted() -> None:
    layer = make(torch.ones(9, 9), None, FORMATS.PANELS)
    x = torch.arange(27.0).view(3, 9)
    for same in (x.double(), x.int(), x.t().contiguous().t(), x.expand(2, 3, 9)[1]):
        assert torch.equal(apply(layer, same), apply(layer, x))

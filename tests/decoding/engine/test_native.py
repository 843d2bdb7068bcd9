"""The compiled kernels: what PyTorch computes, built once, and done without where they cannot be built.

`test_cached_decoder.py` runs on both; here is what only the kernels have.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from fairseq_plugins.decoding.engine.native.kernels import Kernels, Packing
from fairseq_plugins.decoding.engine.native.layers import (
    HALVES_IN_PANELS,
    HALVES_IN_TILES,
    IN_PANELS,
    IN_ROWS,
    INT8_IN_PANELS,
    NativeLinear,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.encoder import FusedEncoder
from fairseq_plugins.decoding.engine.engine import Engine, make_engine
from fairseq_plugins.decoding.engine.native import build, layers
from fairseq_plugins.decoding.engine.native import kernels as native
from fairseq_plugins.decoding.engine.weights import Linear, Precision, quantized
from tests.strategies import (
    DRAFTERS,
    FEATURE_DRAFTERS,
    SEARCHES,
    SOURCES,
    STEADY,
    STEADY_MODELS,
    TRANSFORMERS,
    fitting,
    some,
)
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    """The kernels as they are by default."""
    kernels = Kernels.build()
    assert kernels is not None
    return kernels


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a library that is not loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.library.cache_clear()
    yield tmp_path / "fairseq-spec-dec"
    build.library.cache_clear()


def compiled_linear(kernels: Kernels, layer: Linear) -> NativeLinear:
    """A linear layer in the form that the kernels choose for it."""
    return NativeLinear(kernels.functions, layer, kernels._form(layer, Precision.FP32))


@settings(STEADY, max_examples=some(160))
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 150),
    has_bias=st.booleans(),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear_layers_of_any_size(
    kernels: Kernels, rows: int, inputs: int, outputs: int, has_bias: bool, packed: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((rows, inputs), (outputs, inputs), (outputs,)))
    layer = (weight, bias if has_bias else None)
    compiled = NativeLinear(kernels.functions, layer, IN_PANELS if packed else IN_ROWS)
    assert (compiled.tensors[0].data_ptr() == weight.data_ptr()) != packed
    torch.testing.assert_close(compiled(x), F.linear(x, *layer), rtol=1e-4, atol=1e-4)


@settings(STEADY, max_examples=some(80))
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 150),
    exponent=st.integers(-20, 12),
    seed=st.integers(0, 99),
)
def test_weights_that_are_halves_give_the_same_bit_by_bit(
    kernels: Kernels, rows: int, inputs: int, outputs: int, exponent: int, seed: int
) -> None:
    """Also the smallest ones, which float16 has without all of its digits."""
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((rows, inputs), (outputs, inputs), (outputs,)))
    layer = ((weight * 2.0**exponent).half().float(), bias)
    halves = NativeLinear(kernels.functions, layer, IN_PANELS)
    assert (halves.structure.form == HALVES_IN_PANELS) == bool(kernels.functions.has_halves())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "is_exact_in_half", lambda weight: False)
        whole = NativeLinear(kernels.functions, layer, IN_PANELS)
    assert whole.structure.form == IN_PANELS
    assert torch.equal(halves(x), whole(x))


@settings(STEADY, max_examples=some(120))
@given(
    rows=st.integers(1, 70),
    blocks=st.integers(1, 5),
    outputs=st.integers(1, 150),
    exponents=st.tuples(st.integers(-20, 3), st.integers(-30, 20)),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tiles_are_as_exact_as_float32(
    kernels: Kernels,
    rows: int,
    blocks: int,
    outputs: int,
    exponents: tuple[int, int],
    has_bias: bool,
    seed: int,
) -> None:
    """Also with weights of few digits, numbers of very different size, and whatever other rows there are."""
    if not kernels.functions.has_tiles():
        pytest.skip("no tiles on this processor")
    generator = torch.Generator().manual_seed(seed)
    sizes = (rows, 32 * blocks), (outputs, 32 * blocks), (outputs,)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in sizes)
    weight = (weight * 2.0 ** exponents[0]).clamp(-63, 63).half().float()
    x = x * 2.0 ** exponents[1] * torch.rand(x.shape, generator=generator) ** 8
    compiled = NativeLinear(kernels.functions, (weight, bias if has_bias else None), HALVES_IN_TILES)
    result = compiled(x)
    exact = x.double() @ weight.double().t() + (bias if has_bias else 0)
    # What float32 rounds off with every product, and every sum.
    near = (x.double().abs() @ weight.double().abs().t() + exact.abs()) * 2.0**-23 * (2 + blocks) + 1e-30
    assert ((result - exact).abs() <= near).all()
    for row in {0, rows // 2, rows - 1}:
        assert torch.equal(compiled(x[row : row + 1]), result[row : row + 1])


def test_large_halves_go_to_tiles_where_these_hold_them(kernels: Kernels) -> None:
    in_tiles = HALVES_IN_TILES if kernels.functions.has_tiles() else HALVES_IN_PANELS
    large = torch.ones(2048, 544)
    for weight, form in (
        (large, in_tiles),
        (large[:, :530], HALVES_IN_PANELS),
        (large * 64, HALVES_IN_PANELS),
        (large / 3, IN_ROWS),
        (large[:64], HALVES_IN_PANELS),
    ):
        assert compiled_linear(kernels, (weight.contiguous(), None)).structure.form == form


def test_tiles_hold_no_other_weights(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="tiles of this processor do not hold a weight"):
        NativeLinear(kernels.functions, (torch.ones(16, 32) * 64, None), HALVES_IN_TILES)


@pytest.mark.parametrize("number", [1 + 2**-11, 1e-9, 70000.0, float("nan")])
def test_other_weights_are_no_halves(kernels: Kernels, number: float) -> None:
    weight = torch.ones(20, 3)
    weight[7, 1] = number
    assert NativeLinear(kernels.functions, (weight, None), IN_PANELS).structure.form == IN_PANELS


@settings(STEADY, max_examples=some(80))
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 150),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_int8_products_of_any_size(
    kernels: Kernels, rows: int, inputs: int, outputs: int, has_bias: bool, seed: int
) -> None:
    """What rounding weights and inputs, row by row, says in exact arithmetic."""
    if not kernels.functions.has_int8_products():
        pytest.skip("no fast int8 products on this processor")
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((rows, inputs), (outputs, inputs), (outputs,)))
    x[0] = 0
    layer = (weight, bias if has_bias else None)
    compiled = NativeLinear(kernels.functions, layer, INT8_IN_PANELS)
    assert compiled.tensors[0].dtype == torch.int8
    rounded, _ = quantized(layer)
    # Halves may go either way.
    step = x.abs().amax(1, keepdim=True).double().clamp(min=1e-30) / 127
    result = torch.addmm(torch.zeros(()) if layer[1] is None else bias, x, rounded.t())
    near = (step / 2) @ rounded.double().abs().sum(1)[None] + 1e-4
    assert ((compiled(x) - result).abs() <= near).all()
    whole = (x.double() / step).round().clamp(-127, 127) * step
    exact = whole @ rounded.double().t() + (0 if layer[1] is None else bias)
    share = (compiled(x) - exact).abs().lt(1e-3 + 1e-4 * exact.abs()).double().mean()
    assert share > 0.99 or x.numel() * outputs < 2000


def test_wide_models_are_rounded_where_copies_may_be(kernels: Kernels) -> None:
    weight = torch.ones(1)
    sparing = Kernels.build(Packing.NEVER)
    assert sparing is not None
    assert not sparing.has_int8_products(512, weight)
    assert not kernels.has_int8_products(512, weight / 3)
    for some_kernels, width in ((sparing, 16), (kernels, 16), (kernels, 512)):
        assert some_kernels.has_int8_products(width, weight) == bool(kernels.functions.has_int8_products())


@pytest.mark.parametrize("convert", [torch.Tensor.half, torch.Tensor.double, lambda weight: weight.to("meta")])
def test_what_is_elsewhere_or_of_another_type_is_not_rounded(
    kernels: Kernels, convert: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    assert not kernels.has_int8_products(16, convert(torch.ones(1)))


@pytest.mark.parametrize("options", [{}, {"drafter_context": "features"}], ids=["tokens", "features"])
def test_drafts_are_rounded_unless_their_scores_count(kernels: Kernels, options: dict[str, Any]) -> None:
    task = make_task(30)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, **options)

    def precision(**wanted: Any) -> tuple[set[torch.dtype], set[torch.dtype]]:
        method = Options(block_size=4, **wanted).build([verifier], drafter, task)
        decoders = (method.verifier.decoders[0], method.drafter.decoder.cached)
        return tuple({linear.tensors[0].dtype for linear in linears_of(decoder)} for decoder in decoders)

    fp32 = {torch.float32}
    assert precision(decoder="gad") == (fp32, {torch.int8} if kernels.has_int8_products(16, torch.ones(1)) else fp32)
    relaxed = {"decoder": "gad++", "top_beta": 3, "tau": 1.0}
    assert precision(**relaxed) == precision(decoder="gad")
    assert precision(decoder="gad", fp32_drafts=True) == precision(**relaxed, fp32_drafts=True) == (fp32, fp32)
    assert precision(**relaxed, accept_score="drafter") == (fp32, fp32)
    method = Options("gad", 4).build([verifier], drafter, task, engine=Engine())
    assert method.drafter.decoder.cached.native_layers is None


def test_int8_products_pay_for_more_rows(kernels: Kernels) -> None:
    limit = native.MAX_ROWS
    assert kernels.pays(limit) and not kernels.pays(limit + 1)
    assert kernels.pays(limit + 1, Precision.INT8_PRODUCTS) and not kernels.pays(100 * limit, Precision.INT8_PRODUCTS)


def linears_of(decoder: CachedDecoder) -> list[NativeLinear]:
    """The compiled linear layers of a decoder's layers."""
    return [tensor for tensor in decoder.native_layers.tensors if isinstance(tensor, NativeLinear)]


@settings(STEADY_MODELS, max_examples=some(12))
@given(
    options=TRANSFORMERS,
    drafter_options=st.one_of(DRAFTERS, FEATURE_DRAFTERS),
    sources=SOURCES,
    block_size=st.sampled_from([1, 3, 10]),
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_rounded_drafts_change_no_output(
    options: dict[str, Any],
    drafter_options: dict[str, Any],
    sources: list[int],
    block_size: int,
    search: dict[str, Any],
    seed: int,
) -> None:
    task = make_task(50)
    verifier = make_transformer(task, seed, **options)
    drafter = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter_options, options))
    sample = make_sample(task, sources, seed)
    stock = fairseq_greedy([verifier], task, sample, **search)
    for fp32_drafts in (True, False):
        how = Options("gad", block_size, fp32_drafts=fp32_drafts)
        assert_same_output(decode([verifier], task, sample, how, drafter, **search)[0], stock)


def test_rounded_drafts_are_as_good() -> None:
    task = make_task(9)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [4, 0, 12, 7, 20, 3], 1)
    for fp32_drafts in (True, False):
        how = Options("gad", 12, fp32_drafts=fp32_drafts)
        _, stats = decode([verifier], task, sample, how, drafter, max_len_b=30, min_len=20)
        assert emitted_per_iteration(stats) > 1.6


@pytest.mark.parametrize(
    ("inputs", "outputs", "packed"), [(600, 511, True), (511, 600, True), (512, 512, False), (256, 4097, False)]
)
def test_weights_of_large_layers_are_read_where_they_are(
    kernels: Kernels, inputs: int, outputs: int, packed: bool
) -> None:
    weight = torch.randn(outputs, inputs)
    x = torch.randn(7, inputs)
    compiled = compiled_linear(kernels, (weight, None))
    assert (compiled.tensors[0].data_ptr() == weight.data_ptr()) != packed
    torch.testing.assert_close(compiled(x), F.linear(x, weight), rtol=1e-4, atol=1e-3)


def test_weights_outlive_the_parameter_that_they_were_read_from() -> None:
    model = make_transformer(make_task(30), 1)
    sample = make_sample(make_task(30), [5, 3])
    encoder = FusedEncoder(model.encoder, make_engine())
    assert encoder.native_layers is not None
    before = encoder(sample["net_input"])["encoder_out"][0].clone()
    for layer in model.encoder.layers:
        for parameter in layer.parameters():
            parameter.data = torch.full_like(parameter, torch.nan)
    assert torch.equal(encoder(sample["net_input"])["encoder_out"][0], before)


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("exact", [False, True])
def test_which_large_weights_are_held_twice(packing: Packing, exact: bool) -> None:
    weight, x = torch.randn(512, 512), torch.randn(3, 512)
    if exact:
        weight = weight.half().float()
    kernels = make_engine(packing=packing).kernels
    assert kernels is not None
    layer = compiled_linear(kernels, (weight, None))
    torch.testing.assert_close(layer(x), x @ weight.t(), rtol=1e-4, atol=1e-3)
    (held,) = [tensor for tensor in layer.tensors if tensor is not None]
    halves = bool(kernels.functions.has_halves())
    wanted = packing is Packing.ALWAYS or (packing is Packing.AUTO and exact and halves)
    assert (held.data_ptr() != weight.data_ptr()) == wanted
    assert (held.dtype == torch.float16) == (wanted and exact and halves)


@settings(STEADY, max_examples=some(80))
@given(
    rows=st.integers(1, 9),
    size=st.integers(1, 300),
    forbidden=st.booleans(),
    equal=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
def test_probabilities_and_choices(
    kernels: Kernels, rows: int, size: int, forbidden: bool, equal: bool, dtype: torch.dtype, seed: int
) -> None:
    scores = 5 * torch.randn(1, rows, size, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    scores = scores.round() if equal else scores
    engine = Engine(kernels)
    result = engine.log_softmax(scores.clone())
    torch.testing.assert_close(result, scores.float().log_softmax(-1), rtol=1e-5, atol=1e-5)
    if forbidden:
        result[..., seed % size] = -torch.inf
        result[:, rows // 2] = -torch.inf
    assert torch.equal(engine.argmax(result), result.argmax(-1))
    assert torch.equal(engine.argmax(result.to(dtype)), result.argmax(-1))
    assert torch.equal(engine.argmax(result[..., ::2]), result[..., ::2].argmax(-1))


@pytest.mark.parametrize("packed_inputs", [511, 0], ids=["packed", "in place"])
@settings(STEADY_MODELS, max_examples=some(25))
@given(
    options=TRANSFORMERS,
    drafter_options=FEATURE_DRAFTERS,
    sources=SOURCES,
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
@torch.no_grad()
def test_output_and_scores_are_the_same(
    packed_inputs: int,
    options: dict[str, Any],
    drafter_options: dict[str, Any],
    sources: list[int],
    search: dict[str, Any],
    seed: int,
) -> None:
    task = make_task(50)
    verifier = make_transformer(task, seed, **options)
    drafter = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter_options, options))
    sample = make_sample(task, sources, seed)
    results = []
    for engine in (make_engine(), Engine()):
        with mock.patch.object(native, "MAX_PACKED_WIDTH", packed_inputs):
            encoded = FusedEncoder(verifier.encoder, engine)(sample["net_input"])["encoder_out"][0]
            in_fp32 = Options("gad", 4, fp32_drafts=True)
            results.append((decode([verifier], task, sample, in_fp32, drafter, engine=engine, **search), encoded))
    (ours, theirs) = results
    real = sample["net_input"]["src_tokens"].ne(1).t()
    torch.testing.assert_close(ours[1][real], theirs[1][real], rtol=1e-4, atol=2e-5)
    assert_same_output(ours[0][0], theirs[0][0])
    assert [s.emitted for s in ours[0][1]] == [s.emitted for s in theirs[0][1]]


def test_what_they_cannot_run_is_left_to_pytorch() -> None:
    task = make_task(30)
    for options, runs in (({}, True), ({"activation_fn": "gelu"}, True), ({"activation_fn": "tanh"}, False)):
        encoder = FusedEncoder(make_transformer(task, 0, **options).encoder, make_engine())
        assert (encoder.native_layers is not None) == runs
    assert FusedEncoder(make_transformer(task, 0).encoder.double(), make_engine()).native_layers is None
    assert FusedEncoder(make_transformer(task, 0).encoder, make_engine(compiled=False)).native_layers is None


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("inputs", [7, 600])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fastest_linear_layer(rows: int, inputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows of a wide layer are PyTorch's; the results of several may also go to where they are wanted."""
    calls = []
    write = NativeLinear.write
    monkeypatch.setattr(NativeLinear, "write", lambda *args: calls.append(args) or write(*args))
    layer = (torch.randn(600, inputs, dtype=dtype), torch.randn(600, dtype=dtype))
    x = torch.randn(rows, 1, inputs, dtype=dtype)
    torch.testing.assert_close(make_engine().linear(layer)(x), F.linear(x, *layer), rtol=1e-4, atol=1e-3)
    assert bool(calls) == (dtype == torch.float32 and (rows == 1 or inputs == 7))
    several = [layer, (layer[0] + 1, None)]
    result = x.new_empty(2, rows, 2, 300)
    make_engine().linears_into(several)(x, result)
    for part, one in zip(result, several, strict=True):
        torch.testing.assert_close(part.flatten(1), F.linear(x, *one).flatten(1), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_no_compiler(
    fresh: Path, compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert make_engine().linear((torch.ones(3, 3), None))(torch.ones(3)).tolist() == [3, 3, 3]
    assert len(caplog.messages) == 1 and "PyTorch's operations" in caplog.messages[0]
    assert not any(file.suffix == ".so" for file in fresh.iterdir())

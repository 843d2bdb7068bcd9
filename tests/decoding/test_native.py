"""The compiled kernels: what PyTorch computes, built once, and done without where they cannot be built.

`test_cached_decoder.py` runs on both; here is what only the kernels have.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding import native
from fairseq_plugins.decoding.encoder import FusedEncoder
from fairseq_plugins.decoding.methods import Options
from tests.strategies import FEATURE_DRAFTERS, SEARCHES, SOURCES, STEADY, STEADY_MODELS, TRANSFORMERS, fitting
from tests.support import assert_same_output, decode, make_drafter, make_sample, make_task, make_transformer


@pytest.fixture(autouse=True)
def switched_on() -> Iterator[None]:
    yield
    native.enable(True)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a library that is not loaded yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path / "fairseq-spec-dec"
    native.library.cache_clear()


@settings(STEADY, max_examples=160)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 150),
    has_bias=st.booleans(),
    packed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear_layers_of_any_size(
    rows: int, inputs: int, outputs: int, has_bias: bool, packed: bool, seed: int
) -> None:
    most = native._MOST_PACKED_INPUTS if packed else 0
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((rows, inputs), (outputs, inputs), (outputs,)))
    layer = (weight, bias if has_bias else None)
    with mock.patch.object(native, "_MOST_PACKED_INPUTS", most):
        compiled = native.NativeLinear(layer)
    assert (compiled.tensors[0].data_ptr() == weight.data_ptr()) != packed
    torch.testing.assert_close(compiled(x), F.linear(x, *layer), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("inputs", "outputs", "packed"), [(511, 64, True), (512, 64, False), (256, 4097, False)])
def test_weights_of_large_layers_are_read_where_they_are(inputs: int, outputs: int, packed: bool) -> None:
    weight = torch.randn(outputs, inputs)
    x = torch.randn(7, inputs)
    compiled = native.NativeLinear((weight, None))
    assert (compiled.tensors[0].data_ptr() == weight.data_ptr()) != packed
    torch.testing.assert_close(compiled(x), F.linear(x, weight), rtol=1e-4, atol=1e-3)


def test_weights_outlive_the_parameter_that_they_were_read_from() -> None:
    model = make_transformer(make_task(30), 1)
    sample = make_sample(make_task(30), [5, 3])
    encoder = FusedEncoder(model.encoder)
    before = encoder(sample["net_input"])["encoder_out"][0].clone()
    for layer in model.encoder.layers:
        for parameter in layer.parameters():
            parameter.data = torch.full_like(parameter, torch.nan)
    assert torch.equal(encoder(sample["net_input"])["encoder_out"][0], before)


def test_large_weights_are_packed_where_that_was_asked_for() -> None:
    weight, x = torch.randn(64, 512), torch.randn(3, 512)
    try:
        native.enable(True, copies=True)
        packed = native.NativeLinear((weight, None))
    finally:
        native.enable(True)
    assert packed.tensors[0].data_ptr() != weight.data_ptr()
    torch.testing.assert_close(packed(x), x @ weight.t(), rtol=1e-4, atol=1e-4)
    assert native.NativeLinear((weight, None)).tensors[0].data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("packed_inputs", [511, 0], ids=["packed", "in place"])
@settings(STEADY_MODELS, max_examples=25)
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
    for wanted in (True, False):
        native.enable(wanted)
        with mock.patch.object(native, "_MOST_PACKED_INPUTS", packed_inputs):
            encoded = FusedEncoder(verifier.encoder)(sample["net_input"])["encoder_out"][0]
            results.append((decode([verifier], task, sample, Options("gad", 4), drafter, **search), encoded))
    (ours, theirs) = results
    real = sample["net_input"]["src_tokens"].ne(1).t()
    torch.testing.assert_close(ours[1][real], theirs[1][real], rtol=1e-4, atol=2e-5)
    assert_same_output(ours[0][0], theirs[0][0])
    assert [s.accepted for s in ours[0][1]] == [s.accepted for s in theirs[0][1]]


def test_what_they_cannot_run_is_left_to_pytorch() -> None:
    task = make_task(30)
    for options, runs in (({}, True), ({"activation_fn": "gelu"}, True), ({"activation_fn": "tanh"}, False)):
        encoder = FusedEncoder(make_transformer(task, 0, **options).encoder)
        assert (encoder.native_layers is not None) == runs
    assert FusedEncoder(make_transformer(task, 0).encoder.double()).native_layers is None
    native.enable(False)
    assert FusedEncoder(make_transformer(task, 0).encoder).native_layers is None


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_fastest_linear_layer(rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(native.NativeLinear, "__call__", lambda self, x: calls.append(x) or F.linear(x, *layer))
    layer = (torch.randn(20, 7, dtype=dtype), torch.randn(20, dtype=dtype))
    x = torch.randn(rows, 1, 7, dtype=dtype)
    torch.testing.assert_close(native.fastest(layer)(x), F.linear(x, *layer))
    assert bool(calls) == (rows == 1 and dtype == torch.float32)


def test_built_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.library() is not None
    (built,) = fresh.iterdir()
    native.library.cache_clear()
    monkeypatch.setattr(native, "_build", None)
    assert native.library() is not None and list(fresh.iterdir()) == [built]


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_no_compiler(
    fresh: Path, compiler: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert native.fastest((torch.ones(3, 3), None))(torch.ones(3)).tolist() == [3, 3, 3]
    assert len(caplog.messages) == 1 and "PyTorch's operations" in caplog.messages[0]
    assert not any(file.suffix == ".so" for file in fresh.iterdir())

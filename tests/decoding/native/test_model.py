"""Weight formats of a model in the kernels, and models that are left to PyTorch."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.native import model as native_model
from fairseq_plugins.decoding.native.model import NativeWeights, available_memory
from fairseq_plugins.decoding.reference.engine import Engine
from tests.cases import Case, cases
from tests.decoding.native.weight_formats import FORMATS, FP16_FORMAT, FP32_FORMAT, HAS_FP16, HAS_TILES
from tests.strategies import FEATURE_DRAFTERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_hypotheses,
    assert_same_output,
    fairseq_beam,
    fairseq_greedy,
    make_all,
    make_drafter,
    make_generator,
    make_task,
    make_transformer,
)


@pytest.fixture
def chosen_formats(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that records the format of each weight converted for the kernels."""
    seen: list[Any] = []
    choose = NativeWeights._format

    def spy(self: NativeWeights, weight: Tensor, int8: bool) -> Any:
        seen.append(choose(self, weight, int8))
        return seen[-1]

    monkeypatch.setattr(NativeWeights, "_format", spy)
    return seen


def format_of(weight: Tensor, packed: bool = True, **more: Any) -> Any:
    return NativeWeights(packed, **more)._format(weight, False)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs", "is_near"), [(600, 511, True), (511, 600, True), (512, 512, False), (256, 4097, False)]
)
def test_which_weights_are_packed(inputs: int, outputs: int, is_near: bool, packed: bool, exact: bool) -> None:
    weight = torch.randn(outputs, inputs)
    weight = weight.half().float() if exact else weight
    weight_format = format_of(weight, packed)
    assert (weight_format != FORMATS.ROWS) == (packed or is_near)
    is_half = weight_format in (FORMATS.FP16_PANELS, FORMATS.FP16_AMX_TILES)
    assert is_half == ((packed or is_near) and exact and HAS_FP16)


def test_large_weights_are_packed_where_memory_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(512, 512)
    for available, expected in ((4 * weight.nbytes, FP32_FORMAT), (4 * weight.nbytes - 1, FORMATS.ROWS)):
        monkeypatch.setattr(native_model, "available_memory", lambda available=available: available)
        assert format_of(weight) == expected
        assert format_of(weight[:300]) == FORMATS.PANELS, "small"


def test_large_fp16_weights_are_packed_in_tiles_that_hold_them() -> None:
    large, in_tiles = torch.ones(2048, 544), FORMATS.FP16_AMX_TILES if HAS_TILES else FP16_FORMAT
    assert format_of(large) == in_tiles
    assert format_of(large[:, :530]) == FP16_FORMAT, "no whole blocks of inputs"
    assert format_of(large * 64) == FP16_FORMAT, "1024 times as much is no half"
    assert format_of(large / 3) == FP32_FORMAT
    large[7, 5] = math.inf
    assert format_of(large) == FP16_FORMAT, "1024 times as much is no half"
    large[7, 5] = 1
    assert format_of(large[:64]) == FP16_FORMAT, "near, where a row takes tiles twice the time"
    assert format_of(large[:64], many_rows=True) == in_tiles


def test_fp32_weights_are_packed_in_tiles() -> None:
    large = torch.ones(2048, 544) / 3
    assert format_of(large) == FP32_FORMAT
    assert format_of(large[:64]) == FORMATS.PANELS, "near, where a row takes tiles twice the time"
    for weight in (large, large[:64]):
        assert format_of(weight, many_rows=True) == FP32_FORMAT
        assert format_of(weight[:, :530], many_rows=True) == FORMATS.PANELS, "no whole blocks of inputs"
    assert format_of(large, packed=False, many_rows=True) == FORMATS.ROWS
    assert format_of(large[:64], packed=False, many_rows=True) == FORMATS.PANELS


@pytest.mark.parametrize("number", [1 + 2**-11, 1e-9, 70000.0, torch.nan])
def test_weights_that_fp16_rounds_are_not_packed_in_fp16(number: float) -> None:
    weight = torch.ones(20, 3)
    assert format_of(weight) == FP16_FORMAT
    weight[7, 1] = number
    assert format_of(weight) == FORMATS.PANELS


def test_layers_of_the_sources_are_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four in each layer of the encoder, and in each of the decoder keys and values of cross-attention."""
    seen: list[bool] = []

    def spy(self: NativeWeights, weight: Tensor, int8: bool) -> Any:
        seen.append(self.many_rows)
        return FORMATS.PANELS

    model = make_transformer(make_task(30), 1)
    monkeypatch.setattr(NativeWeights, "_format", spy)
    for many_rows in (False, True):
        weights = NativeWeights(many_rows=many_rows)
        weights.encoder(model.encoder)
        assert seen == [True] * 4 * len(model.encoder.layers)
        seen.clear()
        weights.decoder(model.decoder)
        layers = len(model.decoder.layers)
        assert len(seen) == 1 + 7 * layers and seen.count(True) == (len(seen) if many_rows else layers)
        seen.clear()


@pytest.mark.parametrize("packed", [False, True])
def test_drafters_are_rounded_where_copies_may_be(packed: bool) -> None:
    assert NativeWeights(packed).for_drafts().int8 is packed


@pytest.mark.parametrize("options", [{}, {"drafter_context": "features"}], ids=["tokens", "features"])
def test_drafts_are_rounded_unless_their_scores_count(options: dict[str, Any], chosen_formats: list[Any]) -> None:
    task = make_task(30)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, **options)

    def rounded(name: str, **wanted: Any) -> int:
        """Return the number of weights rounded to int8."""
        chosen_formats.clear()
        generator, _ = make_generator([verifier], task, Options(name, **wanted), drafter)
        assert generator.backend.name == "native" and len(chosen_formats) > 20
        return chosen_formats.count(FORMATS.INT8)

    relaxed = {"top_beta": 3, "tau": 1.0}
    # Seven weights of each of two layers, and at least the vocabulary projection.
    count = rounded("gad++", **relaxed)
    assert count > 14 and rounded("gad++", **relaxed, fp32_drafts=True) == 0
    # And a copy of the verifier's vocabulary projection, where its scores are not needed.
    assert rounded("gad") == rounded("iad", iad_fallback="gad") == count + 1
    assert rounded("gad", fp32_drafts=True) == rounded("greedy") == 1
    assert rounded("fast-beam") == 0
    # The kernels do not support acceptance by the drafter's scores.
    literal, _ = make_generator([verifier], task, Options("gad++", 4, **relaxed, accept_score="drafter"), drafter)
    assert literal.backend.name == "torch" and "--accept-score drafter" in literal.backend.reason


@settings(UNSHRUNK, max_examples=example_count(30))
@given(case=cases([50, 1100], FEATURE_DRAFTERS), kind=st.sampled_from(["rows", "panels", "halves"]))
def test_wide_weights_give_the_same(chosen_formats: list[Any], case: Case, kind: str) -> None:
    """Unpacked, packed, and packed in the halves that hold them exactly; other tests have narrow models."""
    for model in (case.verifier, case.drafter):
        if kind == "halves":
            model.half().float()
    wide = {"rows": FORMATS.ROWS, "panels": FORMATS.PANELS, "halves": FP16_FORMAT}[kind]
    with mock.patch.object(native_model, "NARROW", 0):
        for how in (Options("gad", 4, fp32_drafts=True), Options("jacobi"), Options("fast-beam")):
            chosen_formats.clear()
            beam = 4 if how.spec.searches_beams else 1
            ours, stats = case.decode(how, engine=NativeWeights(kind != "rows"), beam_size=beam)
            assert_same_hypotheses(ours, fairseq_beam([case.verifier], case.task, case.sample, beam, **case.search))
            assert not chosen_formats or wide in chosen_formats
            if how.spec.name == "gad":
                _, expected = case.decode(how, engine=Engine())
                assert [sentence.emitted for sentence in stats] == [sentence.emitted for sentence in expected]


def test_weights_outlive_the_parameters_that_they_were_read_from() -> None:
    task, model, sample = make_all(30, 1, [5, 3])
    with mock.patch.object(native_model, "NARROW", 0):
        generator, _ = make_generator([model], task, Options("greedy"), max_len_b=20)
        generator.weights_are_fixed = True
        before = generator.generate([model], sample)
    for parameter in model.parameters():
        parameter.data = torch.full_like(parameter, torch.nan)
    assert_same_output(generator.generate([model], sample), before, tolerance=0)


def _other_encoder(model: Any) -> Any:
    class Other(type(model.encoder)):  # type: ignore[misc]
        def forward_embedding(self, *args: Any, **kwargs: Any) -> Any:
            return super().forward_embedding(*args, **kwargs)

    model.encoder.__class__ = Other
    return model


def _other_projection(model: Any) -> Any:
    class Other(type(model.decoder)):  # type: ignore[misc]
        runs_in_cached_decoder = True

        def output_layer(self, features: Tensor) -> Tensor:
            return super().output_layer(features)

    model.decoder.__class__ = Other
    return model


@pytest.mark.parametrize(
    ("options", "change", "reason"),
    [
        ({}, lambda model: model, ""),
        ({"activation_fn": "gelu"}, lambda model: model, ""),
        # PyTorch encodes, and the kernels decode.
        ({}, _other_encoder, ""),
        ({"activation_fn": "tanh"}, lambda model: model, "the kernels do not support the activation tanh"),
        ({"decoder_output_dim": 12}, lambda model: model, "another width than the layers"),
        ({}, _other_projection, "the vocabulary projection of Other is not a linear layer"),
        ({}, nn.Module.double, "the weights are in float64 on cpu"),
    ],
)
def test_what_the_kernels_cannot_run(options: dict[str, Any], change: Callable[[Any], Any], reason: str) -> None:
    """Models that the kernels do not support run in PyTorch, with a reason; the output equals fairseq's."""
    task, model, sample = make_all(30, 0, [4, 0, 9], **options)
    model = change(model)
    generator, _ = make_generator([model], task, Options("greedy"), max_len_b=15)
    assert_same_output(generator.generate([model], sample), fairseq_greedy([model], task, sample, max_len_b=15))
    assert generator.backend.name == ("torch" if reason else "native")
    assert reason in generator.backend.reason


@pytest.mark.parametrize("convert", [Tensor.half, Tensor.double, lambda weight: weight.to("meta")])
def test_weights_of_other_types_or_elsewhere(convert: Callable[[Tensor], Tensor]) -> None:
    weights = NativeWeights()
    with pytest.raises(Unsupported, match="the weights are in"):
        weights.linear((convert(torch.ones(4, 4)), None))
    with pytest.raises(Unsupported, match="the weights are in"):
        weights.linear((torch.ones(4, 4), convert(torch.ones(4))))


MACHINE = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    500 kB\n"
V1 = {"memory.limit_in_bytes": "{}", "memory.usage_in_bytes": "90000", "memory.stat": "total_inactive_file 30000"}
V2 = {"memory.max": "{}", "memory.current": "90000", "memory.stat": "anon 5\ninactive_file 30000"}


@pytest.mark.parametrize("version", [V1, V2], ids=["1", "2"])
@pytest.mark.parametrize(
    ("limit", "expected"), [("100000", 40000), ("max", 512000), ("9223372036854771712", 512000), ("50000", 0)]
)
def test_least_of_machine_and_container(version: dict[str, str], limit: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MACHINE)
    for name, text in version.items():
        (tmp_path / name).write_text(text.format(limit) + "\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == expected


def test_unknown_is_no_limit(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path) == math.inf
    assert available_memory() > 0

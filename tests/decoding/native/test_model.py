"""Weight formats of a model in the kernels, and models that are left to PyTorch."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_plugins.decoding.kernel_module import Unsupported
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.native import model as native_model
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from tests.cases import Case, cases
from tests.decoding.native.weight_formats import FORMATS, FP16_FORMAT, HAS_FP16, HAS_TILES
from tests.strategies import FEATURE_DRAFTERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)


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
    for available, expected in ((4 * weight.nbytes, FORMATS.PANELS), (4 * weight.nbytes - 1, FORMATS.ROWS)):
        monkeypatch.setattr(native_model, "available_memory", lambda available=available: available)
        assert format_of(weight) == expected
        assert format_of(weight[:300]) == FORMATS.PANELS, "small"


def test_large_fp16_weights_are_packed_in_tiles_that_hold_them() -> None:
    large, in_tiles = torch.ones(2048, 544), FORMATS.FP16_AMX_TILES if HAS_TILES else FP16_FORMAT
    assert format_of(large) == in_tiles
    assert format_of(large[:, :530]) == FP16_FORMAT, "no whole blocks of inputs"
    assert format_of(large * 64) == FP16_FORMAT, "1024 times as much is no half"
    assert format_of(large / 3) == FORMATS.PANELS
    assert format_of(large[:64]) == FP16_FORMAT, "near, where a row takes tiles twice the time"
    assert format_of(large[:64], many_rows=True) == in_tiles


@pytest.mark.parametrize("number", [1 + 2**-11, 1e-9, 70000.0, torch.nan])
def test_weights_that_fp16_rounds_are_not_packed_in_fp16(number: float) -> None:
    weight = torch.ones(20, 3)
    assert format_of(weight) == FP16_FORMAT
    weight[7, 1] = number
    assert format_of(weight) == FORMATS.PANELS


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
    count = rounded("gad")
    assert count > 14
    assert rounded("gad++", **relaxed) == rounded("iad", iad_fallback="gad") == count
    assert rounded("gad", fp32_drafts=True) == rounded("gad++", **relaxed, fp32_drafts=True) == 0
    assert rounded("greedy") == 0
    # The kernels do not support acceptance by the drafter's scores.
    literal, _ = make_generator([verifier], task, Options("gad++", 4, **relaxed, accept_score="drafter"), drafter)
    assert literal.backend.name == "torch" and "--accept-score drafter" in literal.backend.reason


def test_rounded_drafts_are_as_good() -> None:
    task = make_task(9)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [4, 0, 12, 7, 20, 3], 1)
    for fp32_drafts in (True, False):
        how = Options("gad", 12, fp32_drafts=fp32_drafts)
        _, stats = decode([verifier], task, sample, how, drafter, max_len_b=30, min_len=20)
        assert emitted_per_iteration(stats) > 1.6


@settings(UNSHRUNK, max_examples=example_count(25))
@given(case=cases(50, FEATURE_DRAFTERS), packed=st.booleans())
def test_wide_weights_give_the_same(case: Case, packed: bool) -> None:
    """Compare unpacked and packed weights; tests/decoding/native/test_native_backend.py tests narrow models."""
    how = Options("gad", 4, fp32_drafts=True)
    with mock.patch.object(native_model, "NARROW", 0):
        ours, stats = case.decode(how, engine=NativeWeights(packed))
    assert_same_output(ours, case.fairseq())
    _, expected = case.decode(how, engine=Engine())
    assert [sentence.emitted for sentence in stats] == [sentence.emitted for sentence in expected]


def test_weights_outlive_the_parameters_that_they_were_read_from() -> None:
    task = make_task(30)
    model = make_transformer(task, 1)
    sample = make_sample(task, [5, 3])
    with mock.patch.object(native_model, "NARROW", 0):
        generator, _ = make_generator([model], task, Options("greedy"), max_len_b=20)
        generator.weights_are_fixed = True
        before = generator.generate([model], sample)
    for parameter in model.parameters():
        parameter.data = torch.full_like(parameter, torch.nan)
    assert_same_output(generator.generate([model], sample), before, tolerance=0)


# --------------------------------------------------------------------------------- what is left to PyTorch


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
    task = make_task(30)
    model = change(make_transformer(task, 0, **options))
    sample = make_sample(task, [4, 0, 9])
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


# ------------------------------------------------------------------- parts that do not fit each other are refused


def decoder_parts() -> dict[str, Any]:
    """Return the constructor arguments of a decoder with two layers of width 16."""
    model = make_transformer(make_task(30), 1, decoder_learned_pos=True)
    made: dict[str, Any] = {}
    weights = NativeWeights()
    real = weights.module.transformer

    def spy(layers: Any, embedding: Any, scale: Any, positions: Any, **more: Any) -> Any:
        made.update(layers=layers, embedding=embedding, scale=scale, positions=positions, **more)
        return real(layers, embedding, scale, positions, **more)

    with mock.patch.object(weights.module, "transformer", spy):
        weights.decoder(model.decoder)
    return made


def _with_layer(parts: dict[str, Any], **changes: Any) -> None:
    """Return a change of the first layer's fields; None removes one."""
    before, layer = parts["layers"][0], kernels().Layer()
    for name in (name for name in dir(layer) if not name.startswith("_")):
        value = changes.get(name, getattr(before, name))
        if value is not None:
            setattr(layer, name, value)
    parts["layers"][0] = layer


def _linear(inputs: int, outputs: int) -> Any:
    return NativeWeights().linear((torch.ones(outputs, inputs), None))


def _norm(width: int) -> Any:
    return kernels().Norm(torch.ones(width), torch.zeros(width), 1e-5)


# (change, error message)
LAYER_FLAWS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (lambda parts: parts.update(layers=[]), "without layers"),
    (lambda parts: parts.update(embedding=torch.ones(0, 16)), "vocabulary is empty"),
    (lambda parts: parts.update(embedding=torch.ones(30, 12)), "another width"),
    (lambda parts: parts.update(positions=torch.ones(9, 12)), "another width"),
    (lambda parts: parts.update(projection=_linear(12, 30)), "the projection does not fit the width"),
    (lambda parts: parts.update(final_norm=_norm(12)), "a normalisation has another width"),
    (lambda parts: parts.update(embedding_norm=_norm(17)), "a normalisation has another width"),
    (lambda parts: _with_layer(parts, heads=3), "the heads do not divide the width"),
    (lambda parts: _with_layer(parts, heads=0), "the heads do not divide the width"),
    (lambda parts: _with_layer(parts, heads=-4), "the heads do not divide the width"),
    (lambda parts: _with_layer(parts, self_norm=_norm(12)), "a normalisation has another width"),
    (lambda parts: _with_layer(parts, cross_norm=kernels().Norm()), "a normalisation has another width"),
    (lambda parts: _with_layer(parts, cross_query=None), "only some layers have cross-attention"),
    (lambda parts: _with_layer(parts, cross_out=_linear(16, 12)), "cross_out is 16 by 12"),
    (lambda parts: _with_layer(parts, cross_out=None), "cross_out is missing"),
    (lambda parts: _with_layer(parts, cross_key_value=None), "cross_key_value is missing"),
    (lambda parts: _with_layer(parts, cross_key_value=_linear(16, 16)), "cross_key_value is 16 by 16"),
    (lambda parts: _with_layer(parts, self_qkv=_linear(16, 16)), "self_qkv is 16 by 16"),
    (lambda parts: _with_layer(parts, self_qkv=None), "self_qkv is missing"),
    (lambda parts: _with_layer(parts, fc1=None), "fc1 is missing"),
    (lambda parts: _with_layer(parts, fc2=_linear(7, 16)), "fc2 is 7 by 16"),
]


@pytest.mark.parametrize(("change", "message"), LAYER_FLAWS)
def test_layers_that_do_not_fit_each_other(change: Callable[[dict[str, Any]], None], message: str) -> None:
    parts = decoder_parts()
    assert kernels().transformer(**parts) is not None
    change(parts)
    with pytest.raises(ValueError, match=message):
        kernels().transformer(**parts)


PATH = {
    "ids": torch.arange(30),
    "before": torch.ones(30, 4),
    "after": (4, 30),
    "gru_hidden": (16, 15),
    "gru_token": (4, 15),
    "gru_recurrent": (5, 15),
    "to_rank": (5, 4),
}


PATH_FLAWS: list[tuple[dict[str, Any], str]] = [
    ({"ids": torch.arange(29)}, "scores are of other tokens"),
    ({"before": None}, "scores are of other tokens"),
    ({"before": torch.ones(30, 5)}, "another width"),
    ({"ids": torch.arange(1, 31)}, "an unknown token"),
    ({"ids": torch.arange(30) - 1}, "an unknown token"),
    ({"gru_token": (4, 12)}, "do not fit each other"),
    ({"gru_token": (3, 15)}, "do not fit each other"),
    ({"gru_recurrent": (5, 12)}, "do not fit each other"),
    ({"gru_recurrent": (4, 15)}, "do not fit each other"),
    ({"to_rank": (4, 4)}, "do not fit each other"),
    ({"to_rank": (5, 3)}, "do not fit each other"),
    ({"ids": torch.arange(0), "after": None}, "a path has no tokens"),
    ({"after": None}, "do not fit each other"),
    ({"gru_token": None}, "do not fit each other"),
    ({"gru_hidden": None}, "do not fit each other"),
]


def make_path(**parts: Any) -> Any:
    """Return a path; a pair of numbers stands for a layer with these numbers of inputs and outputs."""
    return kernels().Path(**{name: _linear(*x) if isinstance(x, tuple) else x for name, x in parts.items()})


@pytest.mark.parametrize(("changes", "message"), PATH_FLAWS)
def test_paths_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    assert make_path(**PATH) is not None
    with pytest.raises(ValueError, match=message):
        make_path(**{**PATH, **changes})


def test_masks_that_do_not_fit() -> None:
    weights = kernels().MaskWeights
    assert weights(torch.ones(16), None, None) is not None
    assert weights(torch.ones(16), _linear(16, 16), torch.ones(9, 16)) is not None
    for arguments in (
        (torch.ones(16), _linear(16, 12), torch.ones(9, 16)),
        (torch.ones(16), _linear(16, 16), None),
        (torch.ones(16), _linear(16, 16), torch.ones(9, 12)),
    ):
        with pytest.raises(ValueError, match="another width|do not fit each other"):
            weights(*arguments)

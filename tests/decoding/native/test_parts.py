"""The kernels refuse layers, paths and masks whose parts do not fit each other."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.native.model import NativeWeights
from tests.support import make_task, make_transformer


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
    (
        lambda parts: parts.update(embedding=torch.ones(30, 16, dtype=torch.int8), embedding_scales=torch.ones(29)),
        "the scales of the embedding have another size",
    ),
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

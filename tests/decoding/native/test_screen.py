"""The int8 copy of the vocabulary projection bounds its scores, and the tokens and log-probabilities stay the same."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.checkpoint.compact_weights import CompactWeight
from fairseq_plugins.checkpoint.int8_weights import round_to_int8
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.native.model import NativeWeights
from tests.decoding.native.weight_formats import FORMATS
from tests.strategies import DETERMINISTIC, example_count
from tests.support import Options, ids, make_generator, make_sample, make_task, make_transformer, scores

MANY, UNK = 3000, 3


def apply(weight: Tensor, bias: Tensor | None, weight_format: Any, x: Tensor) -> tuple[Tensor, Any]:
    layer = kernels().linear(weight, bias, None, format=weight_format, batch_invariant=True)
    return torch.from_numpy(layer(x)).view(len(x), -1), layer


@settings(DETERMINISTIC, max_examples=example_count(100))
@given(
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 60),
    exponents=st.tuples(*[st.integers(-30, 12)] * 3) | st.tuples(*[st.integers(-145, 127)] * 3),
    outliers=st.integers(0, 3),
    seed=st.integers(0, 999),
)
def test_bound_holds(inputs: int, outputs: int, exponents: tuple[int, int, int], outliers: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (
        torch.randn(*size, generator=generator) * 2.0**exponent
        for size, exponent in zip([(3, inputs), (outputs, inputs), (outputs,)], exponents, strict=True)
    )
    for values in (x, weight):
        values.view(-1)[torch.randint(values.numel(), (outliers,), generator=generator)] *= 100
    exact, _ = apply(weight, bias, FORMATS.PANELS, x)
    rounded, layer = apply(weight, bias, FORMATS.INT8, x)
    for row in range(len(x)):
        error = (rounded[row] - exact[row]).abs().max().item()
        bound = layer.error_bound(x[row])
        assert error <= bound or bound == torch.inf
        # Not so loose that nothing is saved.
        size = x[row].norm() * weight.norm(dim=1).max() + bias.abs().max()
        assert bound <= 0.05 * size * (1 + 4 * outliers) or not -31 < min(exponents) <= max(exponents) < 13


def test_bound_holds_for_weights_that_are_stored_in_int8() -> None:
    """Their inputs are rounded nevertheless."""
    weight = CompactWeight(*round_to_int8(torch.randn(100, 64)))
    x, weights = torch.randn(20, 64), NativeWeights()
    layers = weights.linear((weight, None)), weights.screen((weight, None))["screen"]
    exact, rounded = (torch.from_numpy(layer(x)).view(20, -1) for layer in layers)
    errors, bounds = (rounded - exact).abs().amax(1), torch.tensor([layers[1].error_bound(row) for row in x])
    assert (errors <= bounds).all() and (bounds < 0.05 * x.norm(dim=1) * weight.restored().norm(dim=1).max()).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e19])
@pytest.mark.parametrize("place", ["x", "weight", "bias"])
def test_no_bound_of_what_is_not_finite(value: float, place: str) -> None:
    """Nor of numbers that may overflow in sums."""
    given = {"x": torch.ones(1, 8), "weight": torch.ones(20, 8), "bias": torch.ones(20)}
    given[place].view(-1)[3] = value
    _, layer = apply(given["weight"], given["bias"], FORMATS.INT8, given["x"])
    assert layer.error_bound(given["x"][0]) == torch.inf


def close_words(weight: Tensor, exponent: int) -> None:
    """Give words that are alike to a projection [V, D]: equal ones, and ones that differ by about 2^exponent."""
    half = len(weight) // 2
    weight[half : 2 * half] = weight[:half] + torch.randn(half, weight.size(1)) * 2.0**exponent
    weight[half + 7 : half + 300] = weight[7:300]


@pytest.mark.parametrize("decoder", ["greedy", "jacobi", "iad"])
@pytest.mark.parametrize("exponent", [-23, -12, -6])
def test_close_scores(decoder: str, exponent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and many sentences, with log-probabilities at once, later, and not at all."""
    torch.manual_seed(exponent)
    task = make_task(MANY)
    model = make_transformer(task, 1)
    with torch.no_grad():
        close_words(model.decoder.output_projection.weight, exponent)
    samples = [make_sample(task, lengths) for lengths in ([7], [5, 3, 9], list(range(2, 30)))]
    search: dict[str, Any] = {"max_len_b": 12, "min_len": 4, "unk_penalty": -3.0}

    def decode(needs_scores: bool, cached: int) -> list[Any]:
        generator, _ = make_generator([model], task, Options(decoder), engine=NativeWeights(cached=cached), **search)
        generator.needs_scores = needs_scores
        return [each for sample in samples for each in generator.generate([model], sample)]

    found = {scored: [decode(scored, cached) for cached in (0, 2**22)] for scored in (True, False)}
    with monkeypatch.context() as without:
        without.setattr(NativeWeights, "screen", lambda *_: {})
        expected = decode(True, 0)
    assert all(ids(each) == ids(expected) for each in (*found[True], *found[False]))
    for each in found[True]:
        assert all(torch.equal(own, wanted) for own, wanted in zip(scores(each), scores(expected), strict=True))
    tokens = [token for output in ids(expected) for token in output]
    assert len(set(tokens)) > 10 and UNK in tokens


def test_scores_that_are_not_numbers_are_refused() -> None:
    task = make_task(40)
    model = make_transformer(task, 1)
    with torch.no_grad():
        model.decoder.output_projection.weight[9, 2] = torch.nan
    generator, _ = make_generator([model], task, Options("greedy"))
    generator.needs_scores = False
    with pytest.raises(RuntimeError, match="NaN"):
        generator.generate([model], make_sample(task, [4]))

"""`--int8` gives the output of the model with rounded weights, with any drafts, and is reported as lossy."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from fairseq.models.transformer import TransformerModel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_plugins.decoding.checks import check_fit
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.native.model import NativeWeights
from fairseq_plugins.decoding.engine.weights import Precision, dequantized, quantized
from fairseq_plugins.errors import ConfigurationError
from tests.cases import Case, cases
from tests.decoding.methods.test_untrained import METHODS
from tests.strategies import DETERMINISTIC, DRAFTERS, FEATURE_DRAFTERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_args,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)


@pytest.fixture(params=[NativeWeights, Engine], ids=["native", "torch"])
def engine(request: pytest.FixtureRequest) -> Engine | NativeWeights:
    """Engines with int8 weights: the compiled kernels and PyTorch."""
    return request.param(precision=Precision.INT8_WEIGHTS)


def rounded(model: TransformerModel) -> TransformerModel:
    """Return a stock fairseq model whose fp32 weights are the dequantised int8 weights."""
    model = copy.deepcopy(model)
    output = model.decoder.output_projection
    # A copy, since embeddings stay in fp32.
    output.weight = nn.Parameter(output.weight.detach().clone())
    linears = [
        module
        for part in (model.encoder, model.decoder)
        for layer in part.layers
        for module in layer.modules()
        if isinstance(module, nn.Linear)
    ]
    for module in (*linears, output):
        module.weight.data = dequantized(quantized((module.weight, None)))[0]
    return model


@settings(DETERMINISTIC, max_examples=example_count(60))
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 40),
    has_bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_linear_layers_of_any_size(
    engine: Engine | NativeWeights, rows: int, inputs: int, outputs: int, has_bias: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((rows, inputs), (outputs, inputs), (outputs,)))
    weight[0] = 0
    layer = quantized((weight, bias if has_bias else None))
    restored, _ = dequantized(layer)
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((restored - weight).abs() <= step / 2 + 1e-6).all()
    assert layer.weight.dtype == torch.int8
    y = engine.linear(layer)(x)
    y = torch.from_numpy(y).view(rows, outputs) if isinstance(engine, NativeWeights) else y
    torch.testing.assert_close(y, F.linear(x, restored, layer.bias), rtol=1e-4, atol=1e-4)


@settings(UNSHRUNK, max_examples=example_count(12))
@given(case=cases(12))
def test_greedy_is_fairseqs_with_rounded_weights(engine: Engine | NativeWeights, case: Case) -> None:
    ours, _ = case.decode(Options("greedy"), engine=engine)
    assert_same_output(ours, fairseq_greedy([rounded(case.verifier)], case.task, case.sample, **case.search))


@settings(UNSHRUNK, max_examples=example_count(12))
@given(case=cases(12, st.one_of(DRAFTERS, FEATURE_DRAFTERS)), block_size=st.sampled_from([1, 3, 10]))
def test_gad_equals_greedy(engine: Engine | NativeWeights, case: Case, block_size: int) -> None:
    greedy, _ = case.decode(Options("greedy"), engine=engine)
    drafted, _ = case.decode(Options("gad", block_size), engine=engine)
    assert_same_output(drafted, greedy)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_other_drafters_equal_greedy(engine: Engine | NativeWeights, method: Options) -> None:
    task = make_task(9)
    models = [make_transformer(task, 3), make_transformer(task, 4, decoder_layers=1)]
    sample = make_sample(task, [4, 0, 12, 7], 3)
    # One model, and an ensemble, which the kernels do not support.
    for verifiers in (models[:1], models):
        greedy, _ = decode(verifiers, task, sample, Options("greedy"), engine=engine, max_len_b=20)
        drafted, stats = decode(verifiers, task, sample, method, engine=engine, max_len_b=20)
        assert_same_output(drafted, greedy)
        if method.spec.name == "jacobi":
            assert emitted_per_iteration(stats) > 1.4


def test_drafts_are_accepted(engine: Engine | NativeWeights) -> None:
    task = make_task(9)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [4, 0, 12, 7, 20, 3], 1)
    _, stats = decode([verifier], task, sample, Options("gad", 12), drafter, engine=engine, max_len_b=30, min_len=20)
    assert emitted_per_iteration(stats) > 1.6


def test_output_differs_from_fp32(engine: Engine | NativeWeights) -> None:
    task = make_task(200)
    model = make_transformer(task, 1)
    sample = make_sample(task, [9, 4, 12, 7, 20, 15, 3, 30], 1)
    in_fp32 = replace(engine, precision=Precision.FP32)
    fp32, int8 = (
        decode([model], task, sample, Options("greedy"), engine=one, max_len_b=30)[0] for one in (in_fp32, engine)
    )
    assert ids(fp32) != ids(int8)


def test_summary_calls_it_lossy() -> None:
    task = make_task(9)
    task.cfg.decoding_method = "greedy"
    for task.cfg.int8, name in ((False, "greedy"), (True, "greedy int8 (lossy: weights rounded)")):
        assert task.build_generator([make_transformer(task, 1)], make_args(beam=1)).stats.decoder == name


def test_unsupported_runs_are_refused() -> None:
    task = make_task(9)
    half, elsewhere = make_transformer(task, 1).half(), make_transformer(task, 1).to("meta")
    for model, message in (
        (half, "--int8: rounds fp32 weights, and this model is in float16"),
        (elsewhere, "--int8: is for the CPU, and this model is on meta"),
    ):
        method = Options("greedy", int8=True)
        with pytest.raises(ConfigurationError, match=message):
            check_fit(method.spec, method.options, method.context([model], None, task))

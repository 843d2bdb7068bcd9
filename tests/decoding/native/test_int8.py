"""`--int8` rounds weights and inputs, equally in all engines, batches and with any drafts, and is reported as lossy."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.checks import check_fit
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.weights import dequantized, quantized
from tests.cases import Case, cases
from tests.decoding.methods.test_untrained import METHODS
from tests.errors import refused
from tests.strategies import DRAFTERS, FEATURE_DRAFTERS, UNSHRUNK, example_count
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
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
    return request.param(int8=True)


@pytest.mark.parametrize("has_bias", [True, False])
def test_quantised_weights_are_near(has_bias: bool) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(40, 70), torch.randn(40)
    weight[0] = 0
    layer = quantized((weight, bias if has_bias else None))
    restored, kept = dequantized(layer)
    step = weight.abs().amax(1, keepdim=True) / 127
    assert ((restored - weight).abs() <= step / 2 + 1e-6).all()
    assert layer.weight.dtype == torch.int8 and (kept is None) == (not has_bias)


@settings(UNSHRUNK, max_examples=example_count(12))
@given(case=cases(12))
def test_kernels_give_the_output_of_pytorch(case: Case) -> None:
    ours, theirs = (case.decode(Options("greedy"), engine=kind(int8=True))[0] for kind in (NativeWeights, Engine))
    assert_same_output(ours, theirs)


def test_output_does_not_depend_on_the_batch(engine: Engine | NativeWeights) -> None:
    task = make_task(300)
    model = make_transformer(task, 5)
    lengths = [4, 30, 12, 7, 0, 19, 3, 25, 11]
    whole, _ = decode([model], task, make_sample(task, lengths, 2), Options("greedy"), engine=engine, max_len_b=25)
    sample = make_sample(task, lengths, 2)
    for number in range(len(lengths)):
        tokens, length = (sample["net_input"][name][number : number + 1] for name in ("src_tokens", "src_lengths"))
        alone = {
            **sample,
            "id": sample["id"][number : number + 1],
            "net_input": {**sample["net_input"], "src_tokens": tokens, "src_lengths": length},
        }
        (single,), _ = decode([model], task, alone, Options("greedy"), engine=engine, max_len_b=25)
        assert ids([single]) == ids([whole[number]])


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
    in_fp32 = replace(engine, int8=False)
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
        with refused(message):
            check_fit(method.spec, method.options, method.context([model], None, task))

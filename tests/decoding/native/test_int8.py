"""`--int8` rounds weights and inputs, equally in all engines, batches and with any drafts, and is reported as lossy."""

import pytest
import torch

from fairseq_plugins.decoding.checks import check_fit
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.weights import dequantized, quantized
from tests.errors import refused
from tests.support import Options, assert_same_hypotheses, decode, make_all, make_args, make_task, make_transformer


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


@pytest.mark.parametrize("how", [Options("greedy"), Options("jacobi"), Options("fast-beam")], ids=str)
def test_kernels_give_the_output_of_pytorch(how: Options) -> None:
    """Products are equal bit for bit (test_linear.py); the sums before them may differ by rounding."""
    task, model, sample = make_all(200, 6, [5, 0, 12, 3])
    search = {"beam_size": 4 if how.spec.searches_beams else 1, "max_len_b": 20}
    ours, theirs = (
        decode([model], task, sample, how, engine=kind(int8=True), **search)[0] for kind in (NativeWeights, Engine)
    )
    assert_same_hypotheses(ours, theirs)


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

"""What decoding switches off is off while it runs, and as it was afterwards; which attention ran can be seen."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fairseq_plugins.decoding.reference.arithmetic import exact_arithmetic
from fairseq_plugins.decoding.reference.engine import Engine
from tests.support import Options, make_generator, make_sample, make_task, make_transformer

MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
GPU = torch.device("cuda")


def switches() -> list[Any]:
    return [
        MATMUL.allow_tf32,
        CUDNN.allow_tf32,
        MATMUL.allow_fp16_reduced_precision_reduction,
        MATMUL.allow_bf16_reduced_precision_reduction,
        torch.backends.cuda.cudnn_sdp_enabled(),
    ]


def split_k() -> list[Any]:
    """Of PyTorch's newer versions."""
    return [getattr(MATMUL, f"allow_{kind}_reduced_precision_reduction_split_k", None) for kind in ("fp16", "bf16")]


@pytest.fixture
def settings() -> Iterator[None]:
    """PyTorch as it was, after the test."""
    before = switches()
    yield
    MATMUL.allow_tf32, CUDNN.allow_tf32 = before[:2]
    MATMUL.allow_fp16_reduced_precision_reduction, MATMUL.allow_bf16_reduced_precision_reduction = before[2:4]
    torch.backends.cuda.enable_cudnn_sdp(before[4])


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("tf32", [True, False])
def test_switches_are_off_and_come_back(tf32: bool) -> None:
    MATMUL.allow_tf32 = CUDNN.allow_tf32 = tf32
    before = switches()
    with pytest.raises(KeyError), exact_arithmetic(GPU):
        assert switches() == [False] * 5
        raise KeyError
    assert switches() == before and any(before)
    with exact_arithmetic(torch.device("cpu")):
        assert switches() == before


@pytest.mark.usefixtures("settings")
@pytest.mark.skipif(split_k()[0] is None, reason="a setting of newer versions of PyTorch")
def test_split_k_comes_back() -> None:
    MATMUL.allow_fp16_reduced_precision_reduction = MATMUL.allow_bf16_reduced_precision_reduction = (False, False)
    with exact_arithmetic(GPU):
        assert split_k() == [False, False]
    assert split_k() == [False, False]


@pytest.mark.usefixtures("settings")
@pytest.mark.skipif(not hasattr(MATMUL, "fp32_precision"), reason="a name of torch 2.9")
def test_the_newer_name_of_a_switch() -> None:
    """Where TF32 was allowed by it, the older one cannot be read."""
    before = MATMUL.fp32_precision
    try:
        MATMUL.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            _ = MATMUL.allow_tf32
        with exact_arithmetic(GPU):
            assert MATMUL.fp32_precision == "ieee"
        assert MATMUL.fp32_precision == "tf32"
    finally:
        MATMUL.fp32_precision = before


def test_decoding_runs_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the device of the batch, whoever calls the generator."""
    devices = []
    task = make_task(20)
    verifier = make_transformer(task)

    def spy(device: torch.device) -> Any:
        devices.append(device.type)
        return exact_arithmetic(device)

    monkeypatch.setattr("fairseq_plugins.decoding.reference.backend.exact_arithmetic", spy)
    generator, _ = make_generator([verifier], task, Options("greedy"), engine=Engine(), max_len_b=5)
    generator.generate([], make_sample(task, [3]))
    assert devices == ["cpu"]
    devices.clear()
    iterations = len(list(generator.steps(make_sample(task, [3]))))
    # Every time, and not for whoever looks at a step in between.
    assert devices == ["cpu"] * (iterations + 1)

"""Triton's kernels, interpreted on a CPU where Triton is installed, and compiled on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

NEEDS_TRITON = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: 1 GB; PyTorch for CUDA brings it"
)


@NEEDS_TRITON
def test_interpreted() -> None:
    """In a process of its own: whether Triton interprets is decided when it is imported."""
    command = [sys.executable, "-m", "tests.decoding.engine.triton_checks"]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)


@NEEDS_TRITON
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled(dtype: torch.dtype) -> None:
    from tests.decoding.engine.triton_checks import check_attention, check_linear

    check_linear("cuda", dtype)
    check_attention("cuda", dtype)

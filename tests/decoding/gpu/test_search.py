"""Greedy search, sampling and continuous batches of the GPU engine in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: 1 GB; PyTorch for CUDA brings it"
)


@pytest.mark.parametrize("checks", ["search_checks", "sampling_checks", "continuous_checks"])
def test_interpreted(checks: str) -> None:
    """In a process of its own: whether Triton interprets is decided when it is imported."""
    command = [sys.executable, "-m", f"tests.decoding.gpu.{checks}"]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)

"""All checks in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: 1 GB; PyTorch for CUDA brings it")
def test_interpreted() -> None:
    """In a process of its own: whether Triton interprets is decided when it is imported."""
    command = [sys.executable, "-m", "tests.decoding.gpu.interpreted"]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)

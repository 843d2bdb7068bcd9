"""Triton's kernels, interpreted on a CPU where Triton is installed, and compiled on a GPU."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from fairseq_plugins.decoding.reference import fixed_shapes

NEEDS_TRITON = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: 1 GB; PyTorch for CUDA brings it"
)


@NEEDS_TRITON
def test_interpreted() -> None:
    """In a process of its own: whether Triton interprets is decided when it is imported."""
    command = [sys.executable, "-m", "tests.decoding.reference.captured.triton_checks"]
    subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, check=True)


def test_the_first_compilation_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where Triton's cache does not have the kernels, which it names after its functions."""
    monkeypatch.setattr(fixed_shapes, "find_spec", lambda name: True)
    monkeypatch.setattr(fixed_shapes, "import_module", lambda name: None)
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    fixed_shapes.triton_kernels.__wrapped__()
    assert capsys.readouterr().err.startswith("Triton compiles two kernels for this GPU before the first step")
    compiled = tmp_path / ".triton/cache/of-a-hash/_attention.json"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    fixed_shapes.triton_kernels.__wrapped__()
    assert not capsys.readouterr().err


@NEEDS_TRITON
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled(dtype: torch.dtype) -> None:
    from tests.decoding.reference.captured.triton_checks import check_attention, check_linear

    check_linear("cuda", dtype)
    check_attention("cuda", dtype)

"""Triton's kernels, compiled on a GPU; tests/decoding/gpu/test_interpreted.py interprets them."""

from pathlib import Path
from unittest import mock

import pytest
import torch

from fairseq_plugins.decoding.reference import fixed_shapes


def test_the_first_compilation_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where Triton's cache does not have the kernels, which it names after its functions."""
    monkeypatch.setattr(fixed_shapes, "find_spec", lambda name: True)
    monkeypatch.setattr(fixed_shapes, "import_module", lambda name: mock.MagicMock())
    monkeypatch.setenv("TRITON_HOME", str(tmp_path))
    fixed_shapes.triton_kernels.__wrapped__()
    assert capsys.readouterr().err.startswith("Triton compiles two kernels for this GPU before the first step")
    compiled = tmp_path / ".triton/cache/of-a-hash/_attention.json"
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    fixed_shapes.triton_kernels.__wrapped__()
    assert not capsys.readouterr().err


def test_without_a_compiler_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    triton = mock.MagicMock()
    triton.runtime.driver.active.get_current_target.side_effect = RuntimeError("Failed to find C compiler.\nPlease")
    monkeypatch.setattr(fixed_shapes, "find_spec", lambda name: True)
    monkeypatch.setattr(fixed_shapes, "import_module", lambda name: triton)
    assert fixed_shapes.triton_kernels.__wrapped__() is None
    assert caplog.messages == [
        "half precision: steps take many launches: Triton cannot compile (Failed to find C compiler. Please); it needs "
        "gcc, Python's headers, and a TRITON_CACHE_DIR to write to"
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_compiled(dtype: torch.dtype) -> None:
    from tests.decoding.reference.captured.triton_checks import compare_attention, compare_linear

    compare_linear("cuda", dtype)
    compare_attention("cuda", dtype)

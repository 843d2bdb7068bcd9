"""Errors of fairseq's tools as one line that names the file; all others keep their traceback."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor

from fairseq_plugins.checkpoint.tool_errors import explain_in_tool
from fairseq_plugins.errors import on_command_line
from tests.support import REPOSITORY, make_task


def explained(action: Callable[..., Any], *arguments: object) -> str | None:
    """Return the one-line message of a failing call."""
    with pytest.raises(Exception) as caught:  # noqa: PT011, B017
        action(*arguments)
    error = explain_in_tool(caught.value)
    return None if error is None else error.spelled(on_command_line)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A checkpoint of which the rest is missing."""
    path = tmp_path / "half.pt"
    path.write_bytes(b"PK\x03\x04 and no more")
    return path


@pytest.mark.parametrize("option", ["--path", "--restore-file", "--finetune-from-model"])
def test_checkpoint_that_cannot_be_read(half: Path, monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    tool = "generate" if option == "--path" else "train"
    arguments = ["data", option, str(half), *(["--arch", "transformer"] if tool == "train" else [])]
    monkeypatch.setattr("sys.argv", [f"fairseq-{tool}", *arguments])
    message = explained(checkpoint_utils.load_checkpoint_to_cpu, str(half))
    assert message is not None and message.startswith(f"{option} {half}: truncated")


def test_last_checkpoint_of_a_training(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = half.rename(half.with_name("checkpoint_last.pt"))
    monkeypatch.setattr("sys.argv", ["fairseq-train", "data", "--arch", "transformer", "--save-dir", str(last.parent)])
    message = explained(checkpoint_utils.load_checkpoint_to_cpu, str(last))
    assert message is not None and message.startswith(f"{last}: truncated")


def test_one_of_several_checkpoints(half: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = half.with_name("none.pt")
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", f"{half}:{other}"])
    assert (explained(checkpoint_utils.load_model_ensemble, [str(half)], None, make_task()) or "").startswith(
        f"--path {half}: truncated"
    )
    whole = str(REPOSITORY / "checkpoints/cldr.en-de/verifier.pt")
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", whole])
    assert explained(checkpoint_utils.load_checkpoint_to_cpu, str(half)) is None  # of a file that was not given
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", str(other)])
    message = explained(checkpoint_utils.load_model_ensemble, [str(other)], None, make_task())
    assert message is not None and message.startswith(f"--path {other}: no such file; give the checkpoint")


def test_dictionaries_and_subwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dict.en.txt").write_text("a 1\n")
    (tmp_path / "dict.de.txt").write_text("a\n")
    (tmp_path / "subwords.model").write_text("none")
    monkeypatch.setattr("sys.argv", ["fairseq-generate", str(tmp_path), "--path", "x.pt"])
    message = explained(Dictionary.load, str(tmp_path / "dict.de.txt"))
    assert message is not None and message.startswith(
        f"{tmp_path}/dict.de.txt: not a dictionary of fairseq-preprocess ("
    )
    (tmp_path / "dict.de.txt").unlink()
    model = str(tmp_path / "subwords.model")
    monkeypatch.setattr(
        "sys.argv", ["fairseq-interactive", str(tmp_path), "--bpe", "sentencepiece", f"--sentencepiece-model={model}"]
    )
    message = explained(SentencePieceProcessor, model)
    assert message is not None and message.startswith(f"{model}: not a model of sentencepiece (")


def test_gpu_out_of_memory() -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")

    message = explained(fail)
    assert message is not None and message.startswith("out of memory on the GPU (CUDA out of memory. Tried to allocate")
    assert "--batch-size" in message and "\n" not in message


@pytest.mark.parametrize("error", [RuntimeError("shape"), OSError("Model file not found: x"), KeyError("model")])
def test_errors_elsewhere_keep_their_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", "none.pt", "--results-path", "results"])

    def fail() -> None:
        raise error

    assert explained(fail) is None


def test_internal_errors_keep_their_traceback() -> None:
    layer = torch.nn.Linear(2, 3)
    assert explained(layer.load_state_dict, torch.nn.Linear(3, 3).state_dict()) is None

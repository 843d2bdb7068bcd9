"""Errors of fairseq's tools as one line that names the file; all others keep their traceback."""

import ast
import errno
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from sentencepiece import SentencePieceProcessor

from fairseq_plugins.checkpoint.tool_errors import explain_in_tool
from fairseq_plugins.decoding import gpu
from fairseq_plugins.decoding.gpu.backend import GpuBackend
from fairseq_plugins.decoding.kernel_backend import KernelBackend
from fairseq_plugins.errors import ConfigurationError, on_command_line
from fairseq_plugins.shared.cli import run_command
from tests.conftest import TINY, TRAINING, Corpus
from tests.support import make_task, make_transformer, run_in_process


def explained(action: Callable[..., Any], *arguments: object) -> str:
    """Return the one-line message of a failing call; empty if it keeps its traceback."""
    with pytest.raises(Exception) as caught:  # noqa: PT011, B017
        action(*arguments)
    error = explain_in_tool(caught.value)
    return "" if error is None else error.spelled(on_command_line)


@pytest.mark.parametrize(
    ("command", "start"),
    [
        ("generate data --path {half}", "--path {half}: truncated"),
        ("train data --arch transformer --restore-file {half}", "--restore-file {half}: truncated"),
        ("train data --arch transformer --finetune-from-model {half}", "--finetune-from-model {half}: truncated"),
        ("train data --arch transformer --save-dir {folder}", "{half}: truncated"),
        ("generate data --path {half}:none.pt", "--path {half}: truncated"),
        ("generate data --path checkpoints/cldr.en-de/verifier.pt", ""),  # the file was not given
    ],
)
def test_unreadable_file(command: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half = tmp_path / "checkpoint_last.pt"
    half.write_bytes(b"PK\x03\x04 and no more")
    monkeypatch.setattr("sys.argv", f"fairseq-{command}".format(half=half, folder=tmp_path).split())
    message = explained(checkpoint_utils.load_checkpoint_to_cpu, str(half))
    assert message.startswith(start.format(half=half)) and bool(message) == bool(start)


def test_a_last_checkpoint_that_was_cut_off_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("checkpoint_best.pt", "checkpoint_1_100.pt", "checkpoint_last.pt"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 and no more")
        os.utime(tmp_path / name, (1, len(name)))
    monkeypatch.setattr("sys.argv", f"fairseq-train data --arch transformer --save-dir {tmp_path}".split())
    message = explained(checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "checkpoint_last.pt"))
    assert "checkpoint_last.pt: cut off" in message and "copy checkpoint_1_100.pt in" in message


@pytest.mark.parametrize("writer", ["torch.save", "fairseq.file_io.PathManager.copy"])
def test_a_full_disk_is_named(writer: str, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last checkpoint is damaged: that of a resumed training is written over."""

    def fill_disk(*_: object, **__: object) -> None:
        (tmp_path / "checkpoint_last.pt").write_bytes(b"PK\x03\x04 and no more")
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            if writer == "torch.save":
                raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(writer, fill_disk)
    monkeypatch.setattr(checkpoint_utils.time, "sleep", lambda _: None)
    command = f"{corpus.data} --task translation --arch transformer {TINY} {TRAINING} --criterion cross_entropy"
    monkeypatch.setattr("sys.argv", ["fairseq-train", *f"{command} --max-update 1 --save-dir {tmp_path}".split()])
    message = explained(run_in_process, "train", f"{command} --max-update 1 --save-dir {tmp_path}")
    assert message.startswith(f"--save-dir {tmp_path}: cannot be written (No space left on device); free disk space")


def test_a_training_resumes_its_own_model(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.load(corpus.verifier)
    state["model"]["encoder.layers.0.fc1.bias"] += 1
    torch.save(state, tmp_path / "other.pt")
    command = (
        f"{corpus.data} --task spec_dec --arch block_nat {TINY} {TRAINING} --criterion glat_loss --max-update 1 "
        f"--no-save --share-encoder --restore-file {corpus.drafter}"
    )
    monkeypatch.setattr("sys.argv", ["fairseq-train", *command.split()])
    size = explained(run_in_process, "train", f"{command} --verifier-path {corpus.verifier} --block-size 9")
    assert size.startswith(f"{corpus.drafter}: does not fit this training's options")
    assert "(trained with --block-size 6, not 9; --init-decoder-from would start from its weights); give" in size
    other = explained(run_in_process, "train", f"{command} --verifier-path {tmp_path}/other.pt --block-size 6")
    assert other.startswith("--share-encoder: this drafter was trained on the states of another")


@pytest.mark.parametrize("given", ["", "--model-overrides {x"])
def test_an_option_that_was_not_given_is_not_to_blame(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs read literals, too, such as numpy in files of arrays."""
    monkeypatch.setattr("sys.argv", f"fairseq-generate data --path none.pt {given}".split())
    message = explained(ast.literal_eval, "{x")
    assert message.startswith(given) and bool(message) == bool(given)


def test_missing_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", "none.pt"])
    message = explained(checkpoint_utils.load_model_ensemble, ["none.pt"], None, make_task())
    assert message.startswith("--path none.pt: no such file; give the checkpoint")


def test_dictionaries_and_subwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dict.en.txt").write_text("a 1\n")
    (tmp_path / "dict.de.txt").write_text("a\n")
    (tmp_path / "subwords.model").write_text("none")
    monkeypatch.setattr("sys.argv", ["fairseq-generate", str(tmp_path), "--path", "x.pt"])
    message = explained(Dictionary.load, str(tmp_path / "dict.de.txt"))
    assert message.startswith(f"{tmp_path}/dict.de.txt: not a dictionary of fairseq-preprocess (")
    (tmp_path / "dict.de.txt").unlink()
    model = str(tmp_path / "subwords.model")
    command = ["fairseq-interactive", str(tmp_path), "--bpe", "sentencepiece", f"--sentencepiece-model={model}"]
    monkeypatch.setattr("sys.argv", command)
    assert explained(SentencePieceProcessor, model).startswith(f"{model}: not a model of sentencepiece (")


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line in fairseq's tools and in our commands."""
    file = tmp_path / "file"
    file.touch(mode=0)

    def read(*_: object) -> None:
        user = os.geteuid()
        os.seteuid(user or 65534)  # root may read all
        try:
            file.read_bytes()
        finally:
            os.seteuid(user)

    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", "none.pt", "--results-path", "results"])
    line = f"{file}: cannot be used (Permission denied); change its permissions, or give another"
    assert explained(read) == line
    assert run_command("spec-dec-x", read, []) == 2
    assert capsys.readouterr().err == f"spec-dec-x: error: {line}\n"


def test_no_place_for_locks() -> None:
    """fairseq makes one when it is imported."""
    refused = mock.Mock(side_effect=OSError(errno.EROFS, "Read-only file system"))
    with mock.patch("_multiprocessing.SemLock", refused):
        message = explained(multiprocessing.Lock)
    problem = "cannot be used (Read-only file system), and fairseq has locks there"
    assert message == f"/dev/shm: {problem}; let it be writable, in a container a tmpfs"


def test_gpu_out_of_memory() -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ...")

    message = explained(fail)
    assert message.startswith("out of memory on the GPU (CUDA out of memory. Tried to allocate")
    assert "--batch-size" in message and "\n" not in message
    full = explained(mock.Mock(side_effect=RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ...")))
    assert full.startswith("out of memory on the GPU (CUDA error: out of memory CUDA kernel")
    moved = torch.nn.Linear(2, 3)
    with mock.patch.object(torch.nn.Parameter, "cuda", fail, create=True):
        message = explained(moved.cuda)
    assert "; the model does not fit: add --fp16" in message and "--batch-size" not in message
    in_engine = compile("fail()", str(Path(gpu.__file__).with_name("search.py")), "exec")  # which needs Triton
    message = explained(exec, in_engine, {"fail": fail})
    assert "; give fewer --active-sentences, such as 32" in message and "--batch-size" not in message
    engine: Any = GpuBackend  # takes its memory when it is built
    context = SimpleNamespace(models=[make_transformer(make_task(40), 3)])
    with mock.patch.object(KernelBackend, "__init__", side_effect=fail), pytest.raises(ConfigurationError) as caught:
        engine(None, None, context)
    message = caught.value.spelled(on_command_line)
    assert message.endswith("; give fewer --active-sentences, such as 32, or decode with --cpu"), message


@pytest.mark.parametrize("results", ["{folder}", "{folder}/new", "{folder}/new/newer"])
def test_results_path_that_cannot_be_written(results: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = results.format(folder=tmp_path / "file")
    (tmp_path / "file").touch()
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", "none.pt", "--results-path", results])
    message = explained(os.makedirs, results)
    assert message.startswith(f"--results-path {results}: cannot be written (")
    assert message.endswith("; give a path in a writable folder")
    (tmp_path / "other").touch()
    assert explained(os.makedirs, str(tmp_path / "other" / "new")) == ""


@pytest.mark.parametrize("error", [RuntimeError("shape"), OSError("Model file not found: x"), KeyError("model")])
def test_errors_elsewhere_keep_their_traceback(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["fairseq-generate", "data", "--path", "none.pt", "--results-path", "results"])

    def fail() -> None:
        raise error

    assert explained(fail) == explained(torch.nn.Linear(2, 3).load_state_dict, torch.nn.Linear(3, 3).state_dict()) == ""


def test_an_error_beside_fp16_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq looks for a GPU in the function that copies the weights, which fails for other reasons, too."""
    monkeypatch.setattr("sys.argv", "fairseq-train data --arch transformer --fp16".split())

    def build_fp32_params(reason: str) -> None:
        raise RuntimeError(reason)

    assert explained(build_fp32_params, "Found no NVIDIA driver on your system").startswith("--fp16: trains on a GPU")
    assert explained(build_fp32_params, "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate") == ""

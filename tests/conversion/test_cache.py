"""`load` of a folder of Hugging Face converts it once, and again when its files change."""

import errno
import os
import warnings
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.conversion import convert as module
from fairseq_plugins.conversion.convert import convert
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import is_hugging_face, unwritable
from tests.conversion.support import save_model
from tests.errors import refused


def test_load_converts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("marian", tmp_path / "hf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls: list[Path] = []

    def noting(source: Path, target: Path) -> None:
        calls.append(source)
        convert(source, target)
        convert(source, target)  # another process may be faster

    monkeypatch.setattr(module, "convert", noting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # hydra's
        convert(tmp_path / "hf", tmp_path / "out")
    models = [fairseq_plugins.load(tmp_path / folder, device="cpu") for folder in ("hf", "hf", "out")]
    first, again, by_hand = ([t.tokens for t in one.translate_batch([["w7", "w9"], ["w8"]])] for one in models)
    assert first == again == by_hand and any(first)
    assert calls == [tmp_path / "hf"]
    save_model("bart", tmp_path / "hf")
    fairseq_plugins.load(tmp_path / "hf", device="cpu")
    assert calls == [tmp_path / "hf"] * 2
    os.utime(tmp_path / "hf" / "model.safetensors", (1, 1))  # written anew, with the same size
    fairseq_plugins.load(tmp_path / "hf", device="cpu")
    assert calls == [tmp_path / "hf"] * 3
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with refused("^.*/file/fairseq-spec-dec/hf.* cannot be written .*; set XDG_CACHE_HOME to a writable folder"):
        fairseq_plugins.load(tmp_path / "hf", device="cpu")
    error = unwritable(tmp_path / "file/fairseq-spec-dec/hf", "OUT", OSError(errno.ENOSPC, "No space left on device"))
    assert str(error).endswith("(No space left on device); free disk space, or set XDG_CACHE_HOME to another folder")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as of a user that only a container has
    with refused("^XDG_CACHE_HOME: is not set, and this user has no home folder for a cache; set it to a writable "):
        fairseq_plugins.load(tmp_path / "hf", device="cpu")
    assert "give a path in a writable folder" in str(unwritable("file", None, PermissionError()))


def test_errors_name_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "README.md").symlink_to("nowhere")  # a file that does not count
    with pytest.raises(ConfigurationError, match="model_type 'llama' is not converted"):
        fairseq_plugins.load(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "README.md"}


def test_other_files_of_a_trainer_do_not_matter(tmp_path: Path) -> None:
    for name in ("config.json", "optimizer.pt", "scheduler.pt"):
        (tmp_path / name).touch()
    assert is_hugging_face(tmp_path)
    (tmp_path / "verifier.pt").touch()
    assert not is_hugging_face(tmp_path)

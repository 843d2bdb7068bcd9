"""`load` of a folder of Hugging Face converts it once, and again when its files change."""

import warnings
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.conversion import cache, convert
from fairseq_plugins.errors import ConfigurationError
from tests.conversion.support import save_model


def test_load_converts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("marian", tmp_path / "hf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls: list[Path] = []
    monkeypatch.setattr(cache, "convert", lambda source, target: (calls.append(source), convert(source, target)))
    first, again = (fairseq_plugins.load(tmp_path / "hf", device="cpu") for _ in range(2))
    convert(tmp_path / "hf", tmp_path / "out")
    by_hand = fairseq_plugins.load(tmp_path / "out", device="cpu")
    outputs = [
        [one.tokens for one in model.translate_batch([["w7", "w9"], ["w8"]])] for model in (first, again, by_hand)
    ]
    assert outputs[0] == outputs[1] == outputs[2] and any(outputs[0])
    assert calls == [tmp_path / "hf"]
    save_model("bart", tmp_path / "hf")
    fairseq_plugins.load(tmp_path / "hf", device="cpu")
    assert calls == [tmp_path / "hf"] * 2


def test_conversion_hides_hydras_warnings(tmp_path: Path) -> None:
    save_model("marian", tmp_path / "hf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(tmp_path / "hf", tmp_path / "out")


def test_another_process_may_be_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("bart", tmp_path / "hf")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def slower(source: Path, target: Path) -> None:
        convert(source, target)
        convert(source, target)

    monkeypatch.setattr(cache, "convert", slower)
    assert (cache.converted(tmp_path / "hf") / "verifier.pt").is_file()


def test_errors_name_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigurationError, match="model_type 'llama' is not converted"):
        fairseq_plugins.load(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_other_files_of_a_trainer_do_not_matter(tmp_path: Path) -> None:
    for name in ("config.json", "optimizer.pt", "scheduler.pt"):
        (tmp_path / name).touch()
    assert cache.is_hugging_face(tmp_path)
    (tmp_path / "verifier.pt").touch()
    assert not cache.is_hugging_face(tmp_path)

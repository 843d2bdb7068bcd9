"""`spec-dec-bench`: one small real run with CTranslate2 and int8."""

import json
from pathlib import Path

import pytest

from fairseq_plugins.benchmarks import benchmark, ctranslate
from fairseq_plugins.benchmarks.contenders import BEAM_1
from fairseq_plugins.errors import ConfigurationError
from tests.conftest import Corpus
from tests.support import make_task

CTRANSLATE2_GREEDY = "CTranslate2 greedy fp32"


def _rows(folder: Path) -> dict:
    return {row["name"]: row for row in json.loads((folder / "table.json").read_text(encoding="utf-8"))["rows"]}


def test_measures_output_and_speed(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ctranslate2")
    names = f"{CTRANSLATE2_GREEDY},nat,gad,iad,gad fp32 drafts,gad int8,greedy int8"
    arguments = [str(corpus.data), "--path", str(corpus.verifier), "--drafter-path", str(corpus.drafter), "--cpu"]
    arguments += ["--repeats", "2", "--timing-sentences", "6", "--timing-batch-sizes", "1,4"]
    assert benchmark.main([*arguments, "--decoders", names, "--results", str(tmp_path)]) == 0

    rows = _rows(tmp_path)
    assert list(rows) == [BEAM_1, CTRANSLATE2_GREEDY, "nat", "gad", "gad fp32 drafts", "greedy int8", "gad int8"]
    assert rows["nat"]["tokens_per_iteration"]["1"] > 1 and not rows["nat"]["lossless"]
    for name in (BEAM_1, CTRANSLATE2_GREEDY, "gad", "gad fp32 drafts"):
        assert (rows[name]["identical"], rows[name]["identical_timed"]) == (36, {"1": 6, "4": 6}), name
        assert len(rows[name]["latencies"]) == 6 and len(rows[name]["seconds"]["4"]) == 2
        assert rows[name]["bleu"] == rows[BEAM_1]["bleu"]
    assert rows["gad"]["lossless"] and not rows[CTRANSLATE2_GREEDY]["lossless"]
    greedy, gad = rows["greedy int8"], rows["gad int8"]
    assert not gad["lossless"] and (greedy["identical"], greedy["bleu"]) == (gad["identical"], gad["bleu"])

    printed, log = capsys.readouterr()
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    note = "Lossy, weights rounded to int8, the output may differ from that in fp32: greedy int8, gad int8."
    assert note in text and note in printed
    assert " threads" in text and "CTranslate2 4" in text and "Command: spec-dec-bench " in text
    assert "dictionaries of source and target differ: left out iad" in log
    converted = [folder.name for folder in (tmp_path / "ctranslate2").iterdir()]
    assert len(converted) == 1 and not converted[0].endswith(".partial")


def _lacks_a_library(*_: object) -> None:
    raise RuntimeError("Library libcublas.so.12 is not found or cannot be loaded")


@pytest.mark.parametrize("installed", [False, True])
def test_without_ctranslate2(
    installed: bool, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctranslate, "is_installed", lambda: installed)
    monkeypatch.setattr(ctranslate, "convert", _lacks_a_library)
    monkeypatch.setattr(ctranslate, "version", lambda: "")
    arguments = f"{corpus.data} --path {corpus.verifier} --cpu --repeats 1 --timing-sentences 2"
    more = ["--timing-batch-sizes", "2", "--decoders", f"greedy,{CTRANSLATE2_GREEDY}", "--results", str(tmp_path)]
    assert benchmark.main([*arguments.split(), *more]) == 0
    assert list(_rows(tmp_path)) == [BEAM_1, "greedy"]
    missing = "ctranslate2 is not installed (pip install '.[bench]')"
    reason = "Library libcublas.so.12 is not found or cannot be loaded" if installed else missing
    assert f"{reason}: left out {CTRANSLATE2_GREEDY}" in capsys.readouterr().err


def test_unsupported_model_for_ctranslate2(corpus: Corpus, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    task = make_task()
    task.cfg.data, task.cfg.source_lang, task.cfg.target_lang = str(corpus.data), "src", "tgt"
    with pytest.raises(ConfigurationError, match="CTranslate2 cannot convert it"):
        ctranslate.convert(str(corpus.drafter), task.cfg, tmp_path)
    assert not [path for path in tmp_path.iterdir() if not path.name.endswith(".partial")]


def test_two_benchmarks_convert_at_once(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    task = make_task()
    task.cfg.data, task.cfg.source_lang, task.cfg.target_lang = str(corpus.data), "src", "tgt"
    write, others = ctranslate._write_checked, list[Path]()

    def overtaken(checkpoint: str, path: Path) -> None:
        monkeypatch.setattr(ctranslate, "_write_checked", write)
        others.append(ctranslate.convert(checkpoint, task.cfg, tmp_path))
        write(checkpoint, path)

    monkeypatch.setattr(ctranslate, "_write_checked", overtaken)
    assert [ctranslate.convert(str(corpus.verifier), task.cfg, tmp_path)] == others == list(tmp_path.iterdir())

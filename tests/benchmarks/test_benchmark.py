"""`spec-dec-bench --long`: one small real run with CTranslate2, profile, and the tables."""

import json
import re
from pathlib import Path

import pytest

from fairseq_plugins.benchmarks import benchmark, ctranslate, tables
from fairseq_plugins.benchmarks.contenders import BEAM_1, BEAM_5, CTRANSLATE2_GREEDY
from fairseq_plugins.benchmarks.measuring import Row
from fairseq_plugins.errors import ConfigurationError
from tests.conftest import Corpus
from tests.support import make_task


def _rows(folder: Path) -> dict:
    return {row["name"]: row for row in json.loads((folder / "table.json").read_text(encoding="utf-8"))["rows"]}


def test_measures_output_speed_and_profile(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ctranslate2")
    names = f"{CTRANSLATE2_GREEDY},nat,gad,iad,gad fp32 drafts,gad int8,greedy int8"
    arguments = [str(corpus.data), "--path", str(corpus.verifier), "--drafter-path", str(corpus.drafter), "--cpu"]
    arguments += ["--repeats", "2", "--timing-sentences", "6", "--timing-batch-sizes", "1,4"]
    assert benchmark.main([*arguments, "--decoders", names, "--long", "--profile", "--results", str(tmp_path)]) == 0

    rows = _rows(tmp_path)
    assert list(rows) == [BEAM_1, CTRANSLATE2_GREEDY, "nat", "gad", "gad fp32 drafts", "greedy int8", "gad int8"]
    assert rows["nat"]["iterations"] < rows[BEAM_1]["iterations"] and not rows["nat"]["lossless"]
    for name in (BEAM_1, CTRANSLATE2_GREEDY, "gad", "gad fp32 drafts"):
        assert (rows[name]["identical"], rows[name]["identical_timed"]) == (36, {"1": 6, "4": 6}), name
        assert len(rows[name]["latencies"]) == 6 and len(rows[name]["seconds"]["4"]) == 2
        assert rows[name]["bleu"] == rows[BEAM_1]["bleu"]
    assert rows["gad"]["lossless"] and not rows[CTRANSLATE2_GREEDY]["lossless"]
    greedy, gad = rows["greedy int8"], rows["gad int8"]
    assert greedy["lossy"] and gad["lossy"] and not gad["lossless"] and not rows["gad"]["lossy"]
    assert (greedy["identical"], greedy["bleu"]) == (gad["identical"], gad["bleu"])
    parts = {part["part"]: part["percent"] for part in rows["gad"]["profile"]}
    assert parts["total"] == pytest.approx(100) and parts["drafter"] > 0 and parts["verifier"] > 0
    assert "profile" not in rows[BEAM_1]

    printed, log = capsys.readouterr()
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    for title in ("Output", "Speed", "Latency", "Where the time goes: gad"):
        assert f"## {title}" in printed and f"## {title}" in text
    assert re.search(r"^\| gad int8 +\| +no, int8 \|", text, re.MULTILINE)
    assert re.search(r"^\| gad +\| +yes \|", text, re.MULTILINE)
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
    arguments = f"{corpus.data} --path {corpus.verifier} --cpu --repeats 1 --timing-sentences 2 --long"
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


def cells(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, with its head."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "---" not in line]


def _row(name: str, seconds: float, **more: object) -> Row:
    times = {1: [seconds, 2 * seconds, 4 * seconds], 16: [seconds / 4] * 3}
    latencies = [seconds / 100 * number for number in range(1, 102)]
    more = {"seconds": times, "latencies": latencies, **more}
    return Row(name, 1, None, 4, 4, {1: 2, 16: 2}, 10, **more)


def test_tables() -> None:
    rows = [_row(BEAM_5, 4.0), _row(BEAM_1, 2.0), _row("gad", 1.0, lossless=True)]
    long = {title: cells(text) for title, text in tables.long(rows, [1, 16], 32)}
    assert long["Output"][0][-1] == "tokens/iteration, batch 32"
    assert long["Output"][3] == ["gad", "yes", "2 of 10", "2 of 10", "-", "-"]
    assert long["Speed"][3] == ["gad", "5.0 (2.5–10.0)", "40.0 (40.0–40.0)"]
    assert long["Latency"][3] == ["gad", "510.0", "910.0", "1000.0"]

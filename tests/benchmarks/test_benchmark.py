"""`spec-dec-bench --long`: one small real run with CTranslate2, profile, the tables, and replayed drafts."""

import json
import re
from pathlib import Path

import pytest
import torch

from fairseq_plugins.benchmarks import benchmark, ctranslate, replay, tables
from fairseq_plugins.benchmarks.contenders import BEAM_1, BEAM_5, CTRANSLATE2_GREEDY
from fairseq_plugins.benchmarks.measuring import Row
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.errors import ConfigurationError
from tests.conftest import Corpus
from tests.errors import error_about
from tests.support import (
    Options,
    fairseq_greedy,
    ids,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)


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
    long = {title: cells(text) for title, text in tables.long(rows, [1, 16])}
    assert long["Output"][3] == ["gad", "yes", "2 of 10", "2 of 10", "-", "-"]
    assert long["Speed"][3] == ["gad", "5.0 (2.5–10.0)", "40.0 (40.0–40.0)"]
    assert long["Latency"][3] == ["gad", "510.0", "910.0", "1000.0"]


# Replay


def _replay(outputs: list[list[int]], probability: float) -> replay.Replay:
    replayed = replay.Replay(dict(enumerate(outputs)), (4, 5))
    replayed.draw(probability)
    return replayed


def _wrong(replayed: replay.Replay) -> list[list[int]]:
    """Return the positions of all sentences that are drafted wrongly."""
    return [row.nonzero().flatten().tolist() for row in replayed.tokens != replayed.outputs]


def test_drawn_lengths_have_the_stated_mean() -> None:
    probability = replay.acceptance_probability(6.13, 25)
    assert sum(probability**power for power in range(26)) == pytest.approx(6.13)
    replayed = _replay([[4] * 400] * 100, probability)
    emitted = []
    for wrong in _wrong(replayed):
        ends, position = iter([*wrong, 10**6]), 0
        end = next(ends)
        while position < 350:
            emitted.append(min(25, end - position) + 1)
            position += emitted[-1]
            while end < position:
                end = next(ends)
    assert sum(emitted) / len(emitted) == pytest.approx(6.13, abs=0.15)
    assert min(emitted) == 1 and max(emitted) == 26
    longer = _replay([[4] * 500] * 100, probability)
    assert torch.equal(longer.tokens[:, :400], replayed.tokens)
    with error_about("--block-size", "too short to replay 6.13 tokens per iteration"):
        replay.acceptance_probability(6.13, 5)


BACKENDS = pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])


@BACKENDS
def test_replayed_drafts_are_accepted_as_drawn_in_any_batch(engine: Engine | None) -> None:
    task = make_task()
    verifier, model = make_transformer(task), make_drafter(task, block_size=6)
    sample = make_sample(task, [3, 9, 6, 12])
    expected = ids(fairseq_greedy([verifier], task, sample, max_len_b=30))
    by_batch = {}
    for numbers in ([0, 1, 2, 3], [2]):
        source = sample["net_input"]["src_tokens"][numbers]
        part = {"id": torch.tensor(numbers), "net_input": {"src_tokens": source, "src_lengths": (source != 1).sum(1)}}
        generator, stats = make_generator([verifier], task, Options("gad", 6), model, engine=engine, max_len_b=30)
        replay.replay_drafts(generator, dict(enumerate(expected)), 3.0, (4, 5))
        assert ids(generator.generate([verifier], part)) == [expected[number] for number in numbers]
        by_batch.update({(len(numbers), sentence.id): sentence.emitted for sentence in stats.recorded})
    replayed = _replay(expected, replay.acceptance_probability(3.0, 6))
    assert by_batch[4, 2] == by_batch[1, 2]
    for sentence, wrong in enumerate(_wrong(replayed)):
        position = 0
        for emitted in by_batch[4, sentence][:-1]:
            first_wrong = next((number for number in wrong if number >= position), 10**6)
            assert emitted == min(6, first_wrong - position) + 1
            position += emitted
    assert max(max(emitted) for emitted in by_batch.values()) > 2


def test_replayed_drafts_follow_changed_verifier_output() -> None:
    """What was recorded goes on with other words after the second one; the next pass knows better."""
    task = make_task()
    verifier, drafter = make_transformer(task), make_drafter(task, block_size=6)
    sample = make_sample(task, [3, 9, 6, 12])
    expected = ids(fairseq_greedy([verifier], task, sample, max_len_b=30))
    other = [[*tokens[:2], *(5 if token == 4 else 4 for token in tokens[2:])] for tokens in expected]
    generator, stats = make_generator([verifier], task, Options("gad"), drafter, max_len_b=30)
    replayed = replay.replay_drafts(generator, dict(enumerate(other)), 5.0, (4, 5))
    for _ in range(2):
        output = generator.generate([verifier], sample)
        assert ids(output) == expected
        replayed.learn(sample, output)
    lost, learned = (sum(sentence.iterations for sentence in stats.recorded[first:][:4]) for first in (0, 4))
    assert lost > 1.2 * learned


@pytest.mark.parametrize(("drafter", "tokens"), [("tokens", 6.13), ("features", 3.5)])
def test_replay_of_a_shape(
    drafter: str, tokens: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "VOCABULARY", 200)
    arguments = "--replay tiny --replay-lengths 8,20 --timing-sentences 4 --timing-batch-sizes 2 --repeats 1 --cpu"
    names = "greedy,gad (replayed),gad fixed width (replayed),gad++ high-quality (replayed)"
    more = ["--replay-drafter", drafter, "--decoders", names, "--results", str(tmp_path)]
    if tokens != 6.13:
        more += ["--replay-tokens", str(tokens)]
    assert benchmark.main([*arguments.split(), *more]) == 0
    rows = _rows(tmp_path)
    assert list(rows) == [BEAM_1, *names.split(",")]
    assert {row["identical"] for row in rows.values()} == {4}
    assert 2 < rows["gad fixed width (replayed)"]["tokens_per_iteration"] < tokens + 1
    # Where drafts do not pay there are none.
    assert 1 <= rows["gad (replayed)"]["tokens_per_iteration"] < tokens + 1
    printed = capsys.readouterr().out
    assert "REPLAYED. Random weights: Transformer-tiny, vocabulary 200, sentences of 8 to 20 tokens" in printed
    assert "k = 25," in printed
    assert f"gad (replayed) {tokens}," in printed and "gad++ high-quality (replayed) 7.56" in printed

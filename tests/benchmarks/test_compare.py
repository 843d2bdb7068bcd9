"""`spec-dec-bench`: small real runs, the arithmetic of the table, and refusals."""

import json
import re
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from fairseq import options
from fairseq_cli import preprocess
from sentencepiece import SentencePieceProcessor

from fairseq_plugins.benchmarks import bench, benchmark, measuring
from fairseq_plugins.benchmarks.contenders import BEAM_1, BEAM_5, BLOCKWISE, CONTENDERS, Contender
from fairseq_plugins.benchmarks.measuring import Row
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.tasks.beside import add_decoder
from tests.families import FAMILIES
from tests.support import REPOSITORY

MODELS = REPOSITORY / "checkpoints" / "multi30k.en-de"
SENTENCES = 6

# Some tests share models and data.
pytestmark = pytest.mark.xdist_group("compare")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    """The released models, heads on the verifier and on another base, and captions, which are their own references."""
    folder = tmp_path_factory.mktemp("released")
    pieces = SentencePieceProcessor(model_file=str(MODELS / "subwords.model"))
    lines = [f"{count} dogs play in the {place} ." for count in ("Two", "Ten") for place in ("snow", "old park", "sea")]
    subwords = "".join(" ".join(pieces.encode(line, out_type=str)) + "\n" for line in lines)
    for language, text in (("en", subwords), ("de", subwords), ("raw", "\n".join(lines))):
        (folder / f"text.{language}").write_text(text, encoding="utf-8")
    binarise(folder, folder / "data", MODELS, "en", "de")
    heads, base = (torch.load(MODELS / f"{name}.pt") for name in ("blockwise", "verifier"))
    torch.save({**heads, "model": heads["model"] | base["model"]}, folder / "heads.pt")
    files = {name: str(MODELS / f"{name}.pt") for name in ("verifier", "drafter")}
    files |= {"heads": str(folder / "heads.pt"), "other_heads": str(MODELS / "blockwise.pt")}
    return Namespace(data=str(folder / "data"), reference=str(folder / "text.raw"), **files)


def binarise(folder: Path, data: Path, dictionaries: Path, source: str, target: str) -> None:
    """Binarise `folder`/text as a test set."""
    arguments = ["--source-lang", source, "--target-lang", target, "--testpref", str(folder / "text"), "--workers", "1"]
    for option, language in (("--srcdict", source), ("--tgtdict", target)):
        arguments += [option, str(dictionaries / f"dict.{language}.txt")]
    preprocess.main(options.get_preprocessing_parser().parse_args([*arguments, "--destdir", str(data)]))


def _quick(released: Namespace) -> list[str]:
    limits = ["--repeats", "2", "--timing-sentences", "3", "--timing-batch-sizes", "1,2", "--max-len-b", "12"]
    return [released.data, "--path", released.verifier, "--cpu", *limits]


def test_all_rows(released: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*_quick(released), "--drafter-path", released.drafter, "--block-size", "2"]
    arguments += ["--blockwise-path", released.heads, "--results", str(tmp_path)]
    assert benchmark.main([*arguments, "--reference", released.reference]) == 0

    result = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in result["rows"]}
    contenders = [contender for contender in CONTENDERS if contender.name != "nat"]
    assert list(rows) == [contender.name for contender in contenders]
    for contender in contenders:
        row = rows[contender.name]
        if contender.lossless or contender.needs == BLOCKWISE:
            assert (row["identical"], row["identical_timed"]) == (SENTENCES, {"1": 3, "2": 3}), contender.name
        assert [len(row["seconds"][size]) for size in ("1", "2")] == [2, 2]
        assert row["bleu"] is not None
    accepted = {name: row["tokens_per_iteration"] for name, row in rows.items()}
    assert accepted["greedy"] == {"1": 1, "2": 1} and accepted[BEAM_1] == {}
    assert accepted["gad"]["2"] >= 1 and 0 < accepted["fast-beam"]["1"] <= 1

    printed, progress = capsys.readouterr()
    assert "reads the verifier's states and cannot decode alone: left out nat\n" in progress
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert table.splitlines()[0] in printed
    names = "fast-beam, greedy, gad, gad fixed width, blockwise, blockwise fixed width, iad, jacobi, gs-jacobi"
    lossless = f"Lossless by construction: {names}, hybrid-jacobi."
    identity = "the token ids of fairseq beam 5 and fairseq beam 1"
    for line in (identity, "sacrebleu nrefs:1|", "Machine: ", "Command: spec-dec-bench ", lossless):
        assert line in printed and line in table
    assert "differs from" not in progress
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore")  # of hydra
def test_another_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A multilingual model, whose task gives it its languages."""
    family = FAMILIES["m2m"]
    add_decoder(family.task)
    family.save(tmp_path)
    for language in ("en", "de"):
        (tmp_path / f"text.{language}").write_text("w3 w9 w4\nw1\nw20 w21 w22 w23 w24 w25\nw7 w8\n")
    binarise(tmp_path, tmp_path / "data", tmp_path, "en", "de")
    task = [str(tmp_path / "data"), "--task", family.task, *family.arguments(tmp_path)]
    limits = ["--repeats", "1", "--timing-sentences", "2", "--timing-batch-sizes", "2", "--max-len-b", "12"]
    model = ["--path", str(tmp_path / "model.pt"), "--cpu", "--results", str(tmp_path)]
    assert benchmark.main([*task, *model, *limits, "--decoders", "greedy,fast-beam,jacobi"]) == 0
    rows = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["rows"]
    identical = {row["name"]: row["identical"] for row in rows}
    assert [identical[name] for name in (BEAM_1, "greedy", "fast-beam", "jacobi")] == [4] * 4
    printed, log = capsys.readouterr()
    assert "differs from" not in log
    assert "one run after a warm-up" in printed and "as long as its fastest" not in printed


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_in_half_precision(released: Namespace, capsys: pytest.CaptureFixture[str], precision: str) -> None:
    """Lossless rows are compared with greedy, which is always included."""
    arguments = [*_quick(released), "--drafter-path", released.drafter, "--block-size", "2", f"--{precision}"]
    assert benchmark.main([*arguments, "--blockwise-path", released.heads, "--decoders", "gad,blockwise,jacobi"]) == 0
    printed, log = capsys.readouterr()
    cells = [[cell.strip() for cell in line.split("|")[1:]] for line in printed.splitlines() if line.startswith("| ")]
    rows = {name: rest for name, *rest in cells}
    assert list(rows)[1:] == [BEAM_1, "greedy", "gad", "blockwise", "jacobi"]
    assert rows["greedy"][1] == "reference"
    for name in ("gad", "blockwise", "jacobi"):
        assert rows[name][1] == f"{SENTENCES} of {SENTENCES}"
    assert "Same as: sentences with the token ids of greedy." in printed
    assert f"Precision: {precision}. Lossless means the token ids of our greedy in {precision}; " in printed
    assert "fp32" not in printed and "differs from" not in log


def test_no_drafter_and_heads_of_another_base(released: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*_quick(released), "--timing-batch-sizes", "2", "--blockwise-path", released.other_heads]
    assert benchmark.main([*arguments, "--decoders", "nat,gad,greedy,blockwise"]) == 0
    printed, log = capsys.readouterr()
    names = [line.split("|")[1].strip() for line in printed.splitlines()[2:5]]
    assert names == [BEAM_1, "greedy", "blockwise"] and "Lossless by construction: greedy." in printed
    assert "without --drafter-path: left out nat, gad" in log and "differs from" not in log


def test_ensemble_and_choice(released: Namespace, capsys: pytest.CaptureFixture[str]) -> None:
    models = ["--path", f"{released.verifier}:{released.verifier}", "--drafter-path", released.drafter]
    choice = ["--decoders", "gad", "--sentences", "4", "--timing-seconds", "0.01"]
    assert benchmark.main([*_quick(released), *models, *choice]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in table[2:4]] == [BEAM_1, "gad"]
    assert any("median of 2 alternating runs of at least 0.01 s each" in line for line in table)
    assert " 4 of 4 " in table[3] and any("the first 4 sentences" in line for line in table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafter-path", "none.pt"], "--drafter-path none.pt: no such file; "),
        (["--gen-subset", "none"], "--gen-subset none: no such subset in "),
        (["--block-size", "0"], "--block-size 0: "),
        (["--reference", __file__], f"--reference {__file__}: "),
        (["--profile"], "--profile: is for one decoder; use it with fairseq-generate"),
        (["--sampling"], "--sampling: has no outputs to compare with"),
        (["--repeats", "0"], "--repeats"),
        (["--timing-batch-sizes", "1,x"], "--timing-batch-sizes"),
        (["--timing-seconds", "nan"], "--timing-seconds"),
    ],
)
def test_errors(released: Namespace, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert benchmark.main([*_quick(released), *arguments]) == 2
    printed, log = capsys.readouterr()
    assert printed == "" and "spec-dec-bench: error: " in log and message in log and "Traceback" not in log


def test_bleu_is_that_of_all_references() -> None:
    texts = Namespace(session=Namespace(text=lambda tokens: " ".join(map(str, tokens))), scorer=sacrebleu.BLEU())
    outputs = {5: (5, 6, 7, 8), 3: (1, 2, 3, 4)}
    assert measuring.bleu(texts, outputs, {3: ("-", "1 2 3 4"), 4: ("", ""), 5: ("5 6 7 8", "-")}) == pytest.approx(100)


def test_references_and_tokenizer_are_those_of_metrics(
    released: Namespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for `spec-dec-metrics`: several references, and sacrebleu's tokenizer for the target language."""
    for language, file in (("en", "en"), ("zh_CN", "de")):
        shutil.copy(MODELS / f"dict.{file}.txt", tmp_path / f"dict.{language}.txt")
        shutil.copy(Path(released.reference).with_name(f"text.{file}"), tmp_path / f"text.{language}")
    binarise(tmp_path, tmp_path / "data", tmp_path, "en", "zh_CN")
    given = ["--reference", released.reference] * 2 + ["--decoders", "greedy", "--target-lang", "zh_CN"]
    assert benchmark.main([str(tmp_path / "data"), *_quick(released)[1:], *given]) == 0
    assert re.search(r"sacrebleu nrefs:2\|.*\|tok:zh\|", capsys.readouterr().out)
    assert benchmark.main([*_quick(released), "--reference", released.reference, "--reference", __file__]) == 2
    assert f"--reference {__file__}: " in capsys.readouterr().err


def test_references_are_split_at_line_ends_only(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes("a\u2028b\x0b\r\n\nc".encode())
    assert bench.read_references(str(file), 3) == ["a\u2028b\x0b", "", "c"]
    file.write_bytes(b"\xff\n")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        bench.read_references(str(file), 1)


def test_table() -> None:
    counts: dict[str, Any] = {"identical": 4, "sentences": 4, "timed_sentences": 2}
    latencies = [number / 1000 for number in range(101)]

    def row(name: str, beam: int, first: list[float], second: list[float], **more: Any) -> Row:
        return Row(name, beam, **counts, seconds={1: first, 16: second}, latencies=latencies, **more)

    rows = [
        row(BEAM_5, 5, [2.0], [1.0], bleu=30.0, reference=BEAM_5),
        row(BEAM_1, 1, [1.0], [1.0], bleu=29.5),
        row("greedy", 1, [0.5], [1.0], bleu=29.5, tokens_per_iteration={1: 1.0}),
        row("gad", 1, [0.25, 0.2, 0.5], [0.5], tokens_per_iteration={1: 4.0, 16: 3.0}),
        row("fast-beam", 5, [1.0], [0.5], tokens_per_iteration={1: 0.9}, reference=BEAM_5),
        row("CTranslate2 greedy fp32", 1, [0.75], [0.5]),
    ]
    lines = benchmark.table_of(rows, [1, 16]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0][2:4] == ["same as beam 5", "same as beam 1"]
    assert cells[0][-5:] == ["sent/s, batch 16", "ms, p50 / p90 / p99", "× fairseq", "× CTranslate2", "× greedy"]
    times = "50.0 / 90.0 / 99.0"
    assert cells[2] == [BEAM_5, "30.00", "reference", "-", "-", "1.0", "2.0", times, "1.00", "-", "0.25"]
    assert cells[5] == ["gad", "-", "-", "4 of 4", "4.00", "8.0", "4.0", times, "4.00", "3.00", "2.00"]
    assert cells[6] == ["fast-beam", "-", "4 of 4", "-", "0.90", "2.0", "4.0", times, "2.00", "-", "0.50"]
    assert "CTranslate2" not in benchmark.table_of(rows[:3], [16, 1])
    assert [rows[3].spread(), rows[0].spread()] == [2.5, 1.0]


@pytest.mark.parametrize(
    ("kind", "reason", "differences"),
    [
        ("fp32", "in fp32 only two tokens of equal score can explain that",
         [f"gad differs from {BEAM_1} in 1 of 4", f"fast-beam differs from {BEAM_5} in 2 of 4"]),
        ("bf16", "in bf16 nothing explains that", ["gad differs from greedy in 1 of 4"]),
    ],
)  # fmt: skip
def test_lossless_decoder_with_different_output_is_reported(
    kind: str, reason: str, differences: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """In fp32 it is compared with the search in fairseq, in half precision with greedy, unless it searches beams."""
    contenders = [
        Contender("gad", "gad", lossless=True),
        Contender("nat", "nat"),
        Contender("fast-beam", "fast-beam", beam=5, lossless=True, reference=BEAM_5),
    ]
    rows = [Row(name, identical=count, sentences=4) for name, count in (("gad", 3), ("nat", 0), ("fast-beam", 2))]
    benchmark.warn_if_lossy(rows, contenders, kind)
    assert caplog.messages == [f"{difference} sentences; {reason}" for difference in differences]

"""`train_scripts/demo.sh`: what it refuses, and one small real run that is interrupted."""

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.test_recipes import environment, run, write_text

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of raw text."""
    write_text(tmp_path / "text", "en de")
    return tmp_path / "text"


def demo(checkout: Path, programs: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo."""
    return run(checkout, "demo", programs=programs, **variables)


def _refused(result: subprocess.CompletedProcess[str], message: str) -> None:
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ") and message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"DATA": "none", "NAME": "x.en-de"}, "DATA=none: no such folder; "),
        ({"DATA": "text"}, "NAME is missing; "),
        ({"DATA": "text", "NAME": ""}, "NAME is missing; "),
        ({"FROM": "x.en-fr"}, "FROM=x.en-fr: NAME is missing; "),
        ({"DATA": "text", "FROM": "x.en-fr"}, "/text: NAME is missing; "),
        ({"DATA": "text", "NAME": "multi30k"}, "NAME=multi30k: does not end in two languages; "),
        ({"DATA": "text", "NAME": "../x.en-de"}, "NAME=../x.en-de: "),
        ({"DATA": "text", "NAME": "x.en-en"}, "NAME=x.en-en: both languages are en; "),
        ({"DATA": "text", "NAME": "x.en-fr"}, "text/train.fr: no such file, but train.en is there; "),
        ({"DATA": "text", "NAME": "x.sv-fr"}, "text/train.sv: no such file (looked for: train); "),
        ({"DATA": "text", "NAME": "x.en-de", "TEST": "test_2018"}, "text/test_2018.en: no such file "),
        ({"NAME": "x.de-en"}, "NAME=x.de-en: the generated corpus is en-de; "),
    ],
)
def test_bad_names(checkout: Path, text: Path, variables: dict[str, str], message: str) -> None:
    _refused(demo(checkout, **variables), message)
    assert not (checkout / "checkpoints").exists()


@pytest.mark.parametrize("name", ["pt-BR-en", "x.en-pt-BR", "a-b.pt-BR-zh-Hans"])
def test_languages_with_a_hyphen(checkout: Path, tmp_path: Path, name: str) -> None:
    """The files of DATA tell where the source ends."""
    languages = {"pt-BR-en": "pt-BR en", "x.en-pt-BR": "en pt-BR", "a-b.pt-BR-zh-Hans": "pt-BR zh-Hans"}[name]
    write_text(tmp_path / "more", languages)
    (tmp_path / "more/train.pt").touch()  # another language
    result = run(checkout, "demo", "--dry-run", DATA=str(tmp_path / "more"), NAME=name)
    assert result.returncode == 0, result.stderr
    source, target = languages.split()
    assert f"--source-lang {source} --target-lang {target} " in result.stdout


def test_bad_text(checkout: Path, text: Path) -> None:
    def refused(message: str) -> None:
        _refused(demo(checkout, DATA="text", NAME="x.en-de"), message)

    original = (text / "val.de").read_text(encoding="utf-8")
    (text / "val.de").write_text(original + "mehr\n", encoding="utf-8")
    refused("text/val.en has 8 lines but ")
    (text / "val.de").write_text(" \n" * 8, encoding="utf-8")
    refused("text/val.de: has no text; ")
    (text / "val.de").write_bytes(b"\xff\xfe\n" * 8)
    refused("text/val.de: not UTF-8; ")
    (text / "val.de").unlink()
    refused("text/val.de: no such file, but val.en is there; ")
    (text / "val.de").mkdir()
    refused("text/val.de: not a readable file; ")
    (text / "val.de").rmdir()
    (text / "val.de").write_text(original.removesuffix("\n"), encoding="utf-8")  # as good as any
    for name in ("val.en", "val.de"):
        (text / name).rename(text / f"no.{name}")
    refused("text/valid.en: no such file (looked for: valid val dev tune); hold out sentences of the training set ")
    for name in ("val.en", "val.de"):
        (text / f"no.{name}").rename(text / name)
    for name in ("test.en", "test.de"):
        (text / name).rename(text / name.replace("test", "test_2016"))
        (text / name.replace("test", "test_2017")).write_text("zwei\n")
    refused("several test sets (test_2016 test_2017); choose one: TEST=test_2016")


SMALL = {
    "VOCABULARY": "60", "LAYERS": "1", "DRAFTER_LAYERS": "1", "WIDTH": "16", "FFN_WIDTH": "16", "HEADS": "2",
    "VERIFIER_EPOCHS": "2", "DRAFTER_EPOCHS": "2", "BLOCK_SIZE": "3", "BLOCKWISE_EPOCHS": "2", "BLOCKWISE_HEADS": "3",
    "SAVE_INTERVAL_UPDATES": "1", "LOG_INTERVAL": "1", "REPEATS": "1", "TIMING_SENTENCES": "2", "GPUS": "0",
    "TEST_SENTENCES": "5",
}  # fmt: skip


def _killed_at_every_stage(checkout: Path, variables: dict[str, str]) -> list[str]:
    """Run the demo until it ends, killed with all that it started in every stage once; the stages."""
    stages: list[str] = []
    while True:
        process = subprocess.Popen(
            ["bash", "train_scripts/demo.sh"],
            cwd=checkout, env=variables, start_new_session=True, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("[....]") and line not in stages:
                # Sometimes at once, sometimes in the middle.
                time.sleep(0.15 * (len(stages) % 4))
                stages.append(line)
                os.killpg(process.pid, signal.SIGKILL)
                break
        process.stdout.close()
        if process.wait() != -signal.SIGKILL:
            return stages


@pytest.mark.slow
def test_whole_recipe_goes_on_after_being_killed(checkout: Path, text: Path, programs: Path) -> None:
    variables = {"DATA": "text", "NAME": "small.en-de", **SMALL}
    models, results = checkout / "checkpoints/small.en-de", checkout / "results/small.en-de"
    stages = _killed_at_every_stage(checkout, environment(programs, **variables))
    named = " ".join(stages)
    for part in ("subwords", "train the verifier", "drafter", "compare decoders"):
        assert part in named
    assert len(stages) >= 6, stages

    again = demo(checkout, programs, **variables)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "[have] cut into subwords" in again.stdout
    assert re.search("^decoder +BLEU +same as beam 1", again.stdout, re.MULTILINE)
    lines = [line for line in again.stdout.splitlines() if line]
    assert len(lines) == len(set(lines))
    rows = lines[next(number for number, line in enumerate(lines) if line.startswith("decoder ")) :]
    assert max(map(len, rows)) <= 100
    assert re.search(r"^gad +[\d.]+ +5 of 5 ", again.stdout, re.MULTILINE)
    assert "[done]" not in again.stdout and "[....]" not in again.stdout
    for model in ("verifier", "drafter", "blockwise"):
        assert (models / f"{model}.pt").exists()
    log = (models / "logs/drafter.log").read_text(encoding="utf-8")
    assert re.search(r"'max_update': \d\d?,", log) and "'stop_time_hours': 0.0," in log
    assert "spec-dec-translate checkpoints/small.en-de" in (models / "README.md").read_text(encoding="utf-8")
    table = (results / "table.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| ")}
    for lossless in ("gad", "blockwise", "iad", "jacobi", "gs-jacobi", "hybrid-jacobi"):
        assert "5 of 5" in rows[lossless]
    # A killed merge leaves its folder, which nothing removes by its name.
    left = {path.name for path in checkout.rglob("*.partial*")}
    assert all(name.startswith("distilled.partial.") for name in left), left

    _refused(demo(checkout, **{"NAME": "small.en-de"}), "small.en-de: its text is ")

"""`spec-dec-translate` on the released models: files, streams, restarts, several processes."""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fairseq_plugins
from fairseq_plugins.process import ending
from fairseq_plugins.translation import cli, output_shards
from tests.support import REPOSITORY

MODEL = str(REPOSITORY / "checkpoints" / "multi30k.en-de")
LINES = ["Two dogs play.", "A man is riding a bicycle on the street.", "", "Men", "A child in a red shirt\u2028runs."]


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return fairseq_plugins.load(MODEL, device="cpu").translate(LINES)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of `LINES`, in chunks of two."""
    for module in (cli, output_shards):
        monkeypatch.setattr(module, "CHUNK", 2)
    file = tmp_path / "text.en"
    file.write_text("".join(line + "\n" for line in LINES), encoding="utf-8-sig")  # as programs of Windows write
    return file


def translate(text: Path, *more: str, output: str = "out") -> int:
    return cli.main([MODEL, "--input", str(text), "--output", str(text.parent / output), "--device", "cpu", *more])


def test_file_to_file(text: Path, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert translate(text) == 0
    assert (text.parent / "out").read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert sorted(file.name for file in text.parent.iterdir()) == ["out", "text.en"]
    captured = capsys.readouterr()
    assert "gad: 5 sentences, " in captured.err and " tokens per iteration, batch size " in captured.err
    assert captured.out == ""


def test_blank_lines_have_no_speed(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text.write_text("\n \n", encoding="utf-8")
    assert translate(text) == 0
    assert capsys.readouterr().err.endswith("gad: 2 sentences, 0 tokens, batch size 32\n")


def test_json_lines(text: Path, expected: list[str]) -> None:
    assert translate(text, "--output-format", "jsonl", "--block-size", "4", "--set", "lenpen=0.5") == 0
    lines = [json.loads(line) for line in (text.parent / "out").read_text(encoding="utf-8").splitlines()]
    assert [line["text"] for line in lines] == expected
    assert [line["line"] for line in lines] == [1, 2, 3, 4, 5]
    for line in lines:
        if not line["tokens"]:
            assert (line["text"], line["emitted"], line["token_scores"], line["score"]) == ("", [], [], 0.0)
            continue
        assert sum(line["emitted"]) == len(line["token_scores"]) == len(line["tokens"]) + 1
        assert line["iterations"] == len(line["emitted"]) and max(line["emitted"]) <= 5
        assert line["score"] == pytest.approx(sum(line["token_scores"]) / len(line["token_scores"]) ** 0.5, abs=1e-3)


def test_samples_differ_between_lines_and_the_sentences_of_a_line(text: Path) -> None:
    text.write_text("People. People. People.\n" * 3)
    found = []
    for _ in range(2):
        options = ("--sampling", "--set", "temperature=2", "--split", "sentences", "--output-format", "jsonl")
        assert translate(text, *options) == 0
        lines = map(json.loads, (text.parent / "out").read_text(encoding="utf-8").splitlines())
        found.append([sentence["text"] for line in lines for sentence in line["sentences"]])
    assert found[0] == found[1] and len(set(found[0])) == len(found[0]) == 9


def test_alternatives(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--decoder", "fast-beam", "--beam", "4", "--nbest", "3", "--threads", "1")
    assert translate(text, *options, "--output-format", "jsonl") == 0
    model = fairseq_plugins.load(MODEL, decoder="fast-beam", device="cpu")
    expected = model.translate(LINES, beam=4, num_hypotheses=3, return_scores=True)
    lines = [json.loads(line) for line in (text.parent / "out").read_text(encoding="utf-8").splitlines()]
    for line, one in zip(lines, expected, strict=True):
        assert line["text"] == one.text
        assert [other["text"] for other in line["alternatives"]] == [other.text for other in one.alternatives]
        assert [other["score"] for other in line["alternatives"]] == [round(o.score, 4) for o in one.alternatives]
    assert [len(line["alternatives"]) for line in lines] == [2, 2, 0, 2, 2]
    assert translate(text, *options) == 2
    assert "--nbest 3: a line of text is one; add --output-format jsonl" in capsys.readouterr().err


def test_a_refused_option_leaves_nothing(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither an option of `load` nor one of a call: the command without it may have the same output."""
    for option, message in (("lenpem=1", "did you mean lenpen?"), ("tau=2", "is for --decoder gad++")):
        assert translate(text, "--set", option) == 2
        assert message in capsys.readouterr().err
        assert [file.name for file in text.parent.iterdir()] == ["text.en"]
    assert translate(text, "--beam", "4") == 2
    assert [file.name for file in text.parent.iterdir()] == ["text.en"]


def test_processes_that_are_refused_leave_nothing(text: Path, programs: Path) -> None:
    command = [str(programs / "spec-dec-translate"), MODEL, "--input", str(text), "--set", "tau=2"]
    command += ["--output", str(text.parent / "out"), "--device", "cpu", "--processes", "2"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert run.returncode == 2 and "2 of 2 processes failed, for the reason given above; mend it" in run.stderr
    assert [file.name for file in text.parent.iterdir()] == ["text.en"]


def test_goes_on_where_it_was(
    text: Path, expected: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = cli.Translator.translate

    def ends_early(self: cli.Translator, lines: list[str], before: int) -> list[str]:
        if before:
            raise KeyboardInterrupt
        return original(self, lines, before)

    with monkeypatch.context() as patch:
        patch.setattr(cli.Translator, "translate", ends_early)
        assert translate(text) == 130
    partial = text.parent / "out.parts" / "0-of-1.partial"
    origin, *lines = partial.read_text(encoding="utf-8").split("\n")
    assert not (text.parent / "out").exists() and len(lines) == 3
    # A kill can tear a line; and what is there is taken as it is.
    done = [f"{expected[0]}, noted", *expected[1:3]]
    partial.write_text("\n".join([origin, *done, expected[3][:4]]), encoding="utf-8")

    assert translate(text, "--set", "lenpen=0.5") == 2
    assert f"{partial}: was made from another set; remove it or choose another --output" in capsys.readouterr().err

    assert translate(text) == 0
    assert "resuming after 3 of 5 lines" in capsys.readouterr().err
    assert (text.parent / "out").read_text(encoding="utf-8").split("\n") == [*done, *expected[3:], ""]
    assert not (text.parent / "out.parts").exists()

    text.write_text("Another text.\n")
    assert translate(text) == 0 and (text.parent / "out").read_text() != ""


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_a_line_that_was_too_long_before_the_interruption(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The status is that of an uninterrupted run, also where all shards were finished and only joining was left."""
    text.write_bytes(b"A dog.\n" + b"word " * 1099 + b"word\xff\nA cat.\n")
    more = ["--output-format", form]
    long = re.compile(r"error: line 2: has \d+ tokens, .*\n")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    for place, name in ((cli.ShardWriter, "finish"), (output_shards.OutputShards, "join")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, interrupt)
            assert translate(text, *more) == 130
        assert len(long.findall(capsys.readouterr().err)) == 1
        monkeypatch.setattr(ending, "_has_failed", False)
        assert translate(text, *more) == 0  # as Python ends, `ending` makes 1 of it
        assert ending._has_failed and len(long.findall(capsys.readouterr().err)) == 1
        assert len((text.parent / "out").read_text(encoding="utf-8").splitlines()) == 3
        monkeypatch.setattr(ending, "_has_failed", False)


def test_other_dictionaries_or_subwords_are_refused(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = text.parent / "multi30k.en-de"
    shutil.copytree(MODEL, model)
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    command = [str(model), "--input", str(text), "--output", str(text.parent / "out"), "--device", "cpu"]
    assert cli.main(command) == 0
    for name, changed in (("dict.de.txt", "dictionaries"), ("subwords.model", "subwords")):
        before = (model / name).read_bytes()
        (model / name).write_bytes(b"".join(reversed(before.splitlines(keepends=True))))
        capsys.readouterr()
        assert cli.main(command) == 2
        assert f"out.parts/0-of-2: was made from other {changed}; remove it" in capsys.readouterr().err
        (model / name).write_bytes(before)


@pytest.mark.parametrize("link", [None, os.link])
def test_the_input_is_not_overwritten(
    text: Path, capsys: pytest.CaptureFixture[str], link: Callable[[Path, Path], None] | None
) -> None:
    before = text.read_bytes()
    output = text if link is None else text.parent / "link"
    if link is not None:
        link(text, output)
    assert translate(text, output=output.name) == 2
    assert f"--output {output}: is an input of this command; give another file" in capsys.readouterr().err
    assert text.read_bytes() == before


@pytest.mark.parametrize("lines", [["one more"], []], ids=["longer", "empty"])
def test_an_input_that_changes_meanwhile(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    """A program may still write it: the output would be of neither content."""
    load = cli.make_translator

    def change(*arguments: Any) -> cli.Translator:
        text.write_text("\n".join(lines and [*LINES, *lines]), encoding="utf-8")
        return load(*arguments)

    monkeypatch.setattr(cli, "make_translator", change)
    assert translate(text) == 2
    assert f"--input {text}: changed while it was translated; " in capsys.readouterr().err
    assert not (text.parent / "out").exists()


@pytest.mark.parametrize("tasks", [(1, 3), (0, 1, 2)], ids=str)
def test_parts_that_a_job_left(
    text: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tasks: tuple[int, ...],
) -> None:  # fmt: skip
    """One task of three has failed: another array, of any tasks, finishes all; a task that comes late does nothing."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    for task in (0, 2):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        assert translate(text) == 0
    assert not (text.parent / "out").exists()
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", str(len(tasks)))
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", str(tasks[0]))
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "8")
    for task in tasks:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(task))
        capsys.readouterr()
        assert translate(text) == 0
        assert (text.parent / "out").read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert capsys.readouterr().err == f"spec-dec-translate: {text.parent / 'out'} was translated before\n"
    assert [file.name for file in (text.parent / "out.parts").iterdir()] == ["finished"]  # as docs/translating.md says
    # The next call translates again.
    text.write_text(f"{LINES[0]}\n")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "1")
    assert translate(text) == 0
    assert (text.parent / "out").read_text(encoding="utf-8") == f"{expected[0]}\n"
    assert not (text.parent / "out.parts").exists()


def test_shards_that_a_full_disk_left_are_joined(
    text: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(output_shards, "_copy_chunk", fail)
        assert translate(text) == 2
    assert "out: cannot be written (No space left on device); free disk space" in capsys.readouterr().err
    assert [file.name for file in (text.parent / "out.parts").iterdir()] == ["0-of-1"]
    assert translate(text) == 0
    assert (text.parent / "out").read_text(encoding="utf-8").split("\n") == [*expected, ""]
    assert capsys.readouterr().err == f"spec-dec-translate: all of {text} is in {text.parent / 'out'}\n"


def test_one_process_goes_on_after_three(text: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    assert translate(text) == 0
    monkeypatch.delenv("SLURM_ARRAY_TASK_COUNT")
    noted = text.parent / "out.parts" / "0-of-3"
    origin, _, *rest = noted.read_text(encoding="utf-8").split("\n")
    noted.write_text("\n".join([origin, "noted", *rest]), encoding="utf-8")
    assert translate(text) == 0
    assert (text.parent / "out").read_text(encoding="utf-8").split("\n") == ["noted", *expected[1:], ""]
    assert not (text.parent / "out.parts").exists()


def test_wrong_options_of_calls_leave_no_shards(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even in a process that has no lines."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "9")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "8")
    assert translate(text, "--decoder", "greedy", "--beam", "3") == 2
    assert "--beam 3: greedy keeps one hypothesis" in capsys.readouterr().err
    assert not (text.parent / "out.parts").exists()


def test_a_failed_worker_of_torchrun_waits_for_the_others(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun ends all workers when one ends with a failure, such as a line that is too long."""
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("WORLD_SIZE", "2"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ending, "_has_failed", False)
    text.write_text("word " * 1100 + "\nA dog .\n", encoding="utf-8")
    output, waited = text.parent / "out", []
    command = [MODEL, "--input", str(text), "--output", str(output), "--device", "cpu"]

    def run_the_other(_: float) -> None:
        waited.append(output.exists())
        monkeypatch.setenv("RANK", "1")
        assert cli.main(command) == 0

    monkeypatch.setattr(output_shards.time, "sleep", run_the_other)
    assert cli.main(command) == 0
    assert waited == [False] and len(output.read_text(encoding="utf-8").splitlines()) == 2
    assert not (text.parent / "out.parts").exists()


def test_several_processes(text: Path, expected: list[str], programs: Path) -> None:
    """A line that is too long ends no process: the status is 1, and all else is complete."""
    with text.open("a", encoding="utf-8") as file:
        file.write(f"{'word ' * 1100}\n")
    command = [str(programs / "spec-dec-translate"), MODEL, "--input", str(text)]
    command += ["--output", str(text.parent / "out"), "--device", "cpu", "--processes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert run.returncode == 1, run.stderr
    assert (text.parent / "out").read_text(encoding="utf-8").split("\n") == [*expected, "", ""]
    assert not (text.parent / "out.parts").exists()
    assert f"error: line {len(expected) + 1}: has 2201 tokens" in run.stderr and "processes failed" not in run.stderr
    # The text is one chunk, so the other process had nothing to do.
    sums = [line for line in run.stderr.splitlines() if line.startswith("gad: ")]
    assert len(sums) == 1 and sums[0].startswith(f"gad: {len(expected)} sentences, ")


def test_standard_input_to_standard_output(expected: list[str], programs: Path) -> None:
    command = [str(programs / "spec-dec-translate"), MODEL, "--device", "cpu", "--buffer-size", "2"]
    command += ["--input", "-", "--output", "-"]  # the default
    text = LINES[0].encode("utf-8-sig") + b" \xff\n" + "\n".join(LINES[1:]).encode()
    run = subprocess.run(command, cwd=REPOSITORY, input=text, capture_output=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.decode().split("\n")[1:] == [*expected[1:], ""]
    messages = run.stderr.decode().splitlines()
    assert messages[0] == "input, line 1: is not UTF-8; what is wrong was read as U+FFFD"
    assert len(messages) == 2 and messages[1].startswith("gad: 5 sentences, ")


def test_a_closed_standard_input(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert cli.main([MODEL]) == 2
    assert capsys.readouterr().err == "spec-dec-translate: error: --input -: is closed; give a file of text\n"


def test_sentences_of_lines(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = fairseq_plugins.load(MODEL, decoder="greedy", device="cpu")
    one, two, three = model.translate(["Two dogs play.", "A man sleeps.", "A woman sings."])
    lines = ["Two dogs play. A man sleeps.", "", "  A woman sings.\r", f"A man sleeps. {'word ' * 1100}"]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    assert translate(text, "--split", "sentences", "--decoder", "greedy") == 0
    assert (text.parent / "out").read_bytes().decode() == f"{one} {two}\n\n  {three}\r\n\n"
    assert "line 4: has " in capsys.readouterr().err
    (text.parent / "out").unlink()
    assert translate(text, "--split", "sentences", "--decoder", "greedy", "--output-format", "jsonl") == 0
    records = [json.loads(line) for line in (text.parent / "out").read_text(encoding="utf-8").splitlines()]
    assert [record["text"] for record in records] == [f"{one} {two}", "", f"  {three}\r", ""]
    assert [sentence["text"] for sentence in records[0]["sentences"]] == [one, two]
    assert all(sentence["iterations"] == len(sentence["tokens"]) + 1 for sentence in records[0]["sentences"])
    assert records[3] == {"line": 4, "text": "", "error": "too long"}
    assert cli.main([MODEL, "--split", "sentences", "--drafts", str(text), "--input", str(text)]) == 2
    assert "--split sentences: --drafts are for whole lines" in capsys.readouterr().err


REFUSED = [
    (["--input", "none"], "--input none: no such file"),
    (["--input", "."], "--input .: is a folder"),
    (["--input", "/dev/null"], "--input /dev/null: is not a regular file; give a file of text, or standard input"),
    (["--processes", "2"], "--processes: several processes share a file"),
    (["--output", "none/out"], "--output none/out: cannot be written"),
    (["--set", "lenpen"], "--set lenpen: give NAME=VALUE"),
    (["--set", "size=3"], "size: no such option"),
    (["--decoder", "iad", "--drafter", f"{MODEL}/drafter.pt"], "--decoder iad uses no drafter"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([MODEL, *options]) == 2
    messages = capsys.readouterr().err.splitlines()
    assert len(messages) == 1 and messages[0].startswith("spec-dec-translate: error: ") and message in messages[0]


def test_utf16_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_text("A dog.\n", encoding="utf-16")
    assert translate(text) == 2
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert cli.main([MODEL, "--device", "cpu"]) == 2
    message = "spec-dec-translate: error: input: is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"
    assert capsys.readouterr().err.splitlines() == [message, message]
    assert [file.name for file in tmp_path.iterdir()] == ["text"]

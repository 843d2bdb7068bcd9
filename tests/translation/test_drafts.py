"""`spec-dec-translate --drafts`: text and jsonl of earlier runs, and files that do not fit."""

import json
from pathlib import Path

import pytest

from fairseq_plugins.translation import cli
from tests.translation.test_translate import MODEL, expected, text, translate

__all__ = ["expected", "text"]

FIXED = ("--set", "fixed_width=true", "--output-format", "jsonl")


def iterations(file: Path, expected: list[str]) -> int:
    """Iterations that jsonl tells of, whose text is checked."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["text"] for line in lines] == expected
    return sum(line["iterations"] for line in lines)


def test_earlier_runs_are_drafts(text: Path, expected: list[str]) -> None:
    folder = text.parent
    assert translate(text, "--decoder", "greedy", "--output-format", "jsonl", output="old.jsonl") == 0
    greedy = iterations(folder / "old.jsonl", expected)
    (folder / "old.de").write_text("".join(f"{line}\n" for line in expected), encoding="utf-8")
    (folder / "other.de").write_text("\n\nein Hund\n\n\n", encoding="utf-8")
    for drafts, least, most in ((["old.jsonl"], 0, 8), (["old.de"], 0, 10), (["other.de"], greedy - 3, greedy)):
        files = [str(folder / name) for name in drafts]
        assert translate(text, *FIXED, "--drafts", *files) == 0
        assert least <= iterations(folder / "out", expected) <= most
    both = [str(folder / name) for name in ("other.de", "old.de")]
    assert translate(text, *FIXED, "--decoder", "reuse", "--drafts", *both) == 0
    assert iterations(folder / "out", expected) < greedy / 2


def test_options_that_contradict_drafts(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["--decoder", "greedy", "--drafts", str(text)], "--drafts: is for --decoder reuse, not greedy; leave one"),
        (["--drafts", str(text.parent / "none")], "/none: no such file"),
        (["--decoder", "gad", "--memory", "memory"], "--memory: is for --decoder reuse, not gad; leave one of them"),
        (["--memory-add"], "--memory-add: adds to a memory; give --memory FOLDER"),
    ):
        assert translate(text, *options) == 2
        assert message in capsys.readouterr().err
    assert cli.main([MODEL, "--drafts", str(text)]) == 2
    assert "--drafts: have a line for each line of a file; give --input" in capsys.readouterr().err


def test_outputs_are_remembered(text: Path, expected: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    memory = str(text.parent / "memory")
    assert translate(text, *FIXED, "--memory", memory) == 2
    assert f"--memory {memory}: has no memory.jsonl; " in capsys.readouterr().err
    assert not Path(memory).exists()
    assert translate(text, *FIXED, "--memory", memory, "--memory-add", output="first") == 0
    assert iterations(text.parent / "first", expected) > 10
    assert translate(text, *FIXED, "--memory", memory, output="second") == 0
    assert iterations(text.parent / "second", expected) <= 10
    # Beside drafts of a file.
    (text.parent / "empty").write_text("\n" * 5)
    both = ["--drafts", str(text.parent / "empty"), "--memory", memory]
    assert translate(text, *FIXED, *both, output="third") == 0
    assert iterations(text.parent / "third", expected) <= 10

"""`--help` and `--version` are fast, and equal the output of the commands' parsers."""

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fairseq_plugins import help_texts
from fairseq_plugins.benchmarks import compare
from fairseq_plugins.pages import report
from tests.help_texts import commands, texts


def test_texts_match_the_parsers() -> None:
    written = {file.name: file.read_text(encoding="utf-8") for file in help_texts.FOLDER.glob("*.txt")}
    assert written == texts(), "write them anew: python -m tests.help_texts"
    assert len(written) == len(commands()) + 3


def test_own_options_come_after_example_and_required_ones() -> None:
    text = (help_texts.FOLDER / "spec-dec-bench.txt").read_text(encoding="utf-8")
    parts = ["usage:", "Measure", "example:", "required:", "--path VERIFIER.pt  ", "comparison:", "--help-all"]
    assert sorted(parts, key=text.index) == parts
    assert "--trace-file" not in text and len(text.splitlines()) < 70


def test_help_all_shows_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        compare.main(["--help-all"])
    text = capsys.readouterr().out
    parts = ["--reference", "--trace-file", "--wandb-project"]
    assert sorted(parts, key=text.index) == parts


@pytest.mark.parametrize("command", [compare, report])
def test_missing_argument_is_one_line(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "arguments are required" in line and "--help)" in line


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["merge", "-h"]])
def test_help_does_not_import_torch(tmp_path: Path, arguments: list[str]) -> None:
    """Run in a process that cannot import torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('too slow')")
    script = tmp_path / "spec-dec-distill"
    script.write_text("import sys\nsys.path.insert(0, sys.argv.pop(1))\nimport fairseq_plugins\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [sys.executable, str(script), str(help_texts.FOLDER.parents[1]), *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 1
    expected = {"--help": "spec-dec-distill decode DATA", "--version": "fairseq-spec-dec ", "merge": "--keep-raw"}
    assert expected[arguments[0]] in run.stdout

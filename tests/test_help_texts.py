"""`--help` and `--version` are fast, and equal the output of the commands' parsers."""

import os
import resource
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from fairseq.tasks import TASK_REGISTRY

from fairseq_plugins import help_texts
from fairseq_plugins.benchmarks import benchmark
from fairseq_plugins.pages import show_trace
from fairseq_plugins.shared.parsing import refuse_wrong_arguments_of_fairseqs_tools
from tests.command_server import own_commands
from tests.help_texts import texts


def test_texts_match_the_parsers() -> None:
    written = {file.name: file.read_text(encoding="utf-8") for file in help_texts.FOLDER.glob("*.txt")}
    assert written == texts(), "write them anew: python -m tests.help_texts"
    assert len(written) == len(own_commands()) + 2


def test_help_all_shows_all_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        benchmark.main(["--help-all"])
    text = capsys.readouterr().out
    parts = ["--reference", "--trace-file", "--wandb-project"]
    assert sorted(parts, key=text.index) == parts


@pytest.mark.parametrize("command", [benchmark, show_trace])
def test_missing_argument_is_one_line(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "arguments are required" in line and line.endswith(" --help\n")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["merge", "-h"]])
def test_help_does_not_import_torch(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('too slow')")
    script = tmp_path / "spec-dec-distill"
    script.write_text("import sys\nsys.path.insert(0, sys.argv.pop(1))\nimport fairseq_plugins\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    started = [sys.executable, str(script), str(help_texts.FOLDER.parents[1]), *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = subprocess.run(started, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 1
    expected = {"--help": "spec-dec-distill decode DATA", "--version": "fairseq-spec-dec ", "merge": "--keep-raw"}
    assert expected[arguments[0]] in run.stdout


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        ("translate", "folder --bem 5", "--bem: no such option; did you mean --beam? (see spec-dec-translate --help)"),
        ("translate", "folder --max-len-b 5", "--max-len-b: no such option; give --set max_len_b=VALUE (see"),
        ("translate", "folder --beam} 5", "--beam}: no such option; did you mean --beam? (see"),
        ("translate", "folder --fp16", "--fp16: no such option; give --precision fp16 (see"),
        ("translate", "folder --precision fp61", "--precision fp61: no such value; did you mean fp16? (see"),
        ("translate", "folder --beam five", "--beam: 'five' is not a whole number of at least 1; see"),
        ("convert", "folder", "the following arguments are required: OUT; see"),
        ("distill", "merge data --shards s --destdir d --gen-subsets train", "did you mean --gen-subset? (see"),
        ("distill", "decode data --path p --output o --workers 0", "--workers: '0' is not"),
        ("bench", "data --path p --decoder greedyy", "--decoder greedyy: no such value; did you mean greedy? (see"),
    ],
)
def test_wrong_arguments_are_one_line(
    command: str, given: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, function = own_commands()[f"spec-dec-{command}"].split(":")
    monkeypatch.setattr(sys, "argv", [f"spec-dec-{command}", *given.split()])
    assert getattr(import_module(module), function)() == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"spec-dec-{command}: error: ") and message in err
    assert out == "" and err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("generate x --path x --decoder greedyy", "--decoder greedyy: no such value; did you mean greedy?"),
        ("generate x --path x --decoder greedy --beeam 5", "--beeam: no such option; did you mean --beam"),
        ("interactive x --path x --max-tokens many", "--max-tokens: invalid int value: 'many'"),
        (
            "train x --arch block_nat --criterion glat_los",
            "--criterion glat_los: no such value; did you mean glat_loss",
        ),
        ("train x", "the following arguments are required: --arch"),
    ],
)
def test_wrong_arguments_of_fairseqs_tools_are_one_line(
    given: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tool, *rest = given.split()
    monkeypatch.setattr(sys, "argv", [f"fairseq-{tool}", *rest, "--user-dir", "fairseq_plugins", "--task", "spec_dec"])
    with pytest.raises(SystemExit, match="2"):
        refuse_wrong_arguments_of_fairseqs_tools()
    line = capsys.readouterr().err
    assert line.startswith(f"error: {message}") and line.count("\n") == 1


@pytest.mark.parametrize(
    ("failure", "given", "missing"),
    [
        (None, "validate data --path model.pt", "--task"),
        (None, "train data", "--arch"),
        (KeyError("lang"), "validate data --path model.pt --task broken", None),
        (NotImplementedError(), "validate data --path model.pt --task broken", None),
    ],
)
def test_only_missing_options_are_called_missing(
    failure: Any, given: str, missing: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TASK_REGISTRY, "broken", mock.Mock(add_args=mock.Mock(side_effect=failure)))
    monkeypatch.setattr(sys, "argv", f"fairseq-{given} --user-dir fairseq_plugins".split())
    with pytest.raises(SystemExit if missing else type(failure)):
        refuse_wrong_arguments_of_fairseqs_tools()
    expected = f"error: the following arguments are required: {missing}\n" if missing else ""
    assert capsys.readouterr().err == expected

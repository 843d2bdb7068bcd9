"""Users' mistakes give one line with the remedy, and an exit status; bad_input.txt lists them."""

import fileinput
import gc
import importlib
import io
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import pytest
from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

from fairseq_plugins.checkpoint.tool_errors import excepthook
from fairseq_plugins.errors import on_command_line
from fairseq_plugins.metrics import texts as metrics
from fairseq_plugins.shared.draft_files import read_drafts
from fairseq_plugins.shared.fairseq_errors import wrong_option
from fairseq_plugins.shared.invalid_text import InvalidLines, read_invalid_text
from fairseq_plugins.translation.cli import main
from tests.command_server import own_commands
from tests.faults.released import Released, options, prepare
from tests.support import run_in_process
from train_scripts.runner import text as runner
from train_scripts.runner.settings import RecipeError
from train_scripts.tools import text

TABLE = Path(__file__).with_name("bad_input.txt")
CASES = re.findall(r"^\$ (.+)\n(.+)\nstatus (\d+)$", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
MAINS = {command: target.partition(":")[0] for command, target in own_commands().items()}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return prepare(tmp_path_factory.mktemp("released"))


@pytest.fixture(autouse=True)
def _input_stays_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fileinput, "hook_encoded", fileinput.hook_encoded)


def ended(command: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit status and its standard error."""
    with mock.patch.object(sys, "argv", [command, *arguments]):
        capsys.readouterr()
        try:
            if command in MAINS:
                status = importlib.import_module(MAINS[command]).main(arguments)
                return status, capsys.readouterr().err
            run_in_process(command.removeprefix("fairseq-"), "", *arguments, "--cpu")
        except SystemExit as end:  # of a parser
            return int(end.code or 0), capsys.readouterr().err
        except Exception:
            capsys.readouterr()
            # As Python does for an exception that ends a process, whose status is then 1.
            excepthook(*sys.exc_info())
            return 1, capsys.readouterr().err
    return 0, ""


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("one\r\ntwo\n", encoding="utf-8-sig", newline="\n")
    assert metrics.read_lines(str(file), "--references") == [*text.read_lines(file)] == ["one", "two"]
    assert read_drafts(str(file)) == ["one\r", "two"]
    file.write_text("", encoding="utf-8-sig")
    with pytest.raises(RecipeError, match="has no text"):
        runner.count_lines(file)


def test_the_whole_table_is_read() -> None:
    assert len(CASES) == TABLE.read_text(encoding="utf-8").count("$ ") >= 65


@pytest.mark.parametrize(("line", "message", "status"), CASES, ids=[case[0] for case in CASES])
def test_one_line(released: Released, capsys: pytest.CaptureFixture[str], line: str, message: str, status: str) -> None:
    names = asdict(released)
    command, *arguments = shlex.split(line.format(**names))
    ended_with, error = ended(command, arguments, capsys)
    assert "Traceback" not in error and "weights_only" not in error
    pattern = ".*".join(map(re.escape, message.format(**names).split("...")))
    lines = error.strip().splitlines()
    assert re.match(pattern, lines[-1]), lines[-1]
    assert sum("error: " in other for other in lines) == 1
    assert ended_with == int(status)
    assert not list(released.folder.iterdir())


def test_input_that_is_not_utf8_does_not_stop_the_rest(released: Released) -> None:
    """The bad line is reported and decoded with U+FFFD; other lines are unaffected."""
    decoder = options(released, "--decoder", "greedy", "--buffer-size", "2")
    whole = run_in_process("interactive", decoder, "--input", str(released.text)).stdout
    done = run_in_process("interactive", decoder, "--input", str(released.invalid))
    outputs, expected = (re.findall(r"^H-(\d+)\t\S+\t(.*)$", text, re.MULTILINE) for text in (done.stdout, whole))
    assert [number for number, _ in outputs] == ["0", "1", "2"]
    assert (outputs[0], outputs[2]) == (expected[0], expected[2])
    reports = [line for line in done.stderr.splitlines() if "UTF-8" in line]
    assert reports == ["input, line 2: is not UTF-8; what is wrong was read as U+FFFD"]


def test_a_binary_file_is_reported_in_a_few_lines(released: Released, capsys: pytest.CaptureFixture[str]) -> None:
    binary = released.bad / "binary"
    binary.write_bytes(b"\xff\n" * 8)
    error = run_in_process("interactive", options(released, "--decoder", "greedy", "--input", str(binary))).stderr
    main(["--verifier", str(released.verifier), "--data", str(released.data), "--device", "cpu",
          "--input", str(binary), "--output", str(released.bad / "translated")])  # fmt: skip
    gc.collect()
    named = [f"input, line {number}: is not UTF-8; what is wrong was read as U+FFFD" for number in range(1, 6)]
    for reports in (error, capsys.readouterr().err):
        total = "input: 8 lines are not UTF-8, of which the first 5 are named above"
        assert [line for line in reports.splitlines() if "UTF-8" in line] == [*named, total]


def test_lines_that_are_too_long_do_not_stop_the_rest(released: Released, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is reported and has no translation, and the exit status is 1; other lines are unaffected."""
    failed: list[str] = []
    monkeypatch.setattr("fairseq_plugins.tasks.spec_dec.fail", failed.append)
    common = ("--decoder", "greedy", "--input")
    whole = run_in_process("interactive", options(released, *common, str(released.text))).stdout
    first, *rest = released.text.read_text(encoding="utf-8").splitlines()
    text = released.bad / "some_long.txt"
    # A carriage return alone ends no line.
    text.write_text("\n".join([first, "a " * 3000, "\r\r".join(rest[0].split(" ", 1)), rest[1], ""]), encoding="utf-8")
    for size in ("1", "2", "10"):
        failed.clear()
        done = run_in_process("interactive", options(released, *common, str(text), "--buffer-size", size)).stdout
        outputs, expected = (re.findall(r"^H-(\d+)\t\S+\t(.*)$", printed, re.MULTILINE) for printed in (done, whole))
        assert outputs == [expected[0], ("2", expected[1][1]), ("3", expected[2][1])]
        assert failed == ["line 2: has 3001 tokens, and the model reads at most 1024; it has no translation; split it"]
    failed.clear()
    skip = "--skip-invalid-size-inputs-valid-test"
    skipping = run_in_process("interactive", options(released, *common, str(text), "--buffer-size", "10", skip)).stdout
    assert re.findall(r"^H-(\d+)\t\S+\t(.*)$", skipping, re.MULTILINE) == outputs and not failed


def test_constraints_of_a_task_that_has_none() -> None:
    with pytest.raises(NotImplementedError) as raised:
        TranslationMultiSimpleEpochTask.build_dataset_for_inference(None, [], [], constraints=[])
    error = wrong_option(raised.value, {"constraints": "ordered"})
    message = "--constraints ordered: is not for this --task; leave it out"
    assert error is not None and error.spelled(on_command_line) == message


def test_standard_input_of_interactive_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with <&- in a shell."""
    monkeypatch.setattr(sys, "stdin", None)
    with fileinput.input(["-"]) as lines, pytest.raises(AttributeError) as raised:
        next(lines)
    error = wrong_option(raised.value, {"input": "-"})
    assert error is not None and error.spelled(on_command_line) == "--input -: is closed; give a file of text"


def test_input_of_interactive_that_is_not_utf8(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Standard input, or a file; a byte order mark is no text."""
    content, file = b"\xef\xbb\xbfa\xff\xfe b\nc\n", tmp_path / "text"
    file.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["fairseq-interactive"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
    monkeypatch.setattr(fileinput, "hook_encoded", fileinput.hook_encoded)
    read_invalid_text()
    invalid = InvalidLines()
    for name in ("-", str(file)):
        with fileinput.input([name], openhook=fileinput.hook_encoded("utf-8")) as lines:
            assert invalid.mend(list(lines), 40) == ["a\ufffd b\n", "c\n"]
        assert capsys.readouterr().err == "input, line 41: is not UTF-8; what is wrong was read as U+FFFD\n"

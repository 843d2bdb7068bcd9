"""Output files: existing files survive failures, and each failed write is reported and sets the exit status.

Full disks are simulated by a limit on the size of files.
"""

import contextlib
import errno
import json
import os
import re
import resource
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_plugins.checkpoint.tool_errors import excepthook
from fairseq_plugins.decoding.recording.stats import DecodingStats, SentenceStats
from fairseq_plugins.process import ending
from fairseq_plugins.shared.files import destination, new_folder, write_atomically
from fairseq_plugins.shared.partial_file import PartialFile
from fairseq_plugins.translation.cli import _translate_stream
from tests.errors import error_about, refused
from tests.faults.released import Released, options, prepare
from tests.support import REPOSITORY, run_in_process

SENTENCES = 300
INSTALLED = Path(sys.executable).parent
MULTI30K = REPOSITORY / "checkpoints" / "multi30k.en-de"
FULL = "cannot be written (No space left on device); free disk space, or give another path"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes devices and file systems")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Released:
    return prepare(tmp_path_factory.mktemp("released"), SENTENCES // 4)


@pytest.fixture(autouse=True)
def failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_has_failed", False)


def write_lines(path: Path) -> None:
    """Write as `--stats-file` and `--trace-file` do."""
    file = PartialFile(str(path), "--output")
    file.write("ours\n")
    file.close()


def translate_stream(path: Path) -> None:
    """Write an output as spec-dec-translate does for input that is no regular file."""
    args = SimpleNamespace(input=__file__, buffer_size=10_000)
    translator: Any = SimpleNamespace(args=args, translate=lambda lines, before: ["ours\n"], summary=lambda: "")
    _translate_stream(translator, destination(path, "--output"))


WRITERS = pytest.mark.parametrize(
    "write", [lambda path: write_atomically(path, "ours\n", "--output"), write_lines, translate_stream]
)
Write = Callable[[Path], None]


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@WRITERS
def test_fifo_gets_the_lines_and_stays(tmp_path: Path, write: Write) -> None:
    fifo, lines = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: lines.append(fifo.read_bytes()), daemon=True)
    reader.start()
    write(fifo)
    reader.join(10)
    assert lines == [b"ours\n"] and stat.S_ISFIFO(fifo.stat().st_mode)
    assert [file.name for file in tmp_path.iterdir()] == ["fifo"]


@as_root
@WRITERS
def test_device_stays(tmp_path: Path, write: Write) -> None:
    device = tmp_path / "null"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    try:
        write(device)
    except PermissionError:
        pytest.skip("no devices on this file system")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert [file.name for file in tmp_path.iterdir()] == ["null"]


@WRITERS
def test_link_stays_and_its_target_is_replaced(tmp_path: Path, write: Write) -> None:
    (tmp_path / "far").mkdir()
    target, link, other_name = tmp_path / "far" / "target", tmp_path / "link", tmp_path / "other"
    link.symlink_to("far/target")
    write(link)  # to nothing yet
    assert link.is_symlink() and target.read_text() == "ours\n"
    target.write_text("old")
    os.link(target, other_name)
    write(link)
    assert link.is_symlink() and target.read_text() == "ours\n"
    # Replaced, not overwritten.
    assert other_name.read_text() == "old"


@WRITERS
def test_files_called_partial_are_kept(tmp_path: Path, write: Write) -> None:
    """Links, too, are not followed."""
    mine = {"out.partial": "mine", "out.2.partial": "mine", "precious": "mine"}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "out.3.partial").symlink_to(tmp_path / "precious")
    write(tmp_path / "out")
    assert contents(tmp_path) == {**mine, "out.3.partial": "mine", "out": "ours\n"}


@pytest.mark.parametrize("name", ["folder", "link to folder", "loop", ""])
@WRITERS
def test_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("link to folder").symlink_to("folder")
    Path("loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    with error_about("--output", f"^--output {name or '.?'}: (is a folder|cannot be written)"):
        write(name)
    assert sorted(tmp_path.rglob("*")) == before


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files, within the context."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_run_goes_on_where_its_file_cannot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed write is reported once, however many sentences follow; written lines and the old file stay."""
    path = tmp_path / "stats"
    path.write_text("old")
    stats = DecodingStats("gad", str(path))
    stats.backend = "torch: an ensemble of several models"
    with files_of_at_most(1000):
        for _ in range(50):
            stats.record([SentenceStats(3, 5, 7, 2, [4, 3], 2, 0.5)], 1.0)
        stats.close()
    messages = capsys.readouterr().err.splitlines()
    assert messages[0].startswith(f'error: stats_file="{path}": cannot be written (File too large)')
    assert messages[0].endswith(f"the lines so far are in {path}.partial")
    assert messages[1].startswith("gad: 50 sentences") and len(messages) == 2
    assert path.read_text() == "old" and json.loads(Path(f"{path}.partial").read_text().splitlines()[0])["backend"]
    assert ending._has_failed


def test_failure_that_closing_notices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder is removed during the run."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = PartialFile(str(folder / "trace"), "--trace-file")
    file.write("line\n")
    (folder / "trace.partial").unlink()
    folder.rmdir()
    file.close()
    assert capsys.readouterr().err.startswith(f'error: trace_file="{folder}/trace": cannot be written (No such file')
    assert ending._has_failed


def test_old_content_survives_a_failed_write(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("old")
    with files_of_at_most(1000), error_about("--results", "File too large"):
        write_atomically(path, "x" * 2000, "--results")
    assert path.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["table.json"]


@pytest.mark.parametrize(
    ("more", "message", "left"),
    [
        ("", "cannot be written (File too large)", ["generate-test.txt.partial"]),
        ("--tau 2", "is for --decoder gad++", []),
    ],
    ids=["full disk", "refused option"],
)
def test_unfinished_results_get_no_final_name(
    released: Released, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    more: str, message: str, left: list[str],
) -> None:  # fmt: skip
    line = options(released, "--decoder", "greedy", "--results-path", str(tmp_path), *shlex.split(more))
    monkeypatch.setattr(sys, "argv", ["fairseq-generate", *shlex.split(line)])
    with files_of_at_most(2000):
        try:
            run_in_process("generate", line)
        except Exception:
            excepthook(*sys.exc_info())
    error = capsys.readouterr().err
    assert message in error and [file.name for file in tmp_path.iterdir()] == left
    assert all(f"the lines so far are in {tmp_path}/{name}\n" in error for name in left)


@pytest.mark.parametrize("old", [None, "old"])
def test_another_process_has_written_the_file_meanwhile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str | None
) -> None:
    """As those of fairseq-generate --distributed-world-size 2 with one --stats-file."""
    path = tmp_path / "stats"
    if old is not None:
        path.write_text(old)
    first, second = (PartialFile(str(path), "--stats-file") for _ in range(2))
    first.write("first")
    second.write("second")
    first.close()
    assert path.read_text() == "first" and capsys.readouterr().err == ""
    second.close()
    assert path.read_text() == "first" and Path(f"{path}.2.partial").read_text() == "second"
    error = (
        f'stats_file="{path}": was written by another process meanwhile; the lines of this one are in {path}.2.partial'
    )
    assert capsys.readouterr().err == f"error: {error}; give each process a file of its own\n"
    assert ending._has_failed


def test_nothing_is_opened_to_find_out(tmp_path: Path) -> None:
    """Opening a FIFO without a reader would block the process before models are loaded."""
    os.mkfifo(tmp_path / "fifo")
    assert destination(tmp_path / "fifo", "--stats-file").is_direct


def start(
    released: Released, command: str, *more: str, redirect: str = "", programs: Path = INSTALLED
) -> subprocess.Popen:
    """Start a command through a shell, which redirects its output."""
    line = options(released, "--user-dir", str(REPOSITORY / "fairseq_plugins"), "--decoder", "greedy", *more)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    # Python buffers output, short output until the end.
    environment.pop("PYTHONUNBUFFERED", None)
    return subprocess.Popen(
        ["bash", "-c", f"exec {programs}/{command} {line} {redirect}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        # Background jobs of a shell (`make test &`) ignore SIGINT, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen) -> tuple[int, str, list[str]]:
    """Wait for a process; return exit status, standard output, and our messages on standard error."""
    stdout, stderr = process.communicate(timeout=200)
    assert "Traceback" not in stderr and "Exception" not in stderr and "Logging error" not in stderr, stderr
    messages = [line for line in stderr.splitlines() if re.match("error|interrupted|--|greedy", line)]
    return process.returncode, stdout, messages


def test_translations_come_though_statistics_cannot_be_written(released: Released, programs: Path) -> None:
    more = ("--input", str(released.text), "--stats-file", str(released.full))
    process = start(released, "fairseq-interactive", *more, programs=programs)
    status, stdout, messages = finish(process)
    assert len(re.findall("^H-", stdout, re.MULTILINE)) == released.lines
    assert messages[0] == f"error: --stats-file {released.full}: {FULL}"
    assert messages[1].startswith(f"greedy: {released.lines} sentences") and len(messages) == 2
    assert status == 1 and released.full.is_char_device()


def test_statistics_and_trace_on_standard_output(released: Released, programs: Path, tmp_path: Path) -> None:
    """Translations, statistics and traces share one file; all lines are whole and none is overwritten."""
    both, standard_output = tmp_path / "both", tmp_path / "stdout"
    # A link, since a faulty run would destroy /dev/stdout itself.
    standard_output.symlink_to("/dev/stdout")
    more = ("--stats-file", str(standard_output), "--trace-file", str(both))
    status, _, messages = finish(start(released, "fairseq-generate", *more, redirect=f"> {both}", programs=programs))
    lines = both.read_text(encoding="utf-8").splitlines()
    assert status == 0 and messages[-1].startswith("greedy: ") and standard_output.is_symlink()
    assert sum(line.startswith("H-") for line in lines) == released.lines
    records = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(records) == 2 * released.lines + 1


@pytest.mark.parametrize(
    ("command", "redirect", "expected"),
    [
        # A short output is written when the process ends, a long one by print.
        ("fairseq-interactive", "> /dev/full", ["No space left on device"]),
        ("fairseq-generate", "> /dev/full", ["No space left on device"]),
        ("fairseq-interactive", ">&-", ["it is closed"]),
        ("fairseq-generate", "> >(true)", []),
    ],
)
def test_standard_output_that_takes_nothing(
    released: Released, programs: Path, tmp_path: Path, command: str, redirect: str, expected: list[str]
) -> None:
    """The first command runs without the command server, which must not change how it ends."""
    text = tmp_path / "one"
    text.write_text(released.text.read_text(encoding="utf-8").splitlines()[0] + "\n", encoding="utf-8")
    more = ("--input", str(text)) if command == "fairseq-interactive" else ()
    if (command, redirect) == ("fairseq-interactive", "> /dev/full"):
        programs = INSTALLED
    status, _, messages = finish(start(released, command, *more, redirect=redirect, programs=programs))
    messages = [line for line in messages if not line.startswith("greedy: ")]
    assert messages == [
        f"error: standard output: cannot be written ({reason}); send it to a disk with free space"
        for reason in expected
    ]
    assert status == (1 if expected else 141)


@pytest.mark.parametrize(
    ("redirect", "status", "error"),
    [
        ("> >(head -n 1)", 141, ""),
        ("> /dev/full", 2, "spec-dec-translate: error: standard output: cannot be written (No space left on device);"),
    ],
)
def test_translation_whose_output_is_not_taken(redirect: str, status: int, error: str) -> None:
    """Models that the traceback holds are no leak to report. The command server ends processes in another way."""
    line = f"exec {INSTALLED}/spec-dec-translate {MULTI30K} --device cpu --buffer-size 1 {redirect}"
    text = "Two dogs play.\n" * 3000
    done = subprocess.run(["bash", "-c", line], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == status and done.stdout.count("\n") == (not error)
    assert done.stderr.startswith(error) and done.stderr.count("\n") == bool(error)


def test_interrupted_run_keeps_what_it_has(released: Released, programs: Path, tmp_path: Path) -> None:
    """Ctrl-C, sent to all processes: no traceback, exit status 130 in a shell, whole lines in the partial file."""
    stats, output = tmp_path / "stats", tmp_path / "output"
    more = ("--batch-size", "1", "--no-compiled-steps", "--min-len", "60", "--stats-file", str(stats))
    more += ("--num-workers", "1")
    process = start(released, "fairseq-generate", *more, redirect=f"> {output}", programs=programs)
    partial = Path(f"{stats}.partial")
    for _ in range(3000):
        if partial.exists() and partial.read_text().count("\n") > 3:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    status, _, messages = finish(process)
    # The process ends by the signal, so that a shell ends its loop: $? is 128 + 2.
    assert status == -signal.SIGINT
    assert messages == ["interrupted", f"--stats-file {stats}: not finished; the lines so far are in {partial}"]
    kept = [json.loads(line) for line in partial.read_text().splitlines()]
    assert 3 < len(kept) < released.lines and not stats.exists()
    assert len(re.findall("^H-", output.read_text(encoding="utf-8"), re.MULTILINE)) >= len(kept) - 1


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), FULL),
        (
            PermissionError(errno.EACCES, "Permission denied", "dict.txt"),
            "dict.txt: cannot be read (Permission denied)",
        ),
    ],
    ids=["writing", "reading"],
)
def test_a_failed_folder_leaves_nothing(tmp_path: Path, error: OSError, words: str) -> None:
    with refused(re.escape(words)), new_folder(tmp_path / "new") as folder:
        (folder / "file").write_text("text")
        raise error
    assert not list(tmp_path.iterdir())


def test_a_folder_that_another_process_has_written_meanwhile_stays(tmp_path: Path) -> None:
    """As two jobs that convert the same model."""
    theirs = tmp_path / "out/theirs"
    words = "--destdir .*/out: was written by another process meanwhile; use that, or give another folder"
    with refused(words), new_folder(theirs.parent, "--destdir"):
        theirs.parent.mkdir()
        theirs.touch()
    assert sorted(tmp_path.rglob("*")) == [theirs.parent, theirs]

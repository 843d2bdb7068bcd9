"""The table of docs/reliability.md: each fault in each command that can resume."""

import errno
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from fairseq_plugins import Memory
from fairseq_plugins.distillation import cli as distill
from fairseq_plugins.distillation.decode import Teacher
from fairseq_plugins.distillation.shards import read_sentences
from fairseq_plugins.process.training import stop_on_request
from fairseq_plugins.shared.cli import run_command
from fairseq_plugins.shared.files import lock
from fairseq_plugins.translation import cli as translate
from fairseq_plugins.translation import output_shards
from tests.conftest import TINY, Corpus
from tests.support import REPOSITORY, run_in_process
from train_scripts.runner import stages

pytestmark = pytest.mark.xdist_group("matrix")


def _train(corpus: Corpus, folder: Path) -> int:
    run_in_process(
        "train",
        f"{corpus.data} --task translation --arch transformer {TINY} --criterion cross_entropy --optimizer adam --cpu "
        "--lr 0.01 --max-tokens 100 --max-update 4 --save-interval-updates 1 --no-epoch-checkpoints --num-workers 0 "
        f"--disable-validation --keep-interval-updates 1 --save-dir {folder}/model",
    )
    return 0


def _distill(corpus: Corpus, folder: Path) -> int:
    command = f"decode {corpus.data} --path {corpus.verifier} --output {folder}/shards --cpu --decoder greedy"
    return distill.main([*command.split(), "--gen-subset", "valid", "--batch-size", "6"])


def _translate(corpus: Corpus, folder: Path) -> int:
    command = f"--verifier {corpus.verifier} --data {corpus.data} --device cpu --output {folder}/out"
    with mock.patch.object(output_shards, "CHUNK", 4), mock.patch.object(translate, "CHUNK", 4):
        return translate.main([*command.split(), "--input", f"{corpus.text}/test.src"])


def _remember(corpus: Corpus, folder: Path) -> int:
    def remember(argv: Sequence[str]) -> None:
        memory = Memory(folder / "memory")
        for number in range(4):
            if memory.drafts(f"source {number}") != [f"target {number}"]:
                memory.add([f"source {number}"], [f"target {number}"])

    return run_command("spec-dec-x", remember, [])


def _weights(folder: Path) -> object:
    model = torch.load(folder / "model/checkpoint_last.pt")["model"]
    return {name: value.tolist() for name, value in model.items()}


def _sentences(folder: Path) -> object:
    return sorted(read_sentences(folder / "shards/valid.0-of-1.tsv"), key=lambda sentence: sentence.number)


@dataclass(frozen=True)
class Command:
    """A command that can resume.

    Attributes:
        run: runs the command in a folder, and returns its exit status.
        result: returns the results of a finished run.
        step: object and name of the function that is called for each piece of work saved.
        partial: file that the process locks.
    """

    run: Callable[[Corpus, Path], int]
    result: Callable[[Path], object]
    step: tuple[Any, str]
    partial: str


COMMANDS = {
    "training": Command(_train, _weights, (Trainer, "save_checkpoint"), "model/.lock"),
    "distilling": Command(_distill, _sentences, (Teacher, "decode"), "shards/valid.0-of-1.tsv.partial"),
    "translating": Command(_translate, lambda folder: (folder / "out").read_text(),
                           (translate.Translator, "translate"), "out.parts/0-of-1.partial"),
    "memory": Command(_remember, lambda folder: (folder / "memory/memory.jsonl").read_text(), (Memory, "add"),
                      "memory/memory.jsonl"),
}  # fmt: skip
CELLS = pytest.mark.parametrize("name", COMMANDS)


def _fill_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    # fairseq waits between its attempts to write.
    vars(checkpoint_utils)["time"] = SimpleNamespace(time=time.time, sleep=lambda seconds: None)


# Fault injected before the second step, and the exit status of our commands and of fairseq-train.
FAULTS: dict[str, tuple[Callable[[], None], int, int]] = {
    "kill -9": (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL, -signal.SIGKILL),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM, -signal.SIGTERM),
    "SIGUSR1": (lambda: os.kill(os.getpid(), signal.SIGUSR1), 138, 0),
    "disk full": (_fill_disk, 2, 1),
}


def calls(command: Command, run: Callable[[], object], fault: Callable[[], None] = lambda: None) -> int:
    """Run a function with a fault before the second step of a command; return the number of steps."""
    holder, name = command.step
    step, numbers = getattr(holder, name), count()

    def counted(*arguments: Any, **options: Any) -> Any:
        if next(numbers) == 1:
            fault()
        return step(*arguments, **options)

    with mock.patch.object(holder, name, counted):
        run()
    return next(numbers)


def in_fork(run: Callable[[], int]) -> tuple[int, str]:
    """Run a function in a fork; return its exit status (negative for a signal) and its output."""
    reads, writes = os.pipe()  # limits on the size of files do not apply to pipes
    child = os.fork()
    if child == 0:
        status = 1
        with suppress(BaseException):
            for number in (1, 2):
                os.dup2(writes, number)
            sys.stdout, sys.stderr = (open(number, "w", buffering=1) for number in (1, 2))  # pytest has its own
            status = run()
        os._exit(status)
    os.close(writes)
    with open(reads, encoding="utf-8", errors="replace") as file:
        output = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


@pytest.fixture(scope="module")
def undisturbed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, int]]:
    """Result and number of steps of each command without a fault."""
    results = {}
    for name, command in COMMANDS.items():
        folder = tmp_path_factory.mktemp(name)
        steps = calls(command, lambda: command.run(corpus, folder))  # noqa: B023
        results[name] = command.result(folder), steps
    return results


@CELLS
@pytest.mark.parametrize("fault", FAULTS)
def test_work_goes_on(
    corpus: Corpus, undisturbed: dict[str, tuple[object, int]], tmp_path: Path, name: str, fault: str
) -> None:
    """After a fault, the same command resumes and gives the result of an undisturbed run."""
    command, (happens, status, of_fairseq) = COMMANDS[name], FAULTS[fault]

    def run() -> int:
        sys.argv[0] = "fairseq-train" if name == "training" else "spec-dec-x"
        stop_on_request()
        done: list[int] = []
        calls(command, lambda: done.append(command.run(corpus, tmp_path)), happens)
        return done[0]

    exit_status, output = in_fork(run)
    assert exit_status == (of_fairseq if name == "training" else status), output
    if name != "training":
        assert "Traceback" not in output
        assert ("cannot be written (File too large)" in output) == (fault == "disk full")
        assert ("stopped by SIGUSR1; what is finished is kept" in output) == (fault == "SIGUSR1")
    result, steps = undisturbed[name]
    assert calls(command, lambda: command.run(corpus, tmp_path)) < steps
    assert command.result(tmp_path) == result


@pytest.mark.parametrize(("number", "status"), [(signal.SIGUSR1, 138), (signal.SIGINT, 130)])
def test_a_signal_that_interrupts_a_destructor(number: signal.Signals, status: int) -> None:
    """Python drops exceptions there, and in callbacks of weak references: the run went on to its time limit."""

    class Freed:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)

    def work(argv: Sequence[str]) -> None:
        Freed()
        time.sleep(20)

    def run() -> int:
        sys.argv[0] = "spec-dec-x"
        return run_command("spec-dec-x", work, [])

    exit_status, output = in_fork(run)
    assert exit_status == status and len(output.splitlines()) == 1, output


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder that not even root can write to."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield folder
        return
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def run_stage(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a stage of a recipe, which locks the folder of its models."""
    command = shlex.join([sys.executable, "-m", "train_scripts.runner", "log", f"{folder}/log", "true"])
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LOCK": f"{folder}/.lock", "LOCK_SECONDS": "0"}
    return subprocess.run(["bash", "-c", command], env=variables, capture_output=True, text=True)


@CELLS
def test_read_only_file_system(corpus: Corpus, read_only: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    if name == "training":
        done = run_stage(read_only)
        status, error = done.returncode, done.stderr
    else:
        status, error = COMMANDS[name].run(corpus, read_only), capsys.readouterr().err
    assert status == 2 and "cannot be written (" in error and len(error.splitlines()) == 1


@CELLS
def test_two_writers(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A second process without an array is refused; jobs of an array take other shards (test_translate.py)."""
    command = COMMANDS[name]
    file = tmp_path / command.partial
    file.parent.mkdir()
    with file.open("a") as held:
        lock(held, file)
        if name == "training":
            assert "another run is writing to " in run_stage(file.parent).stderr
            return
        if name == "memory":
            Timer(0.3, held.close).start()  # one waits for the other
            assert command.run(corpus, tmp_path) == 0
            return
        assert command.run(corpus, tmp_path) == 2
        assert "another process writes it; wait for it or end it first" in capsys.readouterr().err
    assert command.run(corpus, tmp_path) == 0


@CELLS
def test_a_file_system_without_locks(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    if name == "training":
        stages.lock(tmp_path / ".lock")
        said = f"Note: {tmp_path} cannot be locked (No locks available); start no second run there.\n"
        assert capsys.readouterr().out == said
        return
    assert COMMANDS[name].run(corpus, tmp_path) == 2
    assert "cannot be locked (No locks available); give a path on a file system with locks" in capsys.readouterr().err


def test_the_page_has_this_table() -> None:
    page = (REPOSITORY / "docs/reliability.md").read_text(encoding="utf-8").partition("## What survives a failure")[2]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if row.startswith("|")]
    assert rows[0] == ["fault", *COMMANDS] and all(len(row) == len(rows[0]) and all(row) for row in rows)
    faults = [*FAULTS, "node gone", "read-only", "no locks", "two writers"]
    assert [row[0] for row in rows[2:]] == faults

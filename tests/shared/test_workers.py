"""Processes of torchrun: training together, and ending together."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fairseq_plugins.process import ending
from fairseq_plugins.process.output import PARENT
from fairseq_plugins.shared import cli, workers
from fairseq_plugins.shared.cli import TimeIsUp, run_command
from fairseq_plugins.shared.workers import start_processes
from tests.errors import error_about
from tests.support import make_args, make_task
from train_scripts.runner import __main__ as runner


def test_processes_that_would_train_two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --distributed-world-size each process would train its own model: refused."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with error_about("--distributed-world-size", "1: torchrun started 2 processes, .*; add --distributed-world-size 2"):
        make_task().build_model(make_args())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `worker`, for `start_processes`."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "worker.py"


@pytest.mark.parametrize(
    ("statuses", "message"),
    [
        ([0, 1], ""),
        ([2, 0], "1 of 2 processes failed, for the reason given above;"),
        ([130, 1], "1 of 2 processes failed, ended by a signal (Interrupt);"),
        ([2, 141], "1 of 2 processes failed, for the reason given above;"),
        ([-9, 0], "1 of 2 processes failed, ended by a signal (Killed);"),
        ([-9, -34], "2 of 2 processes failed, ended by a signal (Killed, Real-time signal 0);"),
    ],
)
def test_processes_that_fail(
    statuses: list[int], message: str, module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that went on after a failure has the status 1, and lets this one have it."""
    monkeypatch.setattr(ending, "_has_failed", False)
    end = "os._exit(status) if status >= 0 else os.kill(os.getpid(), -status)"
    module.write_text(f"import os\nstatus = {statuses}[int(os.environ['RANK'])]\n{end}")
    status = run_command("spec-dec-x", lambda argv: start_processes(2, "worker", argv), [])
    assert status == (2 if message else 0) and message in capsys.readouterr().err
    assert ending._has_failed == (1 in statuses)


def test_processes_whose_reader_has_ended(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They say nothing, and neither does this one."""
    module.write_text("import os\nos._exit(141 * int(os.environ['RANK']))")
    with pytest.raises(SystemExit, match="141"):
        run_command("spec-dec-x", lambda argv: start_processes(2, "worker", argv), [])
    assert capsys.readouterr().err == ""


def test_processes_import_nothing_of_the_current_folder(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a command does: a user's file may be named as a module."""
    module.write_text("import statistics")
    (module.parent / "texts").mkdir()
    (module.parent / "texts/statistics.py").write_text("raise SystemExit(2)")
    monkeypatch.chdir(module.parent / "texts")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    start_processes(1, "worker", [])


def test_processes_that_are_interrupted(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C reaches this process, which ends the others."""
    interrupt = f"if os.environ['RANK'] == '1':\n  os.kill({os.getpid()}, signal.SIGINT)"
    module.write_text(f"import os, signal, time\n{interrupt}\ntime.sleep(10**6)")
    assert run_command("spec-dec-x", lambda argv: start_processes(2, "worker", argv), []) == 130
    assert capsys.readouterr().err == "spec-dec-x: interrupted\n"


def test_processes_that_a_time_limit_stops(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Slurm may signal all processes of a job: only the first one says it, and requeues the job."""

    def stop(_: Sequence[str]) -> None:
        raise TimeIsUp

    for name in (PARENT, "REQUEUE", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "1")
    assert run_command("spec-dec-x", stop, []) == 138 and capsys.readouterr().err == ""


@pytest.mark.parametrize(("value", "requeues"), [("1", True), ("yes", True), ("0", False), ("", False)])
@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({"SLURM_JOB_ID": "7"}, "7"),
        ({"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3"),
    ],
    ids=["job", "array"],
)
@pytest.mark.parametrize("requeue", [cli.requeue, runner.requeue])
def test_a_job_is_requeued_on_request(
    requeue: Callable[[], None],
    variables: dict[str, str],
    job: str,
    value: str,
    requeues: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By commands and recipes alike. The number of one task of an array is that of the array: of all its tasks."""
    run: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", run.append)
    monkeypatch.setattr(os, "environ", {"REQUEUE": value, **variables})
    requeue()
    assert run == [["scontrol", "requeue", job]] * requeues


@pytest.mark.parametrize("given", [None, "7"])
def test_processes_share_the_cores(given: str | None, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(9)))
    module.write_text("import os, sys\nopen(sys.argv[1], 'a').write(os.environ['OMP_NUM_THREADS'])")
    start_processes(2, "worker", [str(module.parent / "threads")])
    assert (module.parent / "threads").read_text() == 2 * (given or "4")


def test_workers_end_with_a_killed_parent() -> None:
    reads, writes = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.environ[PARENT] = str(os.getpid())
        if os.fork() == 0:
            workers.end_with_parent()
            os.write(writes, b"%d " % os.getpid())
        time.sleep(300)
        os._exit(0)
    worker = int(os.read(reads, 20))
    assert _runs(worker)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    end = time.monotonic() + 200
    while _runs(worker) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _runs(worker)
    for end_of_pipe in (reads, writes):
        os.close(end_of_pipe)


def test_workers_whose_parent_was_killed_before() -> None:
    """A killed parent stays in the table of processes until its own parent collects it."""
    worker = os.fork()
    if worker == 0:
        os.environ[PARENT] = str(os.getpid())  # runs, and is not the parent
        with contextlib.suppress(SystemExit):
            workers.end_with_parent()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(worker, 0)[1] == 0


def _runs(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"

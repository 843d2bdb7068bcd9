"""Share shards of the work among processes, and start one process for each GPU."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from torch import distributed

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.process.ending import FAILED, set_failed
from fairseq_plugins.process.output import PARENT, READER_IS_GONE, say
from fairseq_plugins.shared.files import HeldByAnother

_PR_SET_PDEATHSIG = 1  # of Linux's prctl

WAIT_SECONDS = 2.0
"""Interval at which a waiting process checks whether shards of other processes are finished or free."""

T = TypeVar("T")


@dataclass(frozen=True)
class Worker:
    """This process among those that share the work: its rank in a Slurm array and in torchrun."""

    job: int = 0  # index of its job in the Slurm array
    num_jobs: int = 1
    rank: int = 0  # torchrun's, within the job
    world_size: int = 1  # torchrun's, processes per job
    device: int = 0  # index of the GPU
    spawned: bool = False  # whether torchrun or `start_processes` started this process
    run_id: str = ""  # id of the array or of torchrun's run; empty without

    @property
    def index(self) -> int:
        """Number of this process among those of all jobs; not unique in an array with gaps."""
        return self.job * self.world_size + self.rank

    @property
    def num_workers(self) -> int:
        """Number of processes that share the work."""
        return self.num_jobs * self.world_size


def find_worker(environment: Mapping[str, str] = os.environ) -> Worker:
    """Return this process's rank, from the environment variables of Slurm arrays and torchrun."""

    def number(name: str, default: int) -> int:
        return int(environment.get(name) or default)

    step = number("SLURM_ARRAY_TASK_STEP", 1)
    first = number("SLURM_ARRAY_TASK_MIN", 0)
    spawned = "TORCHELASTIC_RUN_ID" in environment
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    return Worker(
        job=(number("SLURM_ARRAY_TASK_ID", first) - first) // step,
        num_jobs=number("SLURM_ARRAY_TASK_COUNT", 1),
        rank=number("RANK", 0) if spawned else 0,
        world_size=number("WORLD_SIZE", 1) if spawned else 1,
        device=number("LOCAL_RANK", 0) if spawned else 0,
        spawned=spawned,
        run_id=environment.get("SLURM_ARRAY_JOB_ID") or ("" if run == "none" else run),
    )


def take_shards(
    worker: Worker, count: int, is_finished: Callable[[int], bool], begin: Callable[[int], T]
) -> Iterator[T]:
    """Begin this worker's share of the unfinished shards, one after the other; yield what `begin` returns.

    A worker prefers shards index, index + num_workers, ..., and takes others if these are finished or held, so that
    gaps in an array and failed jobs leave no shard. It waits if all others are held. `begin` locks and opens a shard;
    it raises HeldByAnother if another process has it, and so does this if no other process shares the work.
    """
    order = sorted(range(count), key=lambda shard: (shard - worker.index) % worker.num_workers)
    share, is_waiting = -(-count // worker.num_workers), False
    while share and (left := [shard for shard in order if not is_finished(shard)]):
        for shard in left:
            try:
                begun = begin(shard)
            except HeldByAnother as error:
                held = error
                continue
            yield begun
            share -= 1
            break
        else:
            if worker.num_workers == 1:
                raise held
            if not is_waiting:
                say(f"waiting for other processes, which write what is left: {held.file}")
            is_waiting = True
            time.sleep(WAIT_SECONDS)


def check_trains_together(worker: Worker) -> None:
    """Raise ConfigurationError if each process of torchrun would train its own model into the same folder.

    By default fairseq joins as many processes as there are GPUs, however many torchrun has started.
    """
    joined = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    started = worker.world_size
    if worker.spawned and started != joined:
        problem = f"torchrun started {started} processes, so that each process or group would train a model of its own"
        remedy = f"add {{--distributed-world-size {started}}}, or without GPUs start one process"
        raise ConfigurationError("--distributed-world-size", joined, problem, remedy)


def end_with_parent() -> None:
    """Let the system end this process when the one of `start_processes` is killed, which started it."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it was killed before
        raise SystemExit(128 + signal.SIGTERM)


def start_processes(count: int, module: str, argv: Sequence[str]) -> None:
    """Run a module of this package with these arguments in `count` processes, which share its work.

    Failures that a process reported while it went on are those of this process at its end.

    Raises:
        ConfigurationError: if one of them failed, which has printed its own error.
        SystemExit: if the reader of the output of one has ended (`| head`), and no other failed.
    """
    sys.stdout.flush()
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    variables = {"OMP_NUM_THREADS": str(threads), **os.environ, PARENT: str(os.getpid())}
    variables |= {"TORCHELASTIC_RUN_ID": uuid4().hex, "WORLD_SIZE": str(count)}
    # Without -P Python would import a statistics.py of the current folder, which commands do only after `python -m`.
    options = ["-P"] if sys.modules["__main__"].__spec__ is None else []
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in map(str, range(count)):
            environment = {**variables, "RANK": rank, "LOCAL_RANK": rank}
            processes.append(subprocess.Popen([sys.executable, *options, "-m", module, *argv], env=environment))
        statuses = [process.wait() for process in processes]
    finally:  # after Ctrl-C, or a signal before a time limit
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    if FAILED in statuses:
        set_failed()
    failed = [status for status in statuses if status not in (0, FAILED, READER_IS_GONE)]
    if failed:
        numbers = {-status if status < 0 else status - 128 for status in failed} & signal.valid_signals()
        signals = sorted(str(signal.strsignal(number)) for number in numbers)
        reason = f"ended by a signal ({', '.join(signals)})" if signals else "for the reason given above"
        problem = f"{len(failed)} of {count} processes failed, {reason}"
        remedy = "mend it and run the same command again: what is finished is kept"
        raise ConfigurationError(None, None, problem, remedy)
    if READER_IS_GONE in statuses:
        raise SystemExit(READER_IS_GONE)

"""Share parts of the work among processes, and start one process for each GPU."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import distributed

from fairseq_plugins.commands.files import HeldByAnother
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.output import say

WAIT_SECONDS = 2.0
"""How often a process looks whether the parts that others hold are finished or free."""

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """The rank of a process among those that share the work."""

    job: int = 0  # index of this job in a Slurm array
    jobs: int = 1
    rank: int = 0  # of the process in its job, as torchrun numbers them
    world: int = 1
    device: int = 0  # index of the GPU
    spawned: bool = False  # whether torchrun started this process
    call: str = ""  # name of the array or of torchrun's run; empty without

    @property
    def index(self) -> int:
        """Number of this process among those of all jobs; not unique in an array with gaps."""
        return self.job * self.world + self.rank

    @property
    def width(self) -> int:
        """Number of processes that share the work."""
        return self.jobs * self.world


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """Read the place from the variables of Slurm arrays and torchrun."""

    def number(name: str, default: int) -> int:
        return int(environment.get(name) or default)

    step = number("SLURM_ARRAY_TASK_STEP", 1)
    first = number("SLURM_ARRAY_TASK_MIN", 0)
    spawned = "TORCHELASTIC_RUN_ID" in environment
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    return Place(
        job=(number("SLURM_ARRAY_TASK_ID", first) - first) // step,
        jobs=number("SLURM_ARRAY_TASK_COUNT", 1),
        rank=number("RANK", 0) if spawned else 0,
        world=number("WORLD_SIZE", 1) if spawned else 1,
        device=number("LOCAL_RANK", 0) if spawned else 0,
        spawned=spawned,
        call=environment.get("SLURM_ARRAY_JOB_ID") or ("" if run == "none" else run),
    )


def take_parts(place: Place, count: int, is_finished: Callable[[int], bool], begin: Callable[[int], T]) -> Iterator[T]:
    """Begin this process's share of the unfinished parts, one after the other; yield what `begin` returns.

    A process prefers parts index, index + width, ..., and takes others if these are finished or held, so that gaps in
    an array and failed jobs leave no part. It waits if all other parts are held. `begin` locks a part and opens it.
    Raises ConfigurationError if a part is held although no other process shares the work.
    """
    order = sorted(range(count), key=lambda part: (part - place.index) % place.width)
    share, is_waiting = -(-count // place.width), False
    while share and (left := [part for part in order if not is_finished(part)]):
        for part in left:
            try:
                begun = begin(part)
            except HeldByAnother as error:
                held = error
                continue
            yield begun
            share -= 1
            break
        else:
            if place.width == 1:
                raise held
            if not is_waiting:
                say(f"waiting for other processes, which write what is left: {held.file}")
            is_waiting = True
            time.sleep(WAIT_SECONDS)


def check_trains_together(place: Place) -> None:
    """Raise ConfigurationError if processes of torchrun would each train a model into the same folder.

    fairseq expects as many processes as GPUs, whatever torchrun has started.
    """
    world = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
    if place.spawned and place.world != world:
        raise ConfigurationError(
            f"torchrun started {place.world} processes, and --distributed-world-size is {world}: each process or group "
            f"would train a model of its own; add --distributed-world-size {place.world}, or without GPUs "
            "start one process"
        )


def start_processes(count: int, module: str, argv: Sequence[str]) -> None:
    """Run a module of this package with these arguments in `count` processes, by torchrun, and wait for them.

    Raises:
        ConfigurationError: when one of them failed; it has said why.
        KeyboardInterrupt: after Ctrl-C.
        SystemExit: after SIGTERM, as `scancel` sends it.
    """
    # Fifty modules that one process does not need.
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    sys.stdout.flush()
    arguments = ["--standalone", "--nproc-per-node", str(count), "-m", module, *argv]
    try:
        torchrun.main(arguments)
    except SignalException as error:  # torchrun has ended the processes
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from error
        raise SystemExit(128 + error.sigval) from error
    except ChildFailedError as error:
        raise ConfigurationError(
            f"{len(error.failures)} of {count} processes failed, for the reason given above; mend it and run the same "
            "command again: what is finished is kept"
        ) from error

"""Which shards a process decodes, and the start of one process for each GPU."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from fairseq_plugins.errors import ConfigurationError


@dataclass(frozen=True)
class Place:
    """Where a process stands among those that share the work.

    Attributes:
        job, jobs: index of this job in a Slurm array, and how many jobs that has; 0 of 1 elsewhere.
        rank, world: the same for the processes of a job, as torchrun numbers them.
        device: index of the GPU to use.
        spawned: whether torchrun started this process.
    """

    job: int = 0
    jobs: int = 1
    rank: int = 0
    world: int = 1
    device: int = 0
    spawned: bool = False


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """Read the place from the variables of Slurm arrays and torchrun."""

    def number(name: str, default: int) -> int:
        return int(environment.get(name) or default)

    step = number("SLURM_ARRAY_TASK_STEP", 1)
    first = number("SLURM_ARRAY_TASK_MIN", 0)
    spawned = "TORCHELASTIC_RUN_ID" in environment
    return Place(
        job=(number("SLURM_ARRAY_TASK_ID", first) - first) // step,
        jobs=number("SLURM_ARRAY_TASK_COUNT", 1),
        rank=number("RANK", 0) if spawned else 0,
        world=number("WORLD_SIZE", 1) if spawned else 1,
        device=number("LOCAL_RANK", 0) if spawned else 0,
        spawned=spawned,
    )


def shards_of(place: Place, shards: int, shard: int | None) -> list[int]:
    """Shards that the process at `place` decodes: `shard` alone, or its share of all.

    Raises:
        ConfigurationError: for a shard that does not exist.
    """
    if shard is not None:
        if not 0 <= shard < shards:
            raise ConfigurationError(
                f"--shard-id {shard}: give a number from 0 to {shards - 1} (--num-shards {shards})"
            )
        return [shard]
    return list(range(place.job, shards, place.jobs))[place.rank :: place.world]


def start_processes(count: int, module: str, argv: Sequence[str]) -> None:
    """Run a module of this package with these arguments in `count` processes, by torchrun, and wait for them.

    Raises:
        ConfigurationError: when one of them failed; it has said why.
    """
    sys.stdout.flush()
    arguments = ["--standalone", "--nproc-per-node", str(count), "-m", module, *argv]
    try:
        torchrun.main(arguments)
    except ChildFailedError as error:
        raise ConfigurationError(
            f"{len(error.failures)} of {count} processes failed, for the reason given above; mend it and run the same "
            "command again: what is finished is kept"
        ) from error

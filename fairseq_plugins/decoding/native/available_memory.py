"""How much memory this process may still take, by the machine and its container."""

import math
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_V1 = _CGROUP / "memory"


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path | None = None) -> float:
    """Return the bytes that are available without swapping; infinity where the system does not tell (not Linux).

    Args:
        meminfo: Linux' table of the machine's memory.
        cgroup: folder of the container's limit, version 1 or 2; None for the usual one.
    """
    folder = cgroup or (_CGROUP_V1 if _CGROUP_V1.is_dir() else _CGROUP)
    return min(_of_machine(meminfo), _of_container(folder))


def _of_machine(meminfo: Path) -> float:
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return math.inf


def _of_container(folder: Path) -> float:
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, current = _lines(folder / limit), _lines(folder / used)
        if most and current and most[0].isdigit():
            # Linux gives pages of files back when memory is short.
            stat = dict(line.split() for line in _lines(folder / "memory.stat"))
            return max(0, int(most[0]) - int(current[0]) + int(stat.get(cache, 0)))
    return math.inf


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []

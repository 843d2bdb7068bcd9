"""What Linux says of the memory of this process."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident(field: str) -> int:
    """Return bytes in a field of the process's status, 0 where there is none."""
    if not _STATUS.exists():
        return 0
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    return 0

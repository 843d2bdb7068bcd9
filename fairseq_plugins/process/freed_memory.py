"""Keep freed memory for the next update of a training: on a CPU, getting it again from the system takes long."""

import ctypes
import sys
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # parameters of mallopt in malloc.h


def keep_freed_memory() -> None:
    """Let malloc keep in fairseq-train what is freed; other C libraries than glibc stay as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if Path(sys.argv[0]).name != "fairseq-train" or mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, -1)  # give nothing back
    mallopt(_MMAP_MAX, 0)  # no mapping of its own for a large block

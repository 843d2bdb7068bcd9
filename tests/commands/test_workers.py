"""Processes of one command end with it."""

import os
import signal
import time
from pathlib import Path

from fairseq_plugins.commands import workers


def test_workers_end_with_a_killed_parent() -> None:
    reads, writes = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.environ[workers._PARENT] = str(os.getpid())
        if os.fork() == 0:
            workers.end_with_parent()
            os.write(writes, b"%d " % os.getpid())
        time.sleep(60)
        os._exit(0)
    worker = int(os.read(reads, 20))
    assert _runs(worker)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    end = time.monotonic() + 10
    while _runs(worker) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _runs(worker)
    for end_of_pipe in (reads, writes):
        os.close(end_of_pipe)


def _runs(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"

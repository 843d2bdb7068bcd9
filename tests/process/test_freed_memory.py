"""Freed memory is kept in trainings, and nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest

import fairseq_plugins

FILE = Path(fairseq_plugins.__file__).parent / "process" / "freed_memory.py"
# Writes 64 MiB ten times, and prints how many pages the system had to provide after the first time.
PROGRAM = """
import resource, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path({file!r})["keep_freed_memory"]()
faults = []
for _ in range(10):
    block = b"x" * (64 << 20)
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")
@pytest.mark.parametrize(("tool", "is_kept"), [("fairseq-train", True), ("fairseq-generate", False)])
def test_freed_memory_is_kept_in_trainings_only(tool: str, is_kept: bool) -> None:
    command = [sys.executable, "-c", PROGRAM.format(file=str(FILE)), f"/usr/bin/{tool}"]
    pages = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (pages < 1000) == is_kept

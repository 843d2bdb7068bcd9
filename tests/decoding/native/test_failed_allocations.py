"""An allocation that fails in a thread of the kernels ends no process."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.decoding.native.building import compiler
from tests.support import REPOSITORY


def test_each_allocation_of_a_running_batch_may_fail(tmp_path: Path) -> None:
    """If one fails, all sentences have their outputs, or the batch fails with MemoryError; if all later ones, too, the
    batch fails."""
    library = tmp_path / "failing_new.so"
    source = Path(__file__).with_name("failing_new.cpp")
    subprocess.run([compiler(), "-std=c++17", "-O1", "-shared", "-fPIC", source, "-o", library], check=True)
    command = [sys.executable, "-m", "tests.decoding.native.failed_allocations", library]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    ran = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    found = json.loads(ran.stdout)
    assert list(found) == [f"{decoder} {how}" for decoder in ("greedy", "iad", "beams") for how in ("once", "on")]
    for name, outcomes in found.items():
        expected = {"failure", "outputs"} if name.endswith("once") else {"failure"}
        assert outcomes.keys() == expected and min(outcomes.values()) > 3 and sum(outcomes.values()) > 50, found

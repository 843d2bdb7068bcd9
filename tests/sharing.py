"""Share fixtures between the processes of a test run."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return the temporary folder shared by all processes of this run."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a shared folder; the first process that needs it fills it with `make`."""
    folder = shared_folder(factory) / name
    done = folder / ".done"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            # Left by a process that failed.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder

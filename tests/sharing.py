"""What is made once for all tests of a run, however many processes they are spread over."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that all processes of this run have in common."""
    folder = factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder of all processes of this run that the first one to ask for it fills with `make`."""
    folder = shared_folder(factory) / name
    done = folder / ".done"
    with FileLock(f"{folder}.lock"):
        if not done.exists():
            # Of a process that failed at it.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder

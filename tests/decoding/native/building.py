"""Build the kernels in another way than the package has them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_plugins.decoding import native
from tests.support import REPOSITORY

CSRC = Path(native.__file__).parent / "csrc"


def compiler() -> str:
    """Return the C++ compiler; without one, skip the test."""
    found = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


def build(folder: Path, **environment: str) -> Path:
    """Build the kernels into a folder, with these variables of setup.py; return the library."""
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(folder)]
    ran = subprocess.run(command, cwd=REPOSITORY, env={**os.environ, **environment}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    (library,) = folder.rglob("_kernels*.so")
    return library

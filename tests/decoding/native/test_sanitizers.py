"""Run tests of the kernels under AddressSanitizer and UBSan, in a separate process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from fairseq_plugins.decoding.native import kernels
from tests.decoding.native.building import build, compiler
from tests.support import REPOSITORY

# Both tests read the output of one process, whose imports under the sanitizers are slow.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("sanitizers")]

SANITIZERS = "address,undefined"


def _build(folder: Path) -> Path:
    """Build the kernels with sanitizers, for the best instruction set and the portable one."""
    isa = next(name for name in kernels().runnable_instruction_sets() if name != "amx")
    (REPOSITORY / "build").mkdir(exist_ok=True)
    with FileLock(REPOSITORY / "build/sanitizers.lock"):
        return build(folder, SPEC_DEC_BUILD=isa, SPEC_DEC_SANITIZE=SANITIZERS)


def _library(program: str, name: str) -> Path:
    """Return the path of a compiler's library, or its name alone if the compiler has none."""
    result = subprocess.run([program, f"-print-file-name={name}"], capture_output=True, text=True)
    return Path(result.stdout.strip())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The finished driver, run on kernels built with sanitizers."""
    # libstdc++ must be loaded before the sanitizer looks up its exceptions.
    first = [_library(compiler(), name) for name in ("libasan.so", "libstdc++.so")]
    if not all(path.is_absolute() for path in first):
        pytest.skip("the compiler has no AddressSanitizer that can be loaded first")
    library = _build(tmp_path_factory.mktemp("sanitized"))
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(map(str, first)),
        # Python frees little of its memory at exit.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "SPEC_DEC_EXAMPLES": "few",
    }
    driver = "tests.decoding.native.sanitizer_driver"
    command = [sys.executable, "-m", driver, str(library)]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)


def _parts(printed: str) -> list[str]:
    """Split output into that of `FAULTS` and that of the tests."""
    parts = printed.split("TESTS\n")
    assert len(parts) == 2, printed
    return parts


def test_calls_right_and_wrong(ran: subprocess.CompletedProcess[str]) -> None:
    printed, error = (_parts(text)[1] for text in (ran.stdout, ran.stderr))
    assert ran.returncode == 0 and "Sanitizer" not in error and "runtime error" not in error, printed + error
    passed = re.search(r"^(\d+) passed", printed, re.MULTILINE)
    assert passed is not None and int(passed[1]) > 200, printed


def test_what_is_past_the_checks_is_reported(ran: subprocess.CompletedProcess[str]) -> None:
    printed, error = (_parts(text)[0] for text in (ran.stdout, ran.stderr))
    ended = dict(line.split() for line in printed.splitlines() if line.count(" ") == 1)
    assert list(ended) == ["too_small_weight", "too_small_source", "unaligned_weight"]
    assert "0" not in ended.values()
    assert error.count("ERROR: AddressSanitizer: heap-buffer-overflow") == 2, error
    assert "misaligned" in error, error

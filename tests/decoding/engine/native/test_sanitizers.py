"""The kernels under AddressSanitizer and UBSan: random calls, right and wrong, in a process of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.decoding.engine.sanitizer_driver import RANDOM
from tests.strategies import some

# Both look at the same process, which imports everything under the sanitizers.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("sanitizers")]

ROUNDS = some(48)


@pytest.fixture(scope="module")
def ran() -> subprocess.CompletedProcess[str]:
    """The driver on kernels built with sanitizers."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    found = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("the compiler has no AddressSanitizer that can be loaded first")
    environment = {
        **os.environ,
        "SPEC_DEC_SANITIZE": "address,undefined",
        "LD_PRELOAD": found,
        # Python frees little of what it has at the end.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, "-m", "tests.decoding.engine.sanitizer_driver", str(ROUNDS), "1"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)


def _parts(printed: str) -> list[str]:
    """What was printed of faults, and of random calls."""
    parts = printed.split(f"{RANDOM}\n")
    assert len(parts) == 2, printed
    return parts


def test_random_calls_right_and_wrong(ran: subprocess.CompletedProcess[str]) -> None:
    printed, said = (_parts(text)[1] for text in (ran.stdout, ran.stderr))
    assert ran.returncode == 0 and "Sanitizer" not in said and "runtime error" not in said, said
    # A driver that had nothing to do would end well, too.
    counts = {line.split(None, 1)[1]: int(line.split()[0]) for line in printed.splitlines()}
    assert counts["rounds"] == ROUNDS
    assert sum(count for name, count in counts.items() if name.endswith(("Error", "refused"))) >= 200 * ROUNDS // 48


def test_what_is_past_the_checks_is_reported(ran: subprocess.CompletedProcess[str]) -> None:
    printed, said = (_parts(text)[0] for text in (ran.stdout, ran.stderr))
    ended = dict(line.split() for line in printed.splitlines())
    assert list(ended) == ["too_small_output", "too_few_scores", "unaligned"]
    assert "0" not in ended.values()
    assert said.count("ERROR: AddressSanitizer: heap-buffer-overflow") == 2, said
    assert "misaligned" in said, said

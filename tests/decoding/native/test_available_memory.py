"""Memory that is available: the machine's, or less in a container."""

import math
from pathlib import Path

import pytest

from fairseq_plugins.decoding.native.model import available_memory

MACHINE = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    500 kB\n"
V1 = {"memory.limit_in_bytes": "{}", "memory.usage_in_bytes": "90000", "memory.stat": "total_inactive_file 30000"}
V2 = {"memory.max": "{}", "memory.current": "90000", "memory.stat": "anon 5\ninactive_file 30000"}


@pytest.mark.parametrize("version", [V1, V2], ids=["1", "2"])
@pytest.mark.parametrize(
    ("limit", "expected"), [("100000", 40000), ("max", 512000), ("9223372036854771712", 512000), ("50000", 0)]
)
def test_least_of_machine_and_container(version: dict[str, str], limit: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MACHINE)
    for name, text in version.items():
        (tmp_path / name).write_text(text.format(limit) + "\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == expected


def test_unknown_is_no_limit(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path) == math.inf
    assert available_memory() > 0

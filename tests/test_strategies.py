"""Examples of property tests are the same in every run."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import DETERMINISTIC


def test_examples_do_not_depend_on_imported_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which modules a process has imported depends on the tests that it ran before."""
    drawn: list[int] = []

    @settings(DETERMINISTIC, max_examples=200)
    @given(number=st.integers(0, 10**9))
    def draw(number: int) -> None:
        drawn.append(number)

    draw()
    (tmp_path / "has_constants.py").write_text(f"NUMBERS = {list(range(10_000, 10_900))}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("has_constants")
    before, drawn = drawn, []
    draw()
    monkeypatch.delitem(sys.modules, "has_constants")
    assert drawn == before

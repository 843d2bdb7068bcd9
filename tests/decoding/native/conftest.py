"""Fixtures of the kernels' tests."""

from typing import Any

import pytest
from torch import Tensor

from fairseq_plugins.decoding.native.model import NativeWeights


@pytest.fixture
def chosen_formats(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that records the format of each weight converted for the kernels."""
    seen: list[Any] = []
    choose = NativeWeights._format

    def spy(self: NativeWeights, weight: Tensor, int8: bool) -> Any:
        seen.append(choose(self, weight, int8))
        return seen[-1]

    monkeypatch.setattr(NativeWeights, "_format", spy)
    return seen

"""Fixtures of the kernels' tests."""

from typing import Any

import pytest
from torch import Tensor

from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.weights import Precision


@pytest.fixture
def chosen_formats(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that records the format of each weight converted for the kernels."""
    seen: list[Any] = []
    choose = NativeWeights._format

    def spy(self: NativeWeights, weight: Tensor, precision: Precision) -> Any:
        seen.append(choose(self, weight, precision))
        return seen[-1]

    monkeypatch.setattr(NativeWeights, "_format", spy)
    return seen

"""What tests of the kernels share."""

from typing import Any

import pytest
from torch import Tensor

from fairseq_plugins.decoding.engine.native.model import NativeWeights
from fairseq_plugins.decoding.engine.weights import Precision


@pytest.fixture
def chosen_forms(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list to which the form of every weight is added."""
    seen: list[Any] = []
    choose = NativeWeights._format

    def spy(self: NativeWeights, weight: Tensor, precision: Precision) -> Any:
        seen.append(choose(self, weight, precision))
        return seen[-1]

    monkeypatch.setattr(NativeWeights, "_format", spy)
    return seen

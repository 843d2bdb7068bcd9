"""Fixtures of all tests of decoding."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore the number of threads after a test. The name must not be a test's parameter."""
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)

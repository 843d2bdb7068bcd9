"""What all tests of decoding have."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """As many threads after a test as before. No test has a parameter of this name, which would take its place."""
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)

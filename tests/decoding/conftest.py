"""Fixtures of all tests of decoding."""

from collections.abc import Iterator

import pytest
import torch

from fairseq_plugins.decoding.native import kernels


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore threads and instruction set after a test. The name must not be a test's parameter."""
    count, instruction_set = torch.get_num_threads(), kernels().instruction_set()
    yield
    torch.set_num_threads(count)
    kernels().use_instruction_set(instruction_set)

"""The current GPU of a thread, on which Triton launches kernels and graphs are captured, wherever the tensors are."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one inside; any other device changes nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

"""Sums of the logging outputs of workers and batches."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch


def add_up(logging_outputs: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Return the sums of these entries on the host, 0 for missing ones; waits for the device once."""
    sums: dict[str, Any] = {name: sum(log.get(name, 0) for log in logging_outputs) for name in names}
    on_device = [name for name, value in sums.items() if torch.is_tensor(value)]
    if on_device:
        values = torch.stack([sums[name].double() for name in on_device]).tolist()
        sums.update(zip(on_device, values, strict=True))
    return sums

"""The machine of a measurement in one line."""

import datetime
import os
import platform
from contextlib import suppress
from pathlib import Path

import torch


def machine() -> str:
    """Return one line: processor, threads, accelerator, versions, date."""
    parts = [f"{cpu_model()}, {os.cpu_count()} processors", f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    parts += [f"torch {torch.__version__}", f"Python {platform.python_version()}", datetime.date.today().isoformat()]
    return ", ".join(parts)


def cpu_model() -> str:
    """Return the processor's name as Linux knows it, elsewhere what Python knows."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()

"""The machine that something was measured on, in a line: speed means nothing without it."""

import datetime
import os
import platform
from pathlib import Path

import torch


def machine() -> str:
    """Return one line: processor, threads, accelerator, versions, date."""
    parts = [f"{cpu_model()}, {os.cpu_count()} processors", f"{torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    parts += [
        f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
        datetime.date.today().isoformat(),
    ]
    return ", ".join(parts)


def cpu_model() -> str:
    """Return the processor's name as Linux knows it, elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

"""The machine of a measurement in one line."""

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
    parts += [f"torch {torch.__version__}", f"Python {platform.python_version()}", datetime.date.today().isoformat()]
    return ", ".join(parts)


def cpu_model() -> str:
    """Return the processor's name as Linux knows it, elsewhere what Python knows."""
    names = _fields(Path("/proc/cpuinfo"), "model name")
    return names[0] if names else platform.processor() or platform.machine()


def _fields(file: Path, name: str) -> list[str]:
    """Return the values of lines NAME: VALUE of a file of /proc; none if it is missing."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == name]

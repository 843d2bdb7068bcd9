"""The Python API: `fairseq_plugins.load` makes a `Model`, which translates; `wrap` is for fairseq's own tasks."""

from fairseq_plugins.api.loading import load
from fairseq_plugins.api.memory import Memory
from fairseq_plugins.api.model import Model
from fairseq_plugins.api.options import CallOptions, LoadOptions, WrapOptions
from fairseq_plugins.api.results import CallStatistics, Step, Translation
from fairseq_plugins.api.service import Service, ServiceClosed, ServiceFailed, ServiceFull
from fairseq_plugins.api.wrapping import wrap

__all__ = [
    "CallOptions",
    "CallStatistics",
    "LoadOptions",
    "Memory",
    "Model",
    "Service",
    "ServiceClosed",
    "ServiceFailed",
    "ServiceFull",
    "Step",
    "Translation",
    "WrapOptions",
    "load",
    "wrap",
]

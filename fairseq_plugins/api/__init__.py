"""The Python API: `fairseq_plugins.load` makes a `Model`, which translates."""

from fairseq_plugins.api.loading import load
from fairseq_plugins.api.model import Model
from fairseq_plugins.api.results import CallStatistics, Step, Translation

__all__ = ["CallStatistics", "Model", "Step", "Translation", "load"]

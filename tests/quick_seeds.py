"""Speed up setting seeds: without a GPU, PyTorch records the call stack each time, which takes a millisecond.

fairseq-train sets the seed before each update, and tests before each random model.
"""

import traceback
from types import SimpleNamespace

import torch.cuda
import torch.mtia
import torch.xpu


def install() -> None:
    """Record no call stacks in this process and its forks, unless there is a GPU."""
    if torch.cuda.is_available():
        return
    without_stacks = SimpleNamespace(**{**vars(traceback), "format_stack": lambda: []})
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.traceback = without_stacks

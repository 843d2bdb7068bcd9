"""Seeds that are quick to set: for GPUs that may come PyTorch notes each time by what calls, which takes a millisecond.

fairseq-train sets the seed before every update, and so do tests before every random model.
"""

import traceback
from types import SimpleNamespace

import torch.cuda
import torch.mtia
import torch.xpu


def install() -> None:
    """Note no calls where there is no GPU in this process and in those that it forks."""
    if torch.cuda.is_available():
        return
    unnoted = SimpleNamespace(**{**vars(traceback), "format_stack": lambda: []})
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.traceback = unnoted

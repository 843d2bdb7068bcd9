"""PyTorch's settings of a GPU while decoding: no reduced-precision arithmetic, and the current device of the thread.

They are restored afterwards: training and other code keep theirs.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
# TF32 for matrix products and recurrent cells in fp32, and half-precision accumulation of half-precision products.
_REDUCED_PRECISION = (
    (_MATMUL, "allow_tf32"),
    (_CUDNN, "allow_tf32"),
    (_MATMUL, "allow_fp16_reduced_precision_reduction"),
    (_MATMUL, "allow_bf16_reduced_precision_reduction"),
)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, where Triton launches and graphs are captured; other devices change nothing."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Turn off TF32, half-precision reductions and cuDNN's attention; without effect on a CPU."""
    if device.type != "cuda":
        yield
        return
    before = [_turn_off(owner, name) for owner, name in _REDUCED_PRECISION]
    try:
        with without_cudnn_attention():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Turn off cuDNN's attention, which compiles a plan for every new shape: decoding and training have many.

    PyTorch then chooses flash or memory-efficient attention, or its plain operations for head widths that neither
    supports.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _turn_off(owner: Any, name: str) -> tuple[Any, str, Any]:
    """Turn a flag off; return the arguments of `setattr` that restore it."""
    off: Any = False
    try:
        value = getattr(owner, name)
    except RuntimeError:
        # From torch 2.9 on, allow_tf32 cannot be read if fp32_precision, its new name, has been set.
        name, off = "fp32_precision", "ieee"
        value = getattr(owner, name)
    # Newer versions of PyTorch set a reduction together with its split-K, which becomes True unless it is passed.
    split_k = getattr(owner, f"{name}_split_k", None)
    if split_k is not None:
        off, value = (off, split_k), (value, split_k)
    setattr(owner, name, off)
    return owner, name, value

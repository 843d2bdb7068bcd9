"""What PyTorch may not do to the arithmetic of a GPU while we decode.

These are switches of the whole process, so they are put back afterwards: training and other code keep their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_MATMUL, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
# Products and recurrent cells of fp32 tensors with fewer bits, and sums of half-precision products in half precision.
_ARITHMETIC = (
    (_MATMUL, "allow_tf32"),
    (_CUDNN, "allow_tf32"),
    (_MATMUL, "allow_fp16_reduced_precision_reduction"),
    (_MATMUL, "allow_bf16_reduced_precision_reduction"),
)


@contextmanager
def exact_arithmetic(device: torch.device) -> Iterator[None]:
    """Decode with TF32 and reductions in half precision off, and without cuDNN's attention; without effect on a CPU.

    Args:
        device: where models and batches are.
    """
    if device.type != "cuda":
        yield
        return
    before = [_switched_off(owner, name) for owner, name in _ARITHMETIC]
    try:
        with without_cudnn_attention():
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Run without cuDNN's attention, which makes a plan for every new shape: decoding and training have many.

    What remains is flash attention, memory-efficient attention, and PyTorch's plain operations where neither can run
    the width of the heads.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def _switched_off(owner: Any, name: str) -> tuple[Any, str, Any]:
    """Switch something off; returns what has to be set to have it as it was."""
    off: Any = False
    try:
        value = getattr(owner, name)
    except RuntimeError:
        # From torch 2.9 on, where somebody has set the same by its newer name, the older one cannot be read.
        name, off = "fp32_precision", "ieee"
        value = getattr(owner, name)
    # In newer versions of PyTorch setting a reduction also sets its split-K, True unless given.
    split_k = getattr(owner, f"{name}_split_k", None)
    if split_k is not None:
        off, value = (off, split_k), (value, split_k)
    setattr(owner, name, off)
    return owner, name, value

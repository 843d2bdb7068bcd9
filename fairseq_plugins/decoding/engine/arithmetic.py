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

    cuDNN's attention makes a plan for every new shape, of which decoding has many. What remains is flash attention,
    memory-efficient attention, and PyTorch's plain operations where neither can run the width of the heads.

    Args:
        device: where models and batches are.
    """
    if device.type != "cuda":
        yield
        return
    before = [_switched_off(owner, name) for owner, name in _ARITHMETIC]
    uses_cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(uses_cudnn)
        for owner, name, value in before:
            setattr(owner, name, value)


def _switched_off(owner: Any, name: str) -> tuple[Any, str, Any]:
    """Switch something off; returns what has to be set to have it as it was."""
    off: Any = False
    try:
        value = getattr(owner, name)
    except RuntimeError:
        # From torch 2.9 on, where somebody has set the same by its newer name, the older one cannot be read.
        name, off = "fp32_precision", "ieee"
        value = getattr(owner, name)
    setattr(owner, name, off)
    return owner, name, value

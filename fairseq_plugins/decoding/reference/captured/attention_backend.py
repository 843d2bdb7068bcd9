"""Find out which attention kernel PyTorch chose: that depends on widths, precision, masks and version."""

from collections.abc import Callable

import torch

# Prefix of each kernel's operation: the name of flash attention is longer on a CPU.
_BACKENDS = {
    "aten::_scaled_dot_product_cudnn_attention": "cuDNN",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_attention_math": "math",
}
# Our own attention (fixed_shapes.py), which is none of these operations.
FIXED = "fixed shapes"


def attention_used(call: Callable[[], object]) -> str:
    """Return the names of the attention kernels that a call runs; replayed CUDA graphs are not recorded."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        call()
    operations = {event.key for event in recorded.key_averages()}
    used = {name for prefix, name in _BACKENDS.items() if any(key.startswith(prefix) for key in operations)}
    return ", ".join(sorted(used)) or FIXED

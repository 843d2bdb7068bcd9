"""Which of its attention kernels PyTorch chose: it depends on widths, precision, masks and version."""

from collections.abc import Callable

import torch

# What a backend's operation is called; on a CPU flash attention has a longer name.
_BACKENDS = {
    "aten::_scaled_dot_product_cudnn_attention": "cuDNN",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_attention_math": "math",
}
# Of fixed_shapes.py.
FIXED = "fixed shapes"


def attention_seen(call: Callable[[], object]) -> str:
    """The attention that ran while something was called, as a list of names; steps from CUDA graphs are not seen."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        call()
    operations = {event.key for event in recorded.key_averages()}
    seen = {name for start, name in _BACKENDS.items() if any(key.startswith(start) for key in operations)}
    return ", ".join(sorted(seen)) or FIXED

"""Let `fairseq-train --bf16` train on a GPU.

fairseq's parser takes `--bf16` for a request of a TPU, and fails where PyTorch's package for TPUs is not installed.
"""

from functools import wraps
from importlib.util import find_spec
from typing import Any

from fairseq import options


def bf16_without_tpu() -> None:
    """Let fairseq's parser set `--tpu` only where it can be used."""
    parse = options.parse_args_and_arch
    if find_spec("torch_xla") is not None:
        return

    @wraps(parse)
    def parse_without_tpu(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "tpu", False):
            namespace.tpu = False
        return parsed

    options.parse_args_and_arch = parse_without_tpu

"""Let `fairseq-train --bf16` train on a GPU: fairseq's parser takes it for a request of a TPU."""

import sys
from functools import wraps
from typing import Any

from fairseq import options


def bf16_without_tpu() -> None:
    """Let fairseq's parser ask for a TPU only where `--tpu` is given."""
    parse = options.parse_args_and_arch

    @wraps(parse)
    def parse_without_tpu(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        arguments = kwargs.get("input_args")
        if getattr(namespace, "bf16", False) and "--tpu" not in (sys.argv if arguments is None else arguments):
            namespace.tpu = False
        return parsed

    options.parse_args_and_arch = parse_without_tpu

"""Program of test_sanitizers.py: tests of the kernels, with kernels built with sanitizers.

Usage: python -m tests.decoding.native.sanitizer_driver LIBRARY

It first makes each call of `FAULTS`, past all checks, in a child process, and prints how it ended: the sanitizer must
report it and end the process. After the line `TESTS` follow those of decoding with few examples, valid and invalid.
"""

import importlib.util
import os
import sys
from collections.abc import Callable

import numpy as np
import pytest

NAME = "fairseq_plugins.decoding.native._kernels"


def use_library(library: str) -> None:
    """Let `kernels` find the kernels of a library instead of the installed ones."""
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None and spec.loader is not None
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])


def _claimed(memory: np.ndarray, *shape: int) -> np.ndarray:
    """Return an array whose claimed shape exceeds its memory."""
    return np.lib.stride_tricks.as_strided(memory, shape, tuple(memory.itemsize * n for n in (*shape[1:], 1)))


def _read_weight(weight: np.ndarray) -> None:
    from fairseq_plugins.decoding.native import kernels

    kernels().linear(weight, None, None, format=kernels().WeightFormat.PANELS, batch_invariant=False)


def too_small_weight() -> None:
    """Read a weight that has a hundredth of its numbers."""
    _read_weight(_claimed(np.zeros(64, np.float32), 80, 80))


def too_small_source() -> None:
    """Read encoded sources that have a tenth of their numbers."""
    import torch

    from tests.decoding.native.test_generator import greedy

    call = greedy()
    call.batch["source"] = torch.full((20, 32), 5)
    call.encoded(encoded=_claimed(np.zeros(64 * 16, np.float32), 640, 16), embedding=None).run()


def unaligned_weight() -> None:
    """Read unaligned numbers: undefined behaviour within the array's memory."""
    memory = np.zeros(4 * 65, np.uint8)
    _read_weight(memory[2:-2].view(np.float32).reshape(8, 8))


FAULTS = (too_small_weight, too_small_source, unaligned_weight)
MODULES = ("native/test_generator", "native/test_linear", "native/test_parts", "native/test_continuous_batch",
           "native/test_instruction_sets", "test_lossless")  # fmt: skip
# They need all instruction sets of the processor, or take long.
LEFT_OUT = "best_is_used or environment or drafts_are or gives_back or alone and (reuse or iad or jacobi or tokens)"


def _status_of(call: Callable[[], None]) -> int:
    """Make a call in a child process; return its exit status."""
    process = os.fork()
    if process == 0:
        call()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main(library: str) -> int:
    use_library(library)
    from tests.decoding.native import test_generator  # noqa: F401  # so that the child processes need not import it

    for fault in FAULTS:
        print(f"{fault.__name__} {_status_of(fault)}", flush=True)
    for stream in (sys.stdout, sys.stderr):
        print("TESTS", file=stream, flush=True)
    files = [f"tests/decoding/{module}.py" for module in MODULES]
    return pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "--capture=no", "-k", f"not ({LEFT_OUT})", *files])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

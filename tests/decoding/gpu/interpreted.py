"""Run checks in Triton's interpreter: `TRITON_INTERPRET=1 python -m tests.decoding.gpu.interpreted [NAME...]`.

A name is that of a module, such as beam_checks, or of a check, such as check_wide_beam.
"""

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable

import torch

from fairseq_plugins.decoding.gpu import host_loop
from tests.benchmarks import engine_checks
from tests.decoding.gpu import beam_checks, continuous_checks, drafter_checks, sampling_checks, search_checks
from tests.decoding.gpu.interpreter import patch_once
from tests.decoding.reference.captured import triton_checks

MODULES = (
    search_checks, sampling_checks, continuous_checks, beam_checks, drafter_checks, engine_checks, triton_checks,
)  # fmt: skip


def _run(prepare: Callable[[], None], checks: dict[str, Callable[[], None]]) -> None:
    """Run checks in a process that ends with them; print the seconds of each."""
    prepare()
    for name, check in checks.items():
        began = time.process_time()
        check()
        print(f"{name}: {time.process_time() - began:.1f} s", flush=True)


def main(names: list[str]) -> int:
    """Run the checks with these names, or all; return how many modules have failed."""
    torch.set_num_threads(1)
    patch_once()
    # Interpreted rows are slow, and so are iterations that are launched before the end is known.
    host_loop.AHEAD = 1
    # What has been imported stays: else each process looks for garbage among it, for a third of its time.
    gc.freeze()
    failed, unknown = 0, set(names)
    for module in MODULES:
        all_checks = {name: check for name, check in vars(module).items() if name.startswith("check_")}
        of_module = module.__name__.rpartition(".")[2]
        is_named = not names or of_module in names
        unknown -= {of_module, *all_checks}
        checks = {name: check for name, check in all_checks.items() if is_named or name in names}
        if not checks:
            continue
        # Each module changes the engine as its checks need it.
        process = multiprocessing.get_context("fork").Process(target=_run, args=(module.prepare, checks))
        process.start()
        process.join()
        failed += process.exitcode != 0
    if unknown:
        sys.exit(f"no checks have these names: {', '.join(sorted(unknown))}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

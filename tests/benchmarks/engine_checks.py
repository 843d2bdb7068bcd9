"""Run the checks of Triton's engine of `make gpu-check` in Triton's interpreter, on the smallest random models.

`TRITON_INTERPRET=1 python -m tests.benchmarks.engine_checks [NAME...]`
"""

import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from fairseq_plugins.benchmarks import replay
from fairseq_plugins.benchmarks.gpu_check import engine
from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.benchmarks.gpu_check.report import PASSED
from tests.decoding.gpu.interpreter import patch_once

_SIZES = [
    f"--{side}-{name}={value}"
    for side in ("encoder", "decoder")
    for name, value in (("layers", 1), ("embed-dim", 16), ("ffn-embed-dim", 16), ("attention-heads", 1))
]
CHECKS = {
    "first_run": partial(engine.first_run, precision="bf16", name="gad", variant=engine.VARIANTS["8 iterations ahead"]),
    **{check.__name__: check for check in (engine.ids, engine.speed, engine.profile, engine.all_decoders)},
}


def main() -> None:
    """Run the checks that the command line names, or all."""
    torch.set_num_threads(1)
    patch_once()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(replay.SHAPES, tiny=("transformer", "block_nat_tiny", _SIZES)),
        mock.patch.object(replay, "BLOCK_SIZE", 2),
    ):
        env = Environment("cpu", Path(folder), "tiny", 2, (2, 2), 20, 2, Path(folder, "none"), sizes=(2,))
        for name in sys.argv[1:] or CHECKS:
            began = time.process_time()
            outcome = CHECKS[name](env)
            assert outcome.state == PASSED, (name, outcome)
            assert name == "first_run" or len(outcome.rows) > 2
            print(f"{name}: {outcome.summary}: {time.process_time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()

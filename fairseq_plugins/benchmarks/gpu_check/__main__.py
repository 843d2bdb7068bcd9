"""Check decoding on a machine with a GPU, in less than ten minutes.

    python -m fairseq_plugins.benchmarks.gpu_check --results results/gpu

Checks run one after the other; results are written after each. Exit status: 0 if none failed, 1 if one did, 2 without a
GPU.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from fairseq_plugins.benchmarks.gpu_check import device, engine, exactness, programs, released, training
from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, NOT_RUN, Outcome, render
from fairseq_plugins.benchmarks.gpu_check.worker import Check, Worker
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.cli import run_command
from fairseq_plugins.shared.files import write_atomically
from fairseq_plugins.shared.machine import machine
from fairseq_plugins.shared.values import positive

# Seconds for a check, except for those that use all that is left.
_LONGEST = 180.0
_USE_ALL = (programs.benchmark, programs.training)
# The most important first: the time may be up before the last.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("ids and bits of Triton's engine", engine.ids),
    ("speed of Triton's engine", engine.speed),
    ("fp32 ids are fairseq's", exactness.fp32_equals_fairseq),
    ("fp16 and bf16 ids and scores are greedy's", exactness.half_equals_greedy),
    ("bits do not depend on the batch", exactness.bits),
    ("graphs change nothing", exactness.graphs_change_nothing),
    ("graphs read no freed memory", exactness.inputs_stay),
    ("all decoders are fairseq's", exactness.all_decoders),
    ("released models are fairseq's", released.released_models),
    ("tests for a GPU", programs.tests_for_a_gpu),
    ("one synchronisation an iteration", device.one_synchronisation),
    ("captures", device.captures),
    ("fixed shapes over a run", device.fixed_shapes_over_a_run),
    ("training throughput", training.throughput),
    ("two processes train as one", training.two_processes),
    ("benchmark", programs.benchmark),
    ("training on Multi30k", programs.training),
)


def run_checks(env: Environment, checks: Sequence[tuple[str, Check]], command: str) -> list[Outcome]:
    """Run checks one after the other until the time limit; write the results after each.

    Args:
        env: device, models and limits.
        checks: title and check.
        command: for the page.
    """
    outcomes: list[Outcome] = []
    worker = Worker()
    for title, check in checks:
        start = time.monotonic()
        if env.left == 0:
            outcome = Outcome(NOT_RUN, "the time was up")
        else:
            # These end their programs themselves.
            seconds = env.left if check in _USE_ALL else min(_LONGEST, env.left)
            outcome = worker.run(check, env, seconds + 15)
        outcome.title, outcome.seconds = title, time.monotonic() - start
        outcomes.append(outcome)
        print(f"{title}: {outcome.state}: {outcome.summary}", flush=True)
        write_atomically(env.folder / "gpu_check.md", render(outcomes, machine(), command), "--results")
        record = json.dumps([asdict(outcome) for outcome in outcomes], indent=2, ensure_ascii=False) + "\n"
        write_atomically(env.folder / "gpu_check.json", record, "--results")
    worker.stop()
    return outcomes


def run(argv: Sequence[str]) -> None:
    """Parse the arguments and run the checks; fail without a GPU."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--results", metavar="FOLDER", default="results/gpu", help="where to write (default: results/gpu)")
    add("--minutes", type=positive, default=10, help="time limit (default: 10)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        remedy = "run it on one with a GPU, and a PyTorch built for it (TORCH_INDEX of make setup)"
        raise ConfigurationError(None, None, "no GPU that PyTorch can use on this machine", remedy)
    # Half a minute less, for the check that runs at the time limit.
    env = Environment("cuda", Path(args.results), ends=time.monotonic() + 60 * args.minutes - 30)
    outcomes = run_checks(env, CHECKS, shlex.join(["python", "-m", "fairseq_plugins.benchmarks.gpu_check", *argv]))
    if any(outcome.state == FAILED for outcome in outcomes):
        sys.exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `make gpu-check`."""
    return run_command("gpu-check", run, argv)


if __name__ == "__main__":
    sys.exit(main())

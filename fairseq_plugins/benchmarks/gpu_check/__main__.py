"""Check decoding on a machine with a GPU, in at most eight minutes.

    python -m fairseq_plugins.benchmarks.gpu_check --results results/gpu

Checks run one after the other; a page is written after each, and printed at the end. Exit status: 0 if none failed, 1
if one did, 2 without a GPU.
"""

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fairseq_plugins.benchmarks.gpu_check import engine, released, training
from fairseq_plugins.benchmarks.gpu_check.environment import ROOT, Environment
from fairseq_plugins.benchmarks.gpu_check.report import ENGINE, FAILED, NOT_RUN, Outcome, passed_if, render
from fairseq_plugins.benchmarks.gpu_check.worker import Check, CheckProcess
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.cli import positive, run_command
from fairseq_plugins.shared.files import write_atomically
from fairseq_plugins.shared.machine import machine

# Seconds for a check.
_LONGEST = 180.0


def tests_for_a_gpu(env: Environment) -> Outcome:
    """Run `pytest -m gpu`."""
    if not (ROOT / "tests").is_dir():
        return Outcome(NOT_RUN, "there are no tests here: run it in a checkout of the project")
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-n", "0", "tests/decoding"]
    # `timeout` also ends the program's children.
    limited = ["timeout", "--kill-after=10", str(max(0.1, env.left)), *pytest]
    ended = subprocess.run(limited, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return outcome_of_tests(ended.returncode, ended.stdout)


def outcome_of_tests(status: int, output: str) -> Outcome:
    """Return the outcome for pytest's status and last line; skipped tests count as failures."""
    line = ([line.strip("= ") for line in output.splitlines() if line.strip()] or ["no output"])[-1][:200]
    good = status == 0 and re.search(r"\b[1-9]\d* passed", line) is not None and "skipped" not in line
    return passed_if(good, line)


# The most important first: the time may be up before the last.
CHECKS: tuple[tuple[str, Check], ...] = (
    (f"{ENGINE}it runs", engine.runs),
    (f"{ENGINE}ids and bits", engine.ids),
    (f"{ENGINE}speed", engine.speed),
    (f"{ENGINE}all decoders", engine.all_decoders),
    (f"{ENGINE}time of kernels", engine.profile),
    (f"{ENGINE}settings", engine.variants),
    ("released models are fairseq's", released.released_models),
    ("tests for a GPU", tests_for_a_gpu),
    ("training throughput", training.throughput),
)


def run_checks(env: Environment, checks: Sequence[tuple[str, Check]], command: str) -> list[Outcome]:
    """Run checks, with their titles, one after the other until the time limit; write the results after each.

    The page shows the `command`.
    """
    outcomes: list[Outcome] = []
    process, page = CheckProcess(), ""
    for title, check in checks:
        start = time.monotonic()
        if env.left == 0:
            outcome = Outcome(NOT_RUN, "the time was up")
        else:
            # A check that looks at its time ends by itself, with what it has found.
            own = replace(env, ends=min(env.ends, start + _LONGEST))
            outcome = process.run(check, own, own.left + 15)
        outcome.title, outcome.seconds = title, time.monotonic() - start
        outcomes.append(outcome)
        print(f"{title}: {outcome.state}: {outcome.summary}", flush=True)
        page = render(outcomes, machine(), command)
        write_atomically(env.folder / "gpu_check.md", page, "--results")
    process.stop()
    print(f"\n{page}", end="")
    return outcomes


def run(argv: Sequence[str]) -> None:
    """Parse the arguments and run the checks; fail without a GPU."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--results", metavar="FOLDER", default="results/gpu", help="where to write (default: results/gpu)")
    add("--minutes", type=positive, default=8, help="time limit (default: 8)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        remedy = "run it on one with a GPU, and a PyTorch built for it (TORCH_INDEX of make setup)"
        raise ConfigurationError(None, None, "no GPU that PyTorch can use on this machine", remedy)
    # Half a minute less, for the check that runs at the time limit.
    env = Environment("cuda", Path(args.results), ends=time.monotonic() + 60 * args.minutes - 30)
    outcomes = run_checks(env, CHECKS, shlex.join(["python", "-m", "fairseq_plugins.benchmarks.gpu_check", *argv]))
    if any(outcome.state == FAILED for outcome in outcomes):
        sys.exit(1)


main = partial(run_command, "gpu-check", run)


if __name__ == "__main__":
    sys.exit(main())

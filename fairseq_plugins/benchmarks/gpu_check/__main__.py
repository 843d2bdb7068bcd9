"""What has to be seen on a machine with a GPU, in one command and under ten minutes.

    python -m fairseq_plugins.benchmarks.gpu_check --results results/gpu

Checks run in their order, each by itself; what they find is written after every one. Exit status: 0 where none failed,
1 where one did, 2 without a GPU.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from fairseq_plugins.benchmarks.gpu_check import device, exactness, programs
from fairseq_plugins.benchmarks.gpu_check.place import Place
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, NOT_RUN, Outcome, render
from fairseq_plugins.commands.cli import run_command
from fairseq_plugins.commands.files import write_atomically
from fairseq_plugins.commands.machine import machine
from fairseq_plugins.commands.parsing import positive
from fairseq_plugins.errors import ConfigurationError

Check = Callable[[Place], Outcome]
# In this order: what is found first decides how the rest is to be read.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("attention", device.attention),
    ("tests for a GPU", programs.tests_for_a_gpu),
    ("fp32 ids are fairseq's", exactness.fp32_is_fairseqs),
    ("one synchronisation an iteration", device.one_synchronisation),
    ("graphs change nothing", exactness.graphs_change_nothing),
    ("fp16 and bf16 ids are greedy's", exactness.half_is_greedys),
    ("captures", device.captures),
    ("idle time", device.idle_time),
    ("retirements and memory", device.retirements),
    ("CTranslate2 loads", programs.ctranslate2_loads),
    ("benchmark", programs.benchmark),
    ("training on Multi30k", programs.training),
)


def run_checks(place: Place, checks: Sequence[tuple[str, Check]], command: str) -> list[Outcome]:
    """Run checks one after the other as long as there is time; write what is found after each.

    Args:
        place: where they run.
        checks: title and check.
        command: for the page.
    """
    outcomes: list[Outcome] = []
    for title, check in checks:
        start = time.monotonic()
        if place.left == 0:
            outcome = Outcome(NOT_RUN, "the time was up")
        else:
            try:
                outcome = check(place)
            except Exception as error:  # one check that breaks off is no reason not to see the others
                outcome = Outcome(FAILED, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        outcome.title, outcome.seconds = title, time.monotonic() - start
        outcomes.append(outcome)
        print(f"{title}: {outcome.state}: {outcome.summary}", flush=True)
        write_atomically(place.folder / "gpu_check.md", render(outcomes, machine(), command), "--results")
        record = json.dumps([asdict(outcome) for outcome in outcomes], indent=2, ensure_ascii=False) + "\n"
        write_atomically(place.folder / "gpu_check.json", record, "--results")
    return outcomes


def run(argv: Sequence[str]) -> None:
    """Parse, refuse where there is no GPU, check."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("--results", metavar="FOLDER", default="results/gpu", help="where to write (default: results/gpu)")
    add("--minutes", type=positive, default=10, help="when the time is up (default: 10)")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise ConfigurationError(
            "no GPU that PyTorch can use on this machine; run it on one with a GPU, and a PyTorch built for it "
            "(TORCH_INDEX of make setup)"
        )
    # Half a minute for the check that runs when the time is up.
    place = Place("cuda", Path(args.results), ends=time.monotonic() + 60 * args.minutes - 30)
    outcomes = run_checks(place, CHECKS, shlex.join(["python", "-m", "fairseq_plugins.benchmarks.gpu_check", *argv]))
    if any(outcome.state == FAILED for outcome in outcomes):
        sys.exit(1)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `make gpu-check`."""
    return run_command("gpu-check", run, argv)


if __name__ == "__main__":
    sys.exit(main())

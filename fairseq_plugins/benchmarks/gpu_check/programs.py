"""Checks that run other programs: the tests for a GPU, the benchmark, the training of a drafter."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from fairseq_plugins.benchmarks.gpu_check.environment import ROOT, Environment
from fairseq_plugins.benchmarks.gpu_check.report import NOT_RUN, TARGETS, Outcome, passed_if


def run_with_timeout(
    seconds: float, command: Sequence[str], variables: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a program in the project's folder; return its exit status, None after a timeout, and its output."""
    # `timeout` also ends the program's children.
    limited = ["timeout", "--kill-after=10", str(max(seconds, 0.1)), *command]
    environment = {**os.environ, **(variables or {})}
    run = subprocess.run(
        limited, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return None if run.returncode in (124, 128 + signal.SIGKILL, -signal.SIGKILL) else run.returncode, run.stdout


def last_line(output: str) -> str:
    """Return the last line that is not empty."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def how_it_ended(status: int | None, line: str) -> str:
    """Return a program's last line, after "not finished in time" if the time limit ended it (status None)."""
    return line if status is not None else f"not finished in time: {line}"


def tests_for_a_gpu(env: Environment) -> Outcome:
    """Run `pytest -m gpu`."""
    if not (ROOT / "tests").is_dir():
        return Outcome(NOT_RUN, "there are no tests here: run it in a checkout of the project")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-n", "0", "tests/decoding"]
    return outcome_of_tests(*run_with_timeout(min(180.0, env.left), command))


def outcome_of_tests(status: int | None, output: str) -> Outcome:
    """Return the outcome for pytest's status and last line; skipped tests count as failures."""
    line = last_line(output).strip("= ")
    good = status == 0 and re.search(r"\b[1-9]\d* passed", line) is not None and "skipped" not in line
    return passed_if(good, how_it_ended(status, line))


def benchmark(env: Environment) -> Outcome:
    """Run spec-dec-bench and compare the speed of rows."""
    results = env.folder / "bench"
    rows = sorted({name for _, ours, _, theirs in TARGETS for name in (ours, theirs)} | {"fairseq beam 1"})
    if not env.is_gpu:
        rows = [row for row in rows if "CTranslate2" not in row]
    command = [sys.executable, "-m", "fairseq_plugins.benchmarks.benchmark"]
    command += env.arguments("--results", str(results), "--decoders", ",".join(rows), "--repeats", "2")
    command += ["--timing-batch-sizes", ",".join(map(str, env.batch_sizes)), "--profile"]
    command += ["--fp16"] if env.is_gpu else []
    status, output = run_with_timeout(env.left, command)
    if status != 0:
        return passed_if(False, how_it_ended(status, last_line(output)))
    record = json.loads((results / "table.json").read_text(encoding="utf-8"))
    rates = {
        row["name"]: {int(size): rate for size, rate in row["sentences_per_second"].items()} for row in record["rows"]
    }
    return outcome_of_rates(rates)


def outcome_of_rates(rates: Mapping[str, Mapping[int, float]]) -> Outcome:
    """Return the number of targets reached, from sentences per second by row and batch size."""
    ratios, reached, missing = [], 0, 0
    for size, ours, wanted, theirs in TARGETS:
        fast, slow = rates.get(ours, {}).get(size), rates.get(theirs, {}).get(size)
        ratio = fast / slow if fast and slow else None
        reached, missing = reached + (ratio is not None and ratio >= wanted), missing + (ratio is None)
        ratios.append({"batch": size, "row": ours, "wanted": wanted, "over": theirs, "ratio": ratio})
    summary = f"{reached} of {len(TARGETS)} targets reached, {missing} not measured"
    return passed_if(reached == len(TARGETS), summary, numbers={"rates": rates, "ratios": ratios})


def training(env: Environment) -> Outcome:
    """Run the recipe of Multi30k, from captions to a measured drafter, in the time left; it can be resumed."""
    name = "gpu-check-multi30k.en-de"
    command = ["bash", "train_scripts/multi30k.sh"]
    if not (ROOT / command[1]).exists():
        return Outcome(NOT_RUN, "there is no recipe here: run it in a checkout of the project")
    limit = env.left
    status, output = run_with_timeout(limit, command, {"NAME": name, "GPUS": "1"})
    (env.folder / "training.log").write_text(output, encoding="utf-8")
    resume = f"NAME={name} GPUS=1 train_scripts/multi30k.sh resumes it"
    if status is None:
        return Outcome(NOT_RUN, f"not finished in {limit:.0f} s ({last_line(output)}); {resume}")
    return passed_if(status == 0, last_line(output))

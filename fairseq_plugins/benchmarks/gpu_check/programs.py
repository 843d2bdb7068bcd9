"""Checks that are other programs: the tests for a GPU, CTranslate2, the benchmark, the training of a drafter."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_plugins.benchmarks.contenders import CTRANSLATE2_ON_CPU, CTRANSLATE2_ON_GPU
from fairseq_plugins.benchmarks.gpu_check.place import Place
from fairseq_plugins.benchmarks.gpu_check.report import NOT_RUN, TARGETS, Outcome, judged

ROOT = Path(__file__).parents[3]


def run_within(
    seconds: float, command: Sequence[str], variables: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Run a program from the project's folder; its exit status, None where the time was up, and all that it said."""
    # It ends a program with all that this has started.
    limited = ["timeout", "--kill-after=10", str(max(seconds, 0.1)), *command]
    environment = {**os.environ, **(variables or {})}
    run = subprocess.run(
        limited, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return None if run.returncode in (124, 128 + signal.SIGKILL, -signal.SIGKILL) else run.returncode, run.stdout


def last_line(said: str) -> str:
    """The last line with anything in it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


def tests_for_a_gpu(place: Place) -> Outcome:
    """`pytest -m gpu`."""
    if not (ROOT / "tests").is_dir():
        return Outcome(NOT_RUN, "there are no tests here: run it in a checkout of the project")
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-n", "0", "tests/decoding"]
    return judged_tests(*run_within(min(180.0, place.left), command))


def judged_tests(status: int | None, said: str) -> Outcome:
    """What pytest's status and last line say; tests that were left out are not passed."""
    line = last_line(said).strip("= ")
    good = status == 0 and re.search(r"\b[1-9]\d* passed", line) is not None and "skipped" not in line
    return judged(good, line if status is not None else f"not finished in time: {line}")


def ctranslate2_loads(place: Place) -> Outcome:
    """Whether CTranslate2 translates a sentence here, converted from the same verifier."""
    bench = place.bench()
    contenders = CTRANSLATE2_ON_GPU if place.is_gpu else CTRANSLATE2_ON_CPU
    reasons = {contender.name: bench.cannot_run(contender) for contender in contenders}
    failed = {name: reason for name, reason in reasons.items() if reason is not None}
    if failed:
        return Outcome(NOT_RUN, "; ".join(sorted(set(failed.values()))))
    return judged(True, f"{', '.join(reasons)} run")


def benchmark(place: Place) -> Outcome:
    """spec-dec-bench, and how many times faster rows are than others."""
    results = place.folder / "bench"
    rows = sorted({name for _, ours, _, theirs in TARGETS for name in (ours, theirs)} | {"fairseq beam 1"})
    if not place.is_gpu:
        rows = [row for row in rows if "CTranslate2" not in row]
    command = [sys.executable, "-m", "fairseq_plugins.benchmarks.benchmark"]
    command += place.arguments("--results", str(results), "--decoders", ",".join(rows), "--repeats", "2")
    command += ["--timing-batch-sizes", ",".join(map(str, place.batch_sizes)), "--profile", "--no-memory"]
    command += ["--fp16"] if place.is_gpu else []
    status, said = run_within(place.left, command)
    if status != 0:
        return judged(False, f"not finished in time: {last_line(said)}" if status is None else last_line(said))
    record = json.loads((results / "benchmark.json").read_text(encoding="utf-8"))
    rates = {
        row["name"]: {int(size): rate for size, rate in row["sentences_per_second"].items()} for row in record["rows"]
    }
    return judged_rates(rates)


def judged_rates(rates: Mapping[str, Mapping[int, float]]) -> Outcome:
    """How often the targets are reached, of sentences per second by row and batch size."""
    ratios, reached, missing = [], 0, 0
    for size, ours, wanted, theirs in TARGETS:
        fast, slow = rates.get(ours, {}).get(size), rates.get(theirs, {}).get(size)
        ratio = fast / slow if fast and slow else None
        reached, missing = reached + (ratio is not None and ratio >= wanted), missing + (ratio is None)
        ratios.append({"batch": size, "row": ours, "wanted": wanted, "over": theirs, "ratio": ratio})
    summary = f"{reached} of {len(TARGETS)} targets reached, {missing} not measured"
    return judged(reached == len(TARGETS), summary, numbers={"rates": rates, "ratios": ratios})


def training(place: Place) -> Outcome:
    """The recipe of Multi30k, from its captions to a measured drafter, in what time is left; it can be gone on with."""
    name = "gpu-check-multi30k.en-de"
    command = ["bash", "train_scripts/multi30k.sh"]
    if not (ROOT / command[1]).exists():
        return Outcome(NOT_RUN, "there is no recipe here: run it in a checkout of the project")
    given = place.left
    status, said = run_within(given, command, {"NAME": name, "GPUS": "1"})
    (place.folder / "training.log").write_text(said, encoding="utf-8")
    again = f"NAME={name} GPUS=1 train_scripts/multi30k.sh goes on"
    if status is None:
        return Outcome(NOT_RUN, f"not finished in {given:.0f} s ({last_line(said)}); {again}")
    return judged(status == 0, last_line(said))

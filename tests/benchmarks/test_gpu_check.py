"""`make gpu-check` without a GPU: every check on small models in this process, and the page."""

import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_plugins.benchmarks import measuring
from fairseq_plugins.benchmarks.gpu_check import __main__ as command
from fairseq_plugins.benchmarks.gpu_check import device, engine, exactness, programs, report, training
from fairseq_plugins.benchmarks.gpu_check.environment import BEAM_1, GAD, Environment, largest_difference, same_ids
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, NOT_RUN, PASSED, Outcome
from fairseq_plugins.benchmarks.gpu_check.worker import Worker
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs
from tests.pretended_gpu import pretended_gpu

ROOT = Path(__file__).parents[2]
PROGRAMS = (training.two_processes, *(check for _, check in command.CHECKS if check.__module__ == programs.__name__))
# Of an output.
PARTS = ("ids", "scores")
NEEDS_GPU = [check for _, check in command.CHECKS if check.__module__ == engine.__name__]
IN_PROCESS = [check for _, check in command.CHECKS if check not in (*PROGRAMS, *NEEDS_GPU)]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Small models, built once, and the smallest released one."""
    folder = tmp_path_factory.mktemp("gpu")
    shutil.copytree(ROOT / "checkpoints" / "ua-gec", folder / "checkpoints" / "ua-gec")
    return Environment("cpu", folder, "tiny", 4, (3, 6), 60, (1, 3), folder / "checkpoints")


@pytest.mark.parametrize("check", NEEDS_GPU, ids=lambda check: check.__name__)
def test_checks_of_the_engine_say_that_they_need_a_gpu(check: command.Check, env: Environment) -> None:
    assert check(env).state == NOT_RUN


@pytest.mark.parametrize("check", IN_PROCESS, ids=lambda check: check.__name__)
def test_checks_run_on_a_cpu(check: command.Check, env: Environment) -> None:
    """All code of the checks runs on a CPU, too."""
    outcome = check(env)
    assert outcome.state == PASSED, outcome.summary
    assert outcome.summary and "\n" not in outcome.summary
    assert all(len(row) == len(outcome.rows[0]) for row in outcome.rows)
    assert all(isinstance(cell, str) for row in outcome.rows for cell in row)


@pytest.mark.usefixtures("device_guard")
def test_checks_of_operations_run_on_a_pretended_gpu(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a capture, and without a wait in it."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with pretended_gpu(monkeypatch) as gpu:
        monkeypatch.setattr(exactness, "capture_on_cuda", gpu.capture)
        outcome = exactness.bits(replace(env, device="cuda"))
    assert outcome.state == PASSED, outcome.summary
    assert gpu.launches["graphs"] > 0


def test_two_processes_on_a_cpu(
    env: Environment, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process of a training of two sees half of the batches."""
    monkeypatch.setattr(sys, "executable", str(request.getfixturevalue("programs") / "python"))
    outcome = training.two_processes(env)
    assert outcome.state == PASSED, outcome.summary
    assert [row[0] for row in outcome.rows] == ["processes", "2", "1"]


def test_graphs_that_run_are_counted(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """With recordings instead of graphs, later passes replay more steps."""
    from tests.decoding.reference.captured.test_graphed_decoder import Recorder

    recorder = Recorder()
    monkeypatch.setattr("fairseq_plugins.tasks.decoding.Graphs", lambda enabled: Graphs(recorder, "cpu", enabled))
    outcome = exactness.fp32_equals_fairseq(env)
    assert outcome.state == PASSED
    replays = [int(row[-1]) for row in outcome.rows[1:] if row[:2] == ["gad", "1"]]
    assert len(replays) == 4 and replays == sorted(replays) and replays[-1] > replays[0]
    outcome = device.captures(env)
    assert outcome.numbers["captures"] > 0 and outcome.summary.startswith("CUDA graphs on: ")


def test_nothing_is_captured_while_decoding_is_timed(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.decoding.reference.captured.test_graphed_decoder import Recorder

    recorder = Recorder()
    monkeypatch.setattr("fairseq_plugins.tasks.decoding.Graphs", lambda enabled: Graphs(recorder, "cpu", enabled))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    bench = env.bench()
    monkeypatch.setattr(bench, "cuda", True)
    decode, decode_timed = bench.decode, bench.decode_timed
    timed: list[int] = []

    def warm_up(*args: Any) -> Any:
        before = len(timed)
        output = decode(*args)
        del timed[before:]
        return output

    def watched(*args: Any) -> Any:
        before = recorder.captures
        output = decode_timed(*args)
        timed.append(recorder.captures - before)
        return output

    monkeypatch.setattr(bench, "decode", warm_up)
    monkeypatch.setattr(bench, "decode_timed", watched)
    measuring.measure(bench, [BEAM_1, GAD], measuring.Plan((1, 3), env.sentences, 2), None)
    assert recorder.captures > 0 and timed == [0] * 8


@pytest.mark.parametrize(
    "check, part",
    [
        (exactness.fp32_equals_fairseq, "ids"),
        *((check, part) for check in (exactness.graphs_change_nothing, exactness.half_equals_greedy) for part in PARTS),
    ],
)
def test_one_wrong_output_fails(
    check: command.Check, part: str, env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, calls = exactness.decode, []

    def wrong(*args: Any) -> Any:
        calls.append(args)
        output = decode(*args)
        if len(calls) == 2:
            output[1][PARTS.index(part)][0] += 1
        return output

    monkeypatch.setattr(exactness, "decode", wrong)
    # Only the last pass is compared with graphs.
    monkeypatch.setattr(exactness, "PASSES", 1)
    assert check(env).state == FAILED


def test_same_ids_and_largest_difference() -> None:
    ours = [([4, 2], [-1.0, -0.5]), ([5, 2], [-1.0, -0.5])]
    theirs = [([4, 2], [-1.0, -0.25]), ([6, 2], [-9.0, -0.5])]
    assert same_ids(ours, ours) == 2 and same_ids(ours, theirs) == 1
    assert largest_difference(ours, theirs) == 0.25 and largest_difference(ours[1:], theirs[1:]) == 0.0
    assert math.isnan(largest_difference(ours, [([4, 2], [-1.0, math.nan]), theirs[1]]))


def test_synchronisations_are_counted_by_iteration() -> None:
    def iterations() -> Iterator[int]:
        for count in (5, 1, 0, 2):
            for _ in range(count):
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
            yield count

    assert device.count_synchronisations(iterations()) == [1, 0, 2]


@pytest.mark.parametrize(
    "status, output, state",
    [
        (0, "...\n3 passed, 300 deselected in 9.00s\n", PASSED),
        (0, "==== 3 skipped, 300 deselected in 9.00s ====\n", FAILED),
        (0, "2 passed, 1 skipped, 300 deselected in 9.00s\n", FAILED),
        (1, "1 failed, 2 passed in 9.00s\n", FAILED),
        (5, "300 deselected in 9.00s\n", FAILED),
        (None, "collecting\n", FAILED),
    ],
)
def test_outcome_of_pytest(status: int | None, output: str, state: str) -> None:
    assert programs.outcome_of_tests(status, output).state == state


def test_programs_end_at_the_time_limit() -> None:
    printing = "import os; print(os.environ['NAME'])"
    assert programs.run_with_timeout(60, [sys.executable, "-c", printing], {"NAME": "x"}) == (0, "x\n")
    assert programs.run_with_timeout(60, [sys.executable, "-c", "exit(3)"]) == (3, "")
    started = time.monotonic()
    waiting = "import time; print('here', flush=True); time.sleep(60)"
    assert programs.run_with_timeout(2, [sys.executable, "-c", waiting]) == (None, "here\n")
    assert time.monotonic() - started < 30


def test_rates_against_targets() -> None:
    rates = {
        "gad (replayed)": {1: 100.0, 32: 300.0},
        "greedy": {1: 60.0},
        "fairseq beam 5": {1: 2.0, 32: 30.0},
    }
    outcome = programs.outcome_of_rates(rates)
    assert outcome.state == FAILED and outcome.summary == "2 of 4 targets reached, 1 not measured"
    lines = report.targets_table(outcome.numbers["ratios"]).splitlines()
    assert lines[2:] == [
        "| batch 1, fp16: `gad (replayed)` at least 50 times fairseq beam 5 | 50.0 times |",
        "| batch 1, fp16: `gad (replayed)` at least 4 times CTranslate2 greedy fp16 | not measured |",
        "| batch 1, fp16: `gad (replayed)` at least 2 times `greedy` | 1.7 times |",
        "| batch 32, fp16: `gad (replayed)` at least 8 times fairseq beam 5 | 10.0 times |",
    ]
    rates["CTranslate2 greedy fp16"], rates["greedy"] = {1: 20.0}, {1: 50.0}
    assert programs.outcome_of_rates(rates).state == PASSED


def test_benchmark_on_a_cpu(env: Environment, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs spec-dec-bench and reads its results."""
    monkeypatch.setattr(sys, "executable", str(request.getfixturevalue("programs") / "python"))
    outcome = programs.benchmark(env)
    ratios = {(entry["batch"], entry["over"]): entry["ratio"] for entry in outcome.numbers["ratios"]}
    assert ratios[1, "fairseq beam 5"] > 0 and ratios[1, "greedy"] > 0
    assert ratios[1, "CTranslate2 greedy fp16"] is None and ratios[32, "fairseq beam 5"] is None


def fine(at: Environment) -> Outcome:
    return Outcome(PASSED, f"as | it should be: {at.device}", [["what", "how many"], ["this", "3"]])


def breaks(at: Environment) -> Outcome:
    raise RuntimeError("CUDA error:\nan illegal memory access")


def crashes(at: Environment) -> Outcome:
    os._exit(1)


def hangs(at: Environment) -> Outcome:
    time.sleep(600)
    return Outcome(PASSED, "late")


def test_page_and_records_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that raises, crashes or hangs has failed, and the others run; the files list all of them."""
    at = Environment("cpu", tmp_path / "gpu")
    checks = [("fine", fine), ("breaks", breaks), ("crashes", crashes), ("fine again", fine), ("hangs", hangs)]
    # The last one gets no time.
    run = Worker.run

    def run_shortly(worker: Worker, check: command.Check, at: Environment, seconds: float) -> Outcome:
        assert 180 < seconds <= 195
        outcome = run(worker, check, at, 1.0 if check is hangs else seconds)
        at.ends = 0.0 if check is hangs else at.ends
        return outcome

    monkeypatch.setattr(Worker, "run", run_shortly)
    outcomes = command.run_checks(at, [*checks, ("late", fine)], "the command")
    assert [outcome.state for outcome in outcomes] == [PASSED, FAILED, FAILED, PASSED, FAILED, NOT_RUN]
    page = (at.folder / "gpu_check.md").read_text(encoding="utf-8")
    assert "2 passed, 3 failed, 1 not run." in page and "Command: `the command`" in page
    assert "RuntimeError: CUDA error: an illegal memory access" in page and "as / it should be: cpu" in page
    assert "BrokenProcessPool" in page and "not finished in 1 s" in page
    assert "## fine\n\n| what" in page and report.targets_table() in page and "## late" not in page
    recorded = json.loads((at.folder / "gpu_check.json").read_text(encoding="utf-8"))
    assert [entry["title"] for entry in recorded] == ["fine", "breaks", "crashes", "fine again", "hangs", "late"]
    assert report.render([Outcome(**entry) for entry in recorded], "M", "C") == report.render(outcomes, "M", "C")
    assert capsys.readouterr().out.splitlines()[1].startswith("breaks: failed: RuntimeError")


@pytest.mark.parametrize("checks, status", [((("fine", fine),), 0), ((("fine", fine), ("breaks", breaks)), 1)])
def test_command_with_a_gpu(
    checks: tuple[tuple[str, command.Check], ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its options to its exit status; the worker does not fork."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "CHECKS", checks)
    monkeypatch.setattr(command, "machine", lambda: "a GPU")
    with pytest.raises(SystemExit) if status else nullcontext() as ended:
        assert command.main(["--results", str(tmp_path), "--minutes", "5"]) == status
    assert ended is None or ended.value.code == status
    page = (tmp_path / "gpu_check.md").read_text(encoding="utf-8")
    assert "as / it should be: cuda" in page and f"1 passed, {status} failed, 0 not run." in page


@pytest.mark.skipif(torch.cuda.is_available(), reason="is for machines without a GPU")
def test_one_line_error_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--results", str(tmp_path / "gpu")]) == 2
    printed, log = capsys.readouterr()
    assert printed == "" and log.count("\n") == 1 and "no GPU" in log and "make setup" in log
    assert not list(tmp_path.iterdir())


def test_docs_have_the_table() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for line in report.targets_table().splitlines()[2:]:
        assert line.split("|")[1] in page
    assert "gpu-check:" in (ROOT / "Makefile").read_text(encoding="utf-8")

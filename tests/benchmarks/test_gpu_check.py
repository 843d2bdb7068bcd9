"""`make gpu-check` without a GPU: checks on small models in this process, and the page."""

import gc
import math
import os
import shutil
import time
import weakref
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_plugins.benchmarks import measuring
from fairseq_plugins.benchmarks.contenders import BEAM_1, CONTENDERS
from fairseq_plugins.benchmarks.gpu_check import __main__ as command
from fairseq_plugins.benchmarks.gpu_check import engine, released, report, training
from fairseq_plugins.benchmarks.gpu_check.environment import (
    Environment,
    first_difference,
    largest_difference,
    same_ids,
)
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, NOT_RUN, PASSED, Outcome
from fairseq_plugins.benchmarks.gpu_check.worker import CheckProcess
from fairseq_plugins.decoding.reference.captured.graph_capture import Graphs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Small models, built once, and the smallest released one."""
    folder = tmp_path_factory.mktemp("gpu")
    shutil.copytree(ROOT / "checkpoints" / "ua-gec", folder / "checkpoints" / "ua-gec")
    return Environment("cpu", folder, "tiny", 4, (3, 6), 60, 3, folder / "checkpoints")


@pytest.mark.parametrize("check", [released.released_models, training.throughput])
def test_checks_run_on_a_cpu(check: command.Check, env: Environment) -> None:
    outcome = check(env)
    assert outcome.state == PASSED, outcome.summary
    assert outcome.summary and "\n" not in outcome.summary
    assert all(len(row) == len(outcome.rows[0]) for row in outcome.rows)
    assert all(isinstance(cell, str) for row in outcome.rows for cell in row)


@pytest.mark.parametrize(("wrong", "state"), [(None, PASSED), (1, FAILED), (3, FAILED), (5, FAILED)])
def test_a_wrong_output_fails(wrong: int | None, state: str, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()

    def decode(*_: Any) -> list[tuple[list[int], list[float]]]:
        return [([4, 2], [-1.0, -0.5]), ([6 if next(calls) == wrong else 5, 2], [-1.0, -0.5])]

    monkeypatch.setattr(released, "released_benches", lambda *_: [("a model", mock.MagicMock())])
    monkeypatch.setattr(released, "decode", decode)
    assert released.released_models(env).state == state and next(calls) == 6


def test_nothing_is_captured_while_decoding_is_timed(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.decoding.reference.captured.test_graphed_decoder import Recorder

    recorder = Recorder()
    monkeypatch.setattr("fairseq_plugins.tasks.decoding.Graphs", lambda enabled: Graphs(recorder, "cpu", enabled))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    bench = released.random_bench(env)
    contenders = [contender for contender in CONTENDERS if contender.name in (BEAM_1, "greedy", "gad")]
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
    args = Namespace(timing_batch_sizes=(1, 3), timing_sentences=env.sentences, repeats=2, timing_seconds=0)
    measuring.measure(bench, contenders, args, None)
    assert recorder.captures > 0 and timed == [0] * 12


def test_same_ids_and_largest_difference() -> None:
    ours = [([4, 2], [-1.0, -0.5]), ([5, 2], [-1.0, -0.5])]
    theirs = [([4, 2], [-1.0, -0.25]), ([6, 2], [-9.0, -0.5])]
    assert same_ids(ours, ours) == 2 and same_ids(ours, theirs) == 1
    assert first_difference(ours, ours) == "" and first_difference(ours, theirs) == "sentence 1, token 0: 5 for 6"
    assert largest_difference(ours, theirs) == 0.25 and largest_difference(ours[1:], theirs[1:]) == 0.0
    assert math.isnan(largest_difference(ours, [([4, 2], [-1.0, math.nan]), theirs[1]]))


@pytest.mark.parametrize(
    "status, output, state",
    [
        (0, "...\n3 passed, 300 deselected in 9.00s\n", PASSED),
        (0, "==== 3 skipped, 300 deselected in 9.00s ====\n", FAILED),
        (0, "2 passed, 1 skipped, 300 deselected in 9.00s\n", FAILED),
        (1, "1 failed, 2 passed in 9.00s\n", FAILED),
        (5, "300 deselected in 9.00s\n", FAILED),
        (124, "collecting\n", FAILED),
    ],
)
def test_outcome_of_pytest(status: int, output: str, state: str) -> None:
    assert command.outcome_of_tests(status, output).state == state


def fine(at: Environment) -> Outcome:
    return Outcome(PASSED, f"as | it should be: {at.device}", [["what", "how many"], ["this", "3"]])


def breaks(at: Environment) -> Outcome:
    raise RuntimeError("CUDA error:\nan illegal memory access")


def crashes(at: Environment) -> Outcome:
    os._exit(1)


def hangs(at: Environment) -> Outcome:
    time.sleep(600)
    return Outcome(PASSED, "late")


def test_one_failing_check_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that raises, crashes or hangs has failed, and the others run; the page lists all of them."""
    at = Environment("cpu", tmp_path / "gpu")
    checks = [("fine", fine), ("breaks", breaks), ("crashes", crashes), ("fine again", fine), ("hangs", hangs)]
    # The last one gets no time.
    run = CheckProcess.run

    def run_shortly(process: CheckProcess, check: command.Check, own: Environment, seconds: float) -> Outcome:
        assert 180 < seconds <= 195 and seconds - 16 < own.left < 180
        outcome = run(process, check, own, 1.0 if check is hangs else seconds)
        at.ends = 0.0 if check is hangs else at.ends
        return outcome

    monkeypatch.setattr(CheckProcess, "run", run_shortly)
    outcomes = command.run_checks(at, [*checks, ("late", fine)], "the command")
    assert [outcome.state for outcome in outcomes] == [PASSED, FAILED, FAILED, PASSED, FAILED, NOT_RUN]
    page = (at.folder / "gpu_check.md").read_text(encoding="utf-8")
    assert "2 passed, 3 failed, 1 not run." in page and "Command: `the command`" in page
    assert "RuntimeError: CUDA error: an illegal memory access" in page and "as / it should be: cpu" in page
    assert "BrokenProcessPool" in page and "not finished in 1 s" in page
    assert "## fine\n\n| what" in page and "## late" not in page
    assert "## breaks: errors" in page and "in breaks\n    raise RuntimeError(" in page
    titles = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert titles[-6:] == ["fine", "breaks", "crashes", "fine again", "hangs", "late"]
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].startswith("breaks: failed: RuntimeError") and printed.endswith(page)
    assert os.listdir(at.folder) == ["gpu_check.md"]


def test_models_are_made_before_several_processes_need_them(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what fails runs again, kernel by kernel."""
    at = replace(env, folder=env.folder / "fresh")
    failures = [
        [Outcome(PASSED, "1 graphs")] * 17 + [Outcome(FAILED, "CUDA error", details="somewhere")],
        [Outcome(FAILED, "CUDA error", details="in attend")],
    ]
    started: list[dict[str, Any]] = []

    def in_processes(given: Environment, checks: list[Any]) -> list[Outcome]:
        assert (at.folder / "models" / "tiny").is_dir() and (at.folder / "released" / "ua-gec" / "data").is_dir()
        assert ("CUDA_LAUNCH_BLOCKING" in os.environ) == bool(started)
        started.extend(check.keywords for check in checks)
        return failures.pop(0)

    monkeypatch.setattr(engine, "_in_processes", in_processes)
    outcome = engine.runs(at)
    assert outcome.state == FAILED and outcome.details == "somewherein attend"
    assert outcome.rows[-1][3] == "failed: CUDA error; kernel by kernel: failed: CUDA error"
    assert started[-1] == {**started[-2], "variant": engine.ONE_BY_ONE} and len(started) == 19
    assert {check["only"] for check in started} == {"ua-gec", "random tiny"}


def test_processes_that_wait_for_others_do_not_begin_after_the_time_limit(env: Environment) -> None:
    def late(at: Environment) -> Outcome:
        raise AssertionError

    outcomes = engine._in_processes(replace(env, ends=0.0), [late, late])
    assert [outcome.state for outcome in outcomes] == [NOT_RUN, NOT_RUN] and not engine._in_processes(env, [])


def test_an_error_or_the_time_limit_leaves_the_rows_before(env: Environment) -> None:
    def rows() -> Iterator[list[str]]:
        yield ["greedy", "3"]
        raise RuntimeError("CUDA error")

    outcome = engine._tabulated(env, ["decoder", "ms"], rows())
    assert outcome.state == FAILED and outcome.summary == "RuntimeError: CUDA error" and len(outcome.rows) == 2
    assert "in rows\n" in outcome.details
    outcome = engine._tabulated(replace(env, ends=0.0), ["decoder", "ms"], rows())
    assert outcome.state == FAILED and outcome.summary == "the time was up after 1 rows" and len(outcome.rows) == 2


def test_a_new_generator_takes_the_memory_of_the_one_before(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """omegaconf keeps the frames that build a generator until garbage is collected."""
    bench = released.random_bench(env)
    monkeypatch.setattr(bench, "cuda", True)
    greedy = next(contender for contender in CONTENDERS if contender.name == "greedy")
    gc.disable()
    try:
        before = weakref.ref(bench.generator(greedy))
        bench.generator(greedy)
        assert before() is None
    finally:
        gc.enable()


def test_captured_loop_may_go_once_the_engine_passes() -> None:
    outcomes = [Outcome(PASSED, "", title=title) for title, _ in command.CHECKS]
    outcomes[-1].state = FAILED
    assert "may go" in report.what_may_go(outcomes)
    outcomes[1].state = NOT_RUN
    assert report.what_may_go(outcomes).endswith("Not passed by Triton's engine: ids and bits (not run).")
    assert report.what_may_go(outcomes[-1:]).endswith("all.")


def test_command_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its options to its exit status; the worker does not fork."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(command, "CHECKS", (("fine", fine), ("breaks", breaks)))
    monkeypatch.setattr(command, "machine", lambda: "a GPU")
    options = ["--results", str(tmp_path), "--minutes", "5"]
    with pytest.raises(SystemExit, match="1"):
        command.main(options)
    page = (tmp_path / "gpu_check.md").read_text(encoding="utf-8")
    assert "as / it should be: cuda" in page and "1 passed, 1 failed, 0 not run." in page
    monkeypatch.setattr(command, "run_checks", lambda env, checks, line: [checks[0][1](env)])
    assert command.main(options) == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="is for machines without a GPU")
def test_one_line_error_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--results", str(tmp_path / "gpu")]) == 2
    printed, log = capsys.readouterr()
    assert printed == "" and log.count("\n") == 1 and "no GPU" in log and "make setup" in log
    assert not list(tmp_path.iterdir())

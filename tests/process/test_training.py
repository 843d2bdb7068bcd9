"""SIGUSR1 to a runner that trains: a checkpoint after the update, and the same command goes on as if nothing was."""

import atexit
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq import options
from fairseq.distributed.utils import get_global_group
from omegaconf import DictConfig, OmegaConf
from torch import distributed

from fairseq_plugins.process import training as training_process
from fairseq_plugins.process.ending import FAILED
from fairseq_plugins.process.training import (
    _end_after_training,
    _stop,
    _wait_for,
    bf16_without_tpu,
    destroy_process_groups_at_exit,
)
from tests.conftest import TINY, Corpus
from tests.support import REPOSITORY
from tests.train_scripts.test_runner import environment

TRAINING = (
    f"--task translation --arch transformer {TINY} --dropout 0.1 --criterion cross_entropy --optimizer adam --lr 0.01 "
    "--max-tokens 30 --num-workers 0 --no-epoch-checkpoints --seed 1 --required-batch-size-multiple 1"
)


# fairseq takes the number of GPUs for that of the processes of torchrun, unless all is given.
WITHOUT_GPUS = """#!/bin/sh
set -- "$@" ${{RANK:+--distributed-rank $RANK --distributed-init-method env:// --distributed-no-spawn}}
exec {programs}/fairseq-train "$@" --cpu ${{RANK:+--distributed-backend gloo --ddp-backend legacy_ddp}}
"""


def trainer_without_gpus(folder: Path, programs: Path) -> Path:
    """Write a fairseq-train that trains on CPUs, in processes of torchrun as well."""
    program = folder / "fairseq-train"
    program.write_text(WITHOUT_GPUS.format(programs=programs))
    program.chmod(0o755)
    return program


def training(corpus: Corpus, programs: Path, folder: Path, updates: int, processes: int) -> list[str]:
    """`python -m train_scripts.runner train` and what it runs."""
    command = f"{trainer_without_gpus(folder.parent, programs)} {corpus.data} --user-dir {REPOSITORY}/fairseq_plugins"
    if processes > 1:
        launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node {processes} --no-python"
        command = f"{launcher} {command} --distributed-world-size {processes}"
    runner = [sys.executable, "-m", "train_scripts.runner", "train", str(folder), "train", f"{folder}.log", "0"]
    return [*runner, *command.split(), *TRAINING.split(), "--max-update", str(updates)]


def train(corpus: Corpus, programs: Path, folder: Path, updates: int, processes: int = 1) -> subprocess.Popen[str]:
    """Start `training`."""
    variables = environment(OMP_NUM_THREADS="1", LOG_INTERVAL="1", PYTHON_EXEC=f"{programs}/python")
    return subprocess.Popen(
        training(corpus, programs, folder, updates, processes),
        cwd=REPOSITORY, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_training_stops_with_a_checkpoint(corpus: Corpus, programs: Path, tmp_path: Path, processes: int) -> None:
    stopped, whole, log = tmp_path / "stopped", tmp_path / "whole", tmp_path / "stopped.log"
    run = train(corpus, programs, stopped, 100_000, processes)
    begun = '"epoch": 2' if processes == 1 else "train_inner"  # each epoch has batches of its own
    while not (log.exists() and begun in log.read_text()):
        assert run.poll() is None
        time.sleep(0.05)
    run.send_signal(signal.SIGUSR1)
    _, said = run.communicate(timeout=300)
    assert said == "Stopped by SIGUSR1. The same command resumes here.\n" and run.returncode == 138
    # At the end of an epoch the best one is saved, and copied as the last one.
    saved = re.findall(r"Saved checkpoint \S*checkpoint_(?:best|last).pt \(epoch \d+ @ (\d+) updates", log.read_text())
    assert saved and Path(f"{stopped}.partial", "checkpoint_last.pt").exists() and not stopped.exists()
    assert "begin validation" not in log.read_text().partition("Stopping training")[2]
    updates = int(saved[-1]) + 3
    assert train(corpus, programs, stopped, updates, processes).wait(300) == 0
    assert re.search(rf"Loaded checkpoint .*@ {saved[-1]} updates\)", log.read_text())
    if processes == 1:
        assert train(corpus, programs, whole, updates).wait(300) == 0
        models = [torch.load(folder / "checkpoint_last.pt")["model"] for folder in (stopped, whole)]
        assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def ask_to_stop(
    update: int,
    limit: int,
    interval: int = 0,
    batches: tuple[int, int] = (1, 9),
    then: Callable[[], object] = bool,
    **dataset: int,
) -> DictConfig:
    """Return the settings of fairseq's loop after a request in it, and call `then` there.

    `batches` are those begun and those of the epoch.
    """
    validation = {"disable_validation": False, "validate_interval": 1, "validate_interval_updates": 0, **dataset}
    cfg = OmegaConf.create(
        {
            "optimization": {"max_update": limit},
            "dataset": validation,
            "checkpoint": {"save_interval_updates": interval},
        }
    )
    loop: dict[str, Any] = {"__name__": "fairseq_cli.train", "stop": lambda: _stop(signal.SIGUSR1, sys._getframe(1))}
    exec("def train(cfg, trainer, itr, then): stop(); then()\ndef main(*given): train(*given)", loop)
    trainer, itr = SimpleNamespace(get_num_updates=lambda: update), SimpleNamespace(n=batches[0], total=batches[1])
    loop["main"](cfg, trainer, itr, then)
    return cfg


@pytest.mark.parametrize(("update", "limit", "stops"), [(5, 0, True), (5, 7, True), (6, 7, False), (7, 7, False)])
def test_a_request_leaves_the_last_update_as_it_is(
    update: int, limit: int, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its validation, and one update longer after a restart, a training would give another model."""
    monkeypatch.setattr(training_process, "_asked_at", [])
    cfg = ask_to_stop(update, limit)
    assert (cfg.optimization.max_update, cfg.dataset.disable_validation) == ((1, True) if stops else (limit, False))


@pytest.mark.parametrize(
    ("updates", "interval", "batches", "stops"),
    [
        ([8], 10, (1, 99), [True]),
        ([9, 10, 11], 10, (1, 99), [False, False, True]),  # in the update, in its validation or the next one, and later
        ([10, 11], 10, (1, 99), [False, True]),
        ([5, 6, 7], 1, (1, 99), [False, False, True]),
        ([5, 6, 7], 0, (98, 99), [False, False, True]),  # fairseq validates at the end of an epoch
    ],
)
def test_a_request_waits_for_a_validation_that_is_due(
    updates: list[int], interval: int, batches: tuple[int, int], stops: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart fairseq goes on with the next update: the best checkpoint could be another."""
    timers: list[Any] = []
    monkeypatch.setattr(threading, "Timer", lambda *given: timers.append(given) or mock.Mock())
    monkeypatch.setattr(training_process, "_asked_at", [])
    cfgs = [ask_to_stop(update, 0, interval, batches) for update in updates]
    assert [cfg.dataset.disable_validation for cfg in cfgs] == stops
    assert timers == [(0.5, os.kill, [os.getpid(), signal.SIGUSR1])] * stops.count(False)


@pytest.mark.parametrize(
    ("interval", "dataset", "validates"),
    [
        (1, {}, [5, 6, 7]),
        (2, {}, [6, 7]),
        (0, {"validate_interval_updates": 2}, [6, 7]),
        (0, {"validate_interval": 2}, []),
        (1, {"validate_interval": 2}, [5, 6]),  # at the end of an epoch fairseq then saves only
        (1, {"disable_validation": True}, []),
    ],
)
def test_a_validation_that_is_due_is_made_while_a_training_stops(
    interval: int, dataset: dict[str, int], validates: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all processes, as without a request. Update 7 ends the first epoch."""
    monkeypatch.setattr(training_process, "_asked_at", [3])
    cfg = ask_to_stop(5, 0, interval, **dataset)
    assert cfg.optimization.max_update == 1
    loop: dict[str, Any] = {"__name__": "fairseq_cli.train"}
    exec(
        "def validate_and_save(cfg, num_updates, epoch_itr, end_of_epoch): return cfg.dataset.disable_validation", loop
    )
    epoch, save = SimpleNamespace(epoch=1), loop["validate_and_save"]
    assert [update for update in (5, 6, 7) if not save(cfg, update, epoch, update == 7)] == validates


@pytest.mark.parametrize("pipe", [0, 1], ids=["input", "output"])
def test_a_training_stops_when_its_runner_is_killed(pipe: int, tmp_path: Path) -> None:
    """It would train to its end, and the next run an update more. srun passes on only that the input has ended."""
    runner = os.fork()
    if runner == 0:
        ends, others = os.pipe(), os.pipe()
        if os.fork() == 0:  # torchrun, or the first process of fairseq, which lives on
            os.close(ends[1 - pipe])
            os.dup2(ends[pipe], pipe)
            os.dup2(others[1 - pipe], 1 - pipe)
            if pipe == 1:
                os.close(others[1])  # the input that a launcher gives has ended before
            if os.fork() == 0:
                signal.signal(signal.SIGUSR1, lambda *_: (tmp_path / "stopped").touch())
                (tmp_path / "begun").touch()
                _wait_for(tmp_path / "stop")
                os._exit(0)
            os.wait()
            os._exit(0)
        time.sleep(1000)
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    time.sleep(1)
    assert not (tmp_path / "stopped").exists()
    os.kill(runner, signal.SIGKILL)
    os.waitpid(runner, 0)
    end = time.monotonic() + 60
    while not (tmp_path / "stopped").exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert (tmp_path / "stop").exists(), "the first of all processes, which saves, may be on another node"


def test_processes_of_a_killed_runner_end_after_their_checkpoint(tmp_path: Path) -> None:
    """fairseq's first process would wait for the others, and they for its next update.

    It waits after its last checkpoint has been written: with --save-async after the loop.
    """
    process = os.fork()
    if process == 0:
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        watch = threading.Thread(target=_end_after_training).start
        loop = {"__name__": "fairseq_cli.train", "watch": watch, "time": time, "saved": tmp_path / "saved"}
        exec("def train(): watch(); time.sleep(0.7)\ndef main(): train(); time.sleep(0.7); saved.touch()", loop)
        loop["main"]()
        time.sleep(30)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == FAILED
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_process_ends_after_a_request(rank: int, tmp_path: Path) -> None:
    """Another one between two epochs would end the first one before its checkpoint."""
    process = os.fork()
    if process == 0:
        distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        signal.signal(signal.SIGUSR1, _stop)
        reads, writes = os.pipe()
        os.close(reads)
        os.dup2(writes, 1)
        with mock.patch.object(distributed, "get_rank", return_value=rank):
            _wait_for(tmp_path / "stop")  # before the loop
            ask_to_stop(5, 0, then=lambda: time.sleep(0.7) or (tmp_path / "saved").touch())
            time.sleep(0.7 if rank else 30)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == (0 if rank else FAILED)
    assert (tmp_path / "saved").exists()


def gloo_threads() -> int:
    """Return the number of threads of this process that run reductions."""
    return sum(path.read_text() == "pt_gloo_runloop\n" for path in Path("/proc/self/task").glob("*/comm"))


@pytest.mark.parametrize("failed", [False, True])
def test_threads_of_process_groups_end_before_the_interpreter(
    failed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one that frees a tensor later aborts the process. After an error others may still communicate."""
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    destroy_process_groups_at_exit()
    monkeypatch.setattr(sys, "last_value", RuntimeError() if failed else None, raising=False)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        distributed.all_reduce(torch.ones(1), group=get_global_group())
        assert gloo_threads() > 0
        at_exit[0]()
        assert distributed.is_initialized() == (gloo_threads() > 0) == failed
    finally:
        if failed:
            vars(get_global_group).clear()
            distributed.destroy_process_group()


@pytest.mark.parametrize("tpu", [False, True])
def test_bf16_asks_for_a_tpu_only_with_tpu(tpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq's own parser always does, and its trainer then fails without PyTorch's package for TPUs."""
    arguments = ["data", "--task", "spec_dec", "--arch", "transformer", "--bf16", *(["--tpu"] if tpu else [])]
    monkeypatch.setattr(options, "parse_args_and_arch", options.parse_args_and_arch)  # is put back
    bf16_without_tpu()
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)
    assert args.bf16 and args.tpu == tpu

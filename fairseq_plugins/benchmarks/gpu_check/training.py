"""Checks of training a drafter: throughput by precision and attention, and two processes that train as one."""

import json
import math
import re
import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from fairseq_plugins.benchmarks import replay
from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.benchmarks.gpu_check.programs import how_it_ended, last_line, run_with_timeout
from fairseq_plugins.benchmarks.gpu_check.report import Outcome, passed_if

_UPDATES = 8
# Of losses: the order of additions differs.
_TOLERANCE = 0.01


def throughput(env: Environment) -> Outcome:
    """Time updates in fp16 and bf16, with and without cuDNN's attention; losses must be finite."""
    rows, good = [["precision", "cuDNN's attention", "target tokens/s", "loss"]], True
    # fairseq trains in half precision on a GPU only.
    for kind in ("fp16", "bf16") if env.is_gpu else ("fp32",):
        for has_cudnn in (False, True):
            trainer, sample = _trainer(env, *([] if kind == "fp32" else [f"--{kind}"]))
            # The task switches cuDNN's attention off.
            switch: AbstractContextManager[Any] = nullcontext()
            if has_cudnn:
                switch = mock.patch.object(torch.backends.cuda, "enable_cudnn_sdp")
            with switch, metrics.aggregate() as logged:
                _train(trainer, sample)
                milliseconds = env.milliseconds(partial(_train, trainer, sample))
            loss = logged["loss"].avg
            good &= math.isfinite(loss)
            rate = 1000 * _UPDATES * sample["ntokens"] / milliseconds
            rows.append([kind, "on" if has_cudnn else "off", f"{rate:.0f}", f"{loss:.2f}"])
    return passed_if(good, "see the table" if good else "the loss is not finite", rows=rows)


def _train(trainer: Trainer, sample: dict[str, Any]) -> None:
    for _ in range(_UPDATES):
        trainer.train_step([sample])


def _trainer(env: Environment, *more: str) -> tuple[Trainer, dict[str, Any]]:
    """Return fairseq's trainer of a drafter, and all sentences four times as a batch."""
    args = options.parse_args_and_arch(options.get_training_parser(), input_args=_arguments(env, *more))
    cfg = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("test")
    dataset = task.dataset("test")
    sentences = [dataset[number] for number in range(len(dataset))]
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    return trainer, dataset.collater(4 * sentences)


def two_processes(env: Environment) -> Outcome:
    """Compare losses of two processes, on one GPU if there is no other, with those of one process."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"tcp://localhost:{free.getsockname()[1]}"
    together = ["--distributed-world-size", "2", "--distributed-no-spawn", "--distributed-init-method", address]
    # NCCL refuses two processes on a GPU.
    together += ["--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    devices = max(1, torch.cuda.device_count())
    rows, losses = [["processes", "losses", "target tokens/s"]], []
    for commands in (
        [[*together, "--distributed-rank", str(rank), "--device-id", str(rank % devices)] for rank in range(2)],
        [["--update-freq", "2"]],
    ):
        programs = [[sys.executable, "-m", "fairseq_cli.train", *_arguments(env, *command)] for command in commands]
        with ThreadPoolExecutor() as pool:
            runs = list(pool.map(partial(run_with_timeout, min(120.0, env.left)), programs))
        for status, output in runs:
            if status != 0:
                return passed_if(False, how_it_ended(status, last_line(output)))
        records = [json.loads(line) for line in re.findall(r'\{"epoch": .*"loss": .*\}', runs[0][1])]
        losses.append([float(record["loss"]) for record in records])
        shown = ", ".join(f"{loss:.3f}" for loss in losses[-1])
        rows.append([str(len(commands)), shown, records[-1]["wps"]])
    two, one = losses
    good = len(one) == len(two) == _UPDATES and all(
        math.isclose(a, b, rel_tol=0, abs_tol=_TOLERANCE) for a, b in zip(one, two, strict=True)
    )
    return passed_if(good, "equal losses" if good else "losses differ", rows=rows)


def _arguments(env: Environment, *more: str) -> list[str]:
    """Return fairseq-train's arguments for a drafter that reads a random verifier's states and learns to copy."""
    models = env.folder / "models" / "replay"
    texts = (env.sentences, env.lengths, env.vocabulary)
    replayed, verifier, _ = replay.prepare(models, env.shape, "features", "fp16", *texts)
    data = env.folder / "training"
    if not data.exists():
        shutil.copytree(replayed, data)
        for suffix in ("bin", "idx"):
            shutil.copy(data / f"test.src-tgt.src.{suffix}", data / f"test.src-tgt.tgt.{suffix}")
    _, architecture, sizes = replay.SHAPES[env.shape]
    return [
        *(str(data), "--source-lang", "src", "--target-lang", "tgt", "--share-all-embeddings", *sizes),
        *("--user-dir", str(Path(replay.__file__).parents[1]), "--task", "spec_dec", "--arch", architecture),
        *("--criterion", "glat_loss", "--verifier-path", verifier, "--share-encoder", "--drafter-context", "features"),
        *("--decoder-layers", "2", "--optimizer", "adam", "--lr", "1e-4", "--max-update", str(_UPDATES)),
        *("--train-subset", "test", "--valid-subset", "test", "--disable-validation"),
        *("--batch-size", str(max(1, env.sentences // 4)), "--required-batch-size-multiple", "1", "--num-workers", "0"),
        *("--log-format", "json", "--log-interval", "1", "--no-save", "--save-dir", str(data / "checkpoints")),
        # By default one for each GPU.
        *("--distributed-world-size", "1"),
        *([] if env.is_gpu else ["--cpu"]),
        *more,
    ]

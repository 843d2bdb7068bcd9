"""Check of training a drafter: throughput by precision."""

import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.benchmarks.gpu_check.random_models import SHAPES, prepare
from fairseq_plugins.benchmarks.gpu_check.report import Outcome, passed_if

_UPDATES = 8


def throughput(env: Environment) -> Outcome:
    """Time updates in fp16 and bf16; losses must be finite."""
    rows, good = [["precision", "target tokens/s", "loss"]], True
    # fairseq trains in half precision on a GPU only.
    for kind in ("fp16", "bf16") if env.is_gpu else ("fp32",):
        trainer, sample = _trainer(env, *([] if kind == "fp32" else [f"--{kind}"]))
        with metrics.aggregate() as logged:
            _seconds(env, trainer, sample)  # warms up
            seconds = _seconds(env, trainer, sample)
        loss = logged["loss"].avg
        good &= math.isfinite(loss)
        rows.append([kind, f"{_UPDATES * sample['ntokens'] / seconds:.0f}", f"{loss:.2f}"])
    return passed_if(good, "see the table" if good else "the loss is not finite", rows=rows)


def _seconds(env: Environment, trainer: Trainer, sample: dict[str, Any]) -> float:
    """Train for some updates, and return the time that they took."""
    start = time.perf_counter()
    for _ in range(_UPDATES):
        trainer.train_step([sample])
    if env.is_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


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


def _arguments(env: Environment, *more: str) -> list[str]:
    """Return fairseq-train's arguments for a drafter that reads a random verifier's states and learns to copy."""
    sources, verifier, _ = prepare(env)
    data = env.folder / "training"
    if not data.exists():
        shutil.copytree(sources, data)
        for suffix in ("bin", "idx"):
            shutil.copy(data / f"test.src-tgt.src.{suffix}", data / f"test.src-tgt.tgt.{suffix}")
    _, architecture, sizes = SHAPES[env.shape]
    return [
        *(str(data), "--source-lang", "src", "--target-lang", "tgt", "--share-all-embeddings", *sizes),
        *("--user-dir", str(Path(__file__).parents[2]), "--task", "spec_dec", "--arch", architecture),
        *("--criterion", "glat_loss", "--verifier-path", verifier, "--share-encoder", "--drafter-context", "features"),
        *("--decoder-layers", "2", "--optimizer", "adam", "--lr", "1e-4", "--max-update", str(_UPDATES)),
        *("--train-subset", "test", "--valid-subset", "test", "--disable-validation"),
        *("--num-workers", "0", "--no-save", "--save-dir", str(data / "checkpoints")),
        # By default one for each GPU.
        *("--distributed-world-size", "1"),
        *([] if env.is_gpu else ["--cpu"]),
        *more,
    ]

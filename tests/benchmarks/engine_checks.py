"""Checks of Triton's engine of `make gpu-check`, in Triton's interpreter, on the smallest random models."""

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

from fairseq_plugins.benchmarks.contenders import CONTENDERS
from fairseq_plugins.benchmarks.gpu_check import engine, random_models
from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.benchmarks.gpu_check.report import FAILED, PASSED, Outcome
from fairseq_plugins.benchmarks.gpu_check.worker import Check
from tests.support import both_sides

_SMALLEST = both_sides(layers=1, embed_dim=16, ffn_embed_dim=16, attention_heads=1)
_SIZES = [f"--{name.replace('_', '-')}={value}" for name, value in _SMALLEST.items()]
_VARIANT = engine.VARIANTS["8 iterations ahead"]


def prepare() -> None:
    """Make models small."""
    mock.patch.dict(random_models.SHAPES, tiny=("transformer", "block_nat_tiny", _SIZES)).start()
    mock.patch.object(random_models, "BLOCK_SIZE", 2).start()


def _one_after_the_other(env: Environment, checks: Sequence[Check]) -> list[Outcome]:
    return [check(env) for check in checks]


def check_engine() -> None:
    """All code of these checks but the processes, each with the decoders that it needs: others have the same code."""
    mock.patch.object(engine, "_in_processes", _one_after_the_other).start()
    first_run = partial(engine.first_run, precision="bf16", name="greedy", variant=_VARIANT)
    with tempfile.TemporaryDirectory() as folder:
        env = Environment("cpu", Path(folder), "tiny", 2, (2, 2), 20, 2, Path(folder, "none"), sizes=(2,))
        assert first_run(env).state == PASSED
        with mock.patch.object(engine, "NAMES", ("fast-beam",)):
            outcome = engine.ids(env)
            assert outcome.state == PASSED and len(outcome.rows) == 6, outcome
            # Where outputs differ, the row has those without each suspect.
            with mock.patch.object(engine, "same_ids", lambda ours, theirs: 1):
                outcome = engine.ids(env)
            assert outcome.state == FAILED, outcome
            for title in engine.SUSPECTS:
                assert title in outcome.rows[1][3], outcome
        few = [contender for contender in CONTENDERS if contender.name in ("greedy", "iad", "fast-beam")]
        with mock.patch.object(engine, "CONTENDERS", few):
            outcome = engine.all_decoders(env)
            assert outcome.state == PASSED and len(outcome.rows) == 4, outcome
        with mock.patch.object(engine, "NAMES", ("greedy",)):
            for check in (engine.speed, engine.profile):
                outcome = check(env)
                assert outcome.state == PASSED and len(outcome.rows) > 1, outcome

"""Training a drafter in two processes, and resuming after an interruption."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import TINY, Corpus
from tests.support import finish_command, run_in_process, start_command

SEED = 3
UPDATES = 6


def options(corpus: Corpus, folder: Path, *more: str) -> str:
    """Return options of a short training of a drafter that logs each update."""
    return (
        f"{corpus.data} --task spec_dec --arch block_nat {TINY} --criterion glat_loss --seed {SEED} --cpu "
        f"--optimizer adam --lr 0.01 --max-tokens 200 --num-workers 0 --block-size 4 --blocks-per-sentence 2 "
        f"--glancing-start 0.5 --glancing-end 0.1 --glancing-updates {UPDATES} --required-batch-size-multiple 1 "
        f"--save-dir {folder} --no-epoch-checkpoints --disable-validation --log-format json --log-interval 1 "
    ) + " ".join(more)


def logged(log: str, name: str) -> dict[int, float]:
    """Return the values of a metric at each update, from a log of fairseq-train."""
    records = [json.loads(line) for line in re.findall(r"\| train_inner \| (\{.*\})", log)]
    records = records or [json.loads(line) for line in re.findall(r"^(\{.*num_updates.*\})$", log, re.MULTILINE)]
    return {int(record["num_updates"]): float(record[name]) for record in records if name in record}


def two_processes(command: str, programs: Path) -> list[Any]:
    """Start a training in two processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    together = (
        "--distributed-world-size 2 --distributed-no-spawn --distributed-backend gloo --ddp-backend legacy_ddp "
        f"--distributed-init-method tcp://localhost:{port}"
    )
    both = [f"{command} {together} --distributed-rank {rank}" for rank in range(2)]
    return [start_command("train", one, programs=programs) for one in both]


def test_two_processes_equal_one_with_twice_the_update_freq(corpus: Corpus, programs: Path, tmp_path: Path) -> None:
    processes = two_processes(options(corpus, tmp_path / "two", f"--max-update {UPDATES}"), programs)
    one = run_in_process("train", options(corpus, tmp_path / "one", f"--update-freq 2 --max-update {UPDATES}"))
    two = [finish_command(process) for process in processes]
    assert [process.returncode for process in two] == [0, 0], two[0].stderr + two[1].stderr
    expected, losses = logged(one.stdout + one.stderr, "loss"), logged(two[0].stdout + two[0].stderr, "loss")
    assert list(expected) == list(range(1, UPDATES + 1))
    assert losses == pytest.approx(expected, abs=2e-3)  # logged with three decimals
    weights = [torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("one", "two")]
    # Each process counts the targets of its own batches.
    counts = [model.pop("decoder.target_counts").sum() for model in weights]
    assert 0 < counts[1] < counts[0]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-4)


def test_counts_of_a_validation_are_those_of_all_processes(corpus: Corpus, programs: Path, tmp_path: Path) -> None:
    verifier = f"--drafter-context features --verifier-path {corpus.verifier} --batch-size-valid 18 --lr 0"
    command = options(corpus, tmp_path / "two", "--max-update 2", verifier).replace("--disable-validation", "")
    processes = two_processes(command, programs)
    run_in_process("train", command.replace(str(tmp_path / "two"), str(tmp_path / "one")))
    two = [finish_command(process) for process in processes]
    assert [process.returncode for process in two] == [0, 0], two[0].stderr + two[1].stderr
    names = ("one", "two")
    counts = [torch.load(tmp_path / name / "checkpoint_last.pt")["model"]["decoder.survival_counts"] for name in names]
    assert counts[0].sum() > 0 and torch.equal(*counts)


def test_a_training_that_was_stopped_equals_one_that_was_not(corpus: Corpus, tmp_path: Path) -> None:
    """It stops within its first epoch, at its end, and within the second one."""
    verifier = f"--drafter-context features --verifier-path {corpus.verifier} --max-tokens 900 --seed 4"

    def train(folder: str, updates: int) -> dict[int, float]:
        command = options(corpus, tmp_path / folder, f"--max-update {updates}", verifier)
        log = run_in_process("train", command.replace("--disable-validation", ""))
        return logged(log.stdout + log.stderr, "glancing_ratio")

    whole = train("whole", UPDATES)
    expected = {update: 0.5 - 0.4 * (update - 1) / UPDATES for update in range(1, UPDATES + 1)}
    assert whole == pytest.approx(expected, abs=5e-4)  # logged with three decimals
    assert {**train("parts", 2), **train("parts", 3), **train("parts", 4), **train("parts", UPDATES)} == whole
    assert torch.load(tmp_path / "parts" / "checkpoint_last.pt")["extra_state"]["train_iterator"]["epoch"] == 2
    weights = [torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("whole", "parts")]
    for name, value in weights[0].items():
        assert torch.equal(weights[1][name], value), name

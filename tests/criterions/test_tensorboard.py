"""TensorBoard: contents of the event files of a real training."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import TINY, TRAINING, Corpus
from tests.support import finish_command, run_in_process, start_command

# All tests share one training.
pytestmark = pytest.mark.xdist_group("tensorboard")


def read(folder: Path) -> EventAccumulator:
    """Read the events of a run."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0})
    events.Reload()
    return events


def scalars(events: EventAccumulator, name: str) -> dict[int, float]:
    """Return step -> value."""
    return {event.step: event.value for event in events.Scalars(name)}


def train(corpus: Corpus, folder: Path, *more: str) -> str:
    """Train a drafter for about two epochs; return the log."""
    run = run_in_process(
        "train",
        f"{corpus.data} --task spec_dec --arch block_nat {TINY} {TRAINING} --criterion glat_loss --max-update 24 "
        f"--block-size 6 --share-encoder --verifier-path {corpus.verifier} --validate-interval-updates 12 "
        f"--save-dir {folder / 'save'} --no-save --log-interval 4",
        *more,
    )
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def trained(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of events of a drafter's training, and its log."""
    folder = tmp_path_factory.mktemp("training")
    return folder / "events", train(corpus, folder, "--tensorboard-logdir", str(folder / "events"))


def test_training_and_validation_are_logged(trained: tuple[Path, str]) -> None:
    events = read(trained[0] / "train_inner")
    ratios = list(scalars(events, "glancing_ratio").values())
    assert len(ratios) == 6 and sorted(ratios, reverse=True) == ratios
    assert 0.3 <= ratios[-1] < ratios[0] <= 0.5
    assert all(0 <= value <= 100 for value in scalars(events, "glancing_accuracy").values())
    events = read(trained[0] / "valid")
    names = {name for name in events.Tags()["scalars"] if name.startswith("accuracy_at_")}
    assert names == {"accuracy_at_1", "accuracy_at_2", "accuracy_at_4", "accuracy_at_6"}
    for name in names:
        values = scalars(events, name)
        assert list(values) == sorted(scalars(events, "accuracy"))
        assert all(0 <= value <= 100 for value in values.values())
    values = scalars(events, "tokens_per_iteration")
    assert len(values) >= 2 and all(1 <= value <= 7 for value in values.values())
    assert f"tokens_per_iteration {round(list(values.values())[-1], 3):g} " in trained[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file system")
def test_a_full_disk_is_one_line(corpus: Corpus, programs: Path, tmp_path: Path) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", tmp_path], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        options = f"{TRAINING} --no-save --max-update 99 --log-interval 1 --disable-validation"
        options += f" --task spec_dec --arch transformer {TINY} --criterion cross_entropy"
        options += f" --tensorboard-logdir {tmp_path}/events"
        run = finish_command(start_command("train", f"{corpus.data} {options}", programs=programs))
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
    messages = [line for line in run.stderr.splitlines() if re.match("error|Traceback|Exception", line)]
    full = "cannot be written (No space left on device); free disk space, or give another path"
    assert (run.returncode, messages) == (1, [f"error: --tensorboard-logdir {tmp_path}/events: {full}"])

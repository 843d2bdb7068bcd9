"""`make demo`, small: both tables, the page, and a drafter."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support import REPOSITORY
from tests.test_recipes import run

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

SMALL = {
    "SENTENCES": "6", "TRAIN_PAIRS": "24", "TEST_PAIRS": "4", "UPDATES": "3", "TIMING_SENTENCES": "1", "REPEATS": "1",
    "TIMING_SECONDS": "0", "LOG_INTERVAL": "1",
}  # fmt: skip


@pytest.mark.slow
def test_quick_demo(tmp_path: Path, programs: Path) -> None:
    for part in ("train_scripts", "fairseq_plugins", "examples"):
        (tmp_path / part).symlink_to(REPOSITORY / part)
    (tmp_path / "checkpoints").mkdir()
    for model in ("ua-gec", "cldr.en-de"):
        (tmp_path / "checkpoints" / model).symlink_to(REPOSITORY / "checkpoints" / model)
    done = run(tmp_path, "quick_demo", programs=programs, **SMALL)
    assert done.returncode == 0, done.stdout + done.stderr
    whole = {"greedy": "6 of 6", "gad": "6 of 6", "gad fixed width": "6 of 6", "iad": "6 of 6"}
    for decoder, same in (*whole.items(), ("gad", "4 of 4")):
        row = rf"^{decoder} +[\d.]+ +{same} +\d+\.\d\d +\d+\.\d +[\d.-]+ +[\d.-]+$"
        assert re.search(row, done.stdout, re.MULTILINE), done.stdout
    assert "epoch 1" in done.stdout and "Finished in" in done.stdout
    assert (tmp_path / "results/demo/trace.html").stat().st_size > 10_000
    assert (tmp_path / "checkpoints/demo/training/checkpoint_last.pt").is_file()
    refused = run(tmp_path, "quick_demo", TEACHER="none")
    assert refused.stderr.startswith("error: checkpoints/none/verifier.pt: ")

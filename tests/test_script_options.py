"""Options of scripts: unknown ones are refused, and --dry-run works without data."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support import REPOSITORY

SCRIPTS = sorted((REPOSITORY / "train_scripts").glob("*.sh"))
NEED_DATA = ("cnn_dm.sh", "gec.sh", "simplification.sh", "ua_gec.sh")
# The first one passes options on, the others are sourced.
NOT_RUN = ("bench.sh", "recipe.sh", "downloads.sh", "small_models.sh", "wmt.sh")


def run(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a copy of the repository without results."""
    (folder / "train_scripts").symlink_to(REPOSITORY / "train_scripts")
    environment = {key: value for key, value in os.environ.items() if key not in ("DATA", "NAME", "BART")}
    return subprocess.run(
        ["bash", f"train_scripts/{name}", *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("script", [script.name for script in SCRIPTS if script.name not in NOT_RUN])
def test_unknown_options_are_refused(script: str, tmp_path: Path) -> None:
    result = run(script, tmp_path, "--no-such-option")
    assert result.returncode != 0 and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("error: --no-such-option: no such option")
    assert [file.name for file in tmp_path.iterdir()] == ["train_scripts"]


@pytest.mark.parametrize("script", NEED_DATA)
def test_recipes_can_be_looked_at_without_data(script: str, tmp_path: Path) -> None:
    assert run(script, tmp_path).stderr.startswith("error: DATA is missing; give a folder with train.")
    (tmp_path / "train_scripts").unlink()
    result = run(script, tmp_path, "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "fairseq-train" in result.stdout and "FOLDER/train." in result.stdout

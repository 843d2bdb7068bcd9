"""Released model folders have checksums of all their files."""

import subprocess

from fairseq_plugins.shared.files import SUMS
from tests.support import REPOSITORY


def test_released_folders_list_all_their_files() -> None:
    released = [path.parent for path in (REPOSITORY / "checkpoints").glob(f"*/{SUMS}")]
    assert {folder.name for folder in released} >= {"cldr.en-de", "multi30k.en-de", "multi30k-base.en-de", "ua-gec"}
    for folder in released:
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict", SUMS], cwd=folder, check=True)
        listed = {line.split()[1] for line in (folder / SUMS).read_text().splitlines()}
        assert listed == {file.name for file in folder.iterdir()} - {SUMS, "README.md"}

"""Model folders have checksums, and files that differ from them are refused by name."""

import shutil
import subprocess
from pathlib import Path

import pytest

import fairseq_plugins
from fairseq_plugins.benchmarks import benchmark
from fairseq_plugins.checkpoint.averaging import average, write_checkpoint
from fairseq_plugins.conversion import cli
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.checksums import SUMS, write_sums
from tests.support import REPOSITORY

RELEASED = sorted(path.parent for path in (REPOSITORY / "checkpoints").glob(f"*/{SUMS}"))
CLDR = REPOSITORY / "checkpoints" / "cldr.en-de"


def flip(file: Path, place: int) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CLDR, tmp_path / "model.en-de"))


def test_released_folders_list_all_their_files() -> None:
    assert {folder.name for folder in RELEASED} >= {"cldr.en-de", "multi30k.en-de", "multi30k-base.en-de", "ua-gec"}
    for folder in RELEASED:
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict", SUMS], cwd=folder, check=True)
        listed = {line.split()[1] for line in (folder / SUMS).read_text().splitlines()}
        assert listed == {file.name for file in folder.iterdir()} - {SUMS, "README.md"}


@pytest.mark.parametrize("name", ["verifier.pt", "drafter.pt", "dict.en.txt", "dict.de.txt", "subwords.model"])
def test_a_flipped_bit_is_refused(folder: Path, name: str) -> None:
    """Most of them load without a complaint, and change the output."""
    flip(folder / name, (folder / name).stat().st_size // 2)
    remedy = f"is damaged or was changed .*; copy it again, or remove its line from {folder}/{SUMS}"
    with pytest.raises(ConfigurationError, match=f"^{folder}/{name}: {remedy}"):
        fairseq_plugins.load(folder, device="cpu")
    lines = (folder / SUMS).read_text().splitlines(keepends=True)
    (folder / SUMS).write_text("".join(line for line in lines if name not in line))
    if name.startswith("dict"):  # the bit changed a word or its count
        assert fairseq_plugins.load(folder, device="cpu").translate("Monday")


def test_commands_check_them(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder / "verifier.pt", 1_000_000)
    assert benchmark.main([str(folder), "--path", str(folder / "verifier.pt"), "--cpu"]) == 2
    assert cli.main([str(folder), str(tmp_path / "int8"), "--int8"]) == 2
    for error in capsys.readouterr().err.splitlines():
        assert f"error: {folder}/verifier.pt: is damaged or was changed" in error
    assert not (tmp_path / "int8").exists()


def test_files_that_loading_does_not_read_are_not_checked(folder: Path) -> None:
    (folder / "blockwise.pt").write_text("of another decoder")
    write_sums(folder)
    (folder / "blockwise.pt").write_text("changed")
    (folder / "README.md").write_text("changed")
    (folder / "drafter.pt").unlink()
    assert fairseq_plugins.load(folder, device="cpu").decoder == "greedy"


def test_a_checkpoint_that_we_replace_loses_its_checksum(folder: Path) -> None:
    verifier = folder / "verifier.pt"
    write_checkpoint(verifier, average([verifier]), "--output")
    assert fairseq_plugins.load(folder, device="cpu").translate("Monday")
    assert len((folder / SUMS).read_text().splitlines()) == 4
    write_sums(folder)
    assert len((folder / SUMS).read_text().splitlines()) == 5


@pytest.mark.parametrize("content", [b"0123  verifier.pt\n", b"\xff\n", b"<html>\n", b"", 64 * b"0" + b"  ../x\n"])
def test_lists_without_checksums(folder: Path, content: bytes) -> None:
    (folder / SUMS).write_bytes(content)
    if content:
        with pytest.raises(ConfigurationError, match=f"{SUMS}: .*; copy .* again, or remove it"):
            fairseq_plugins.load(folder, device="cpu")
    else:
        fairseq_plugins.load(folder, device="cpu")

"""Checksums of a model folder's files, in a SHA256SUMS as `sha256sum` writes it."""

import re
from collections.abc import Iterable
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import sha256_of, write_atomically

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^/\0]+)")
_UNLISTED = (SUMS, "README.md")  # the model card is for people, who may edit it


def write_sums(folder: Path) -> None:
    """Write the checksums of all files in a model folder; `sha256sum --check SHA256SUMS` in it reads them."""
    files = (file for file in sorted(folder.iterdir()) if file.is_file() and file.name not in _UNLISTED)
    _write(folder, {file.name: sha256_of(file) for file in files})


def check_sums(checkpoints: Iterable[Path], data: Path) -> None:
    """Check the files that loading a model reads against the checksums in their folders, where there are any.

    These are the checkpoints of verifier and drafter, and all listed files of the folder `data` except checkpoints.
    Raises ConfigurationError for a file with other content.
    """
    files = [*checkpoints]
    sums = {folder: _read(folder) for folder in {data, *(file.parent for file in files)}}
    files += (data / name for name in sums[data] if not name.endswith(".pt"))
    for file in dict.fromkeys(files):
        expected = sums[file.parent].get(file.name)
        if expected is not None and file.is_file() and sha256_of(file) != expected:
            problem = f"is damaged or was changed (its checksum is not that in {SUMS})"
            remedy = f"copy it again, or remove its line from {file.parent / SUMS} if the change is yours"
            raise ConfigurationError(None, file, problem, remedy)


def forget_sum(file: Path) -> None:
    """Remove the checksum of a file that is about to be replaced."""
    sums = _read(file.parent)
    if sums.pop(file.name, None) is not None:
        _write(file.parent, sums)


def _read(folder: Path) -> dict[str, str]:
    """Return file name -> checksum; empty for a folder without checksums."""
    file = folder / SUMS
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(None, file, f"cannot be read ({error})", "copy it again, or remove it") from error
    found = [_LINE.fullmatch(line) for line in lines]
    if None in found:
        problem = f"line {found.index(None) + 1} has no checksum of sha256sum"
        raise ConfigurationError(None, file, problem, "copy the file again, or remove it")
    return {match[2]: match[1] for match in found if match is not None}


def _write(folder: Path, sums: dict[str, str]) -> None:
    write_atomically(folder / SUMS, "".join(f"{value}  {name}\n" for name, value in sums.items()), "checksums")

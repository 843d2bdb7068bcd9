"""Write results so that a file is there whole or not at all; hash what they depend on."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from fairseq_plugins.errors import ConfigurationError


def write_atomically(path: Path, content: str | bytes, option: str) -> None:
    """Write a file under another name and rename it; folders are made as needed.

    Args:
        path: where.
        content: text, written as UTF-8, or bytes.
        option: the option that named the file or its folder, for errors.

    Raises:
        ConfigurationError: when it cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(partial, path)
    except OSError as error:
        raise ConfigurationError(
            f"{option} {path}: cannot be written ({error.strerror}); give a path in a writable folder"
        ) from error


def sha256(files: Sequence[Path]) -> str:
    """One hash of the contents of files."""
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            total.update(hashlib.file_digest(opened, "sha256").digest())
    return total.hexdigest()

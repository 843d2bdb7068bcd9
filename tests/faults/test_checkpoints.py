"""Truncated or corrupt checkpoints give one line and an exit status, and no output."""

import os
import random
from pathlib import Path

import pytest

from fairseq_plugins.api.files import find_files
from fairseq_plugins.checkpoint import averaging
from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.errors import ConfigurationError, on_command_line
from tests.conftest import Corpus
from tests.errors import error_about


def sizes(whole: int, count: int) -> list[int]:
    """Return sizes to truncate a file to: empty, all but the last byte, and between."""
    return [0, 1, whole - 1, *random.Random(1).sample(range(whole), count - 3)]


def test_truncated_at_any_byte(corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = corpus.drafter.read_bytes()
    file, output = tmp_path / "truncated.pt", tmp_path / "mean.pt"
    for size in sizes(len(content), 20):
        file.write_bytes(content[:size])
        with pytest.raises(ConfigurationError) as raised:
            read_checkpoint(str(file), "--drafter-path")
        message = raised.value.spelled(on_command_line)
        assert message.startswith(f"--drafter-path {file}: truncated or not a fairseq checkpoint"), (size, message)
        assert "copy it again" in message and "\n" not in message
        assert averaging.main([str(corpus.drafter), str(file), "--output", str(output)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"spec-dec-average: error: checkpoint {file}: truncated or not a fairseq checkpoint")
        assert not output.exists() and file.stat().st_size == size


def test_pipes_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    """Reading one, as a checkpoint or a dictionary, would wait for its writer."""
    os.mkfifo(tmp_path / "model.pt")
    with error_about("--drafter-path", "is not a regular file"):
        read_checkpoint(str(tmp_path / "model.pt"), "--drafter-path")
    os.mkfifo(tmp_path / "dict.en.txt")
    with error_about(tmp_path / "dict.en.txt", "is not a file"):
        find_files(None, corpus.verifier, None, tmp_path, (None, None), None)

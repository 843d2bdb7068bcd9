"""Shards: what an interruption leaves is resumed, and files of others are refused."""

from pathlib import Path

import pytest

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.shards import ShardWriter, read_lines, read_origin

ORIGIN = {"subset": "valid", "name": "ü", "lenpen": float("inf")}
LINES = ["", "1\tä\u2028b", "\r c"]


def test_torn_at_any_byte(tmp_path: Path) -> None:
    """A kill leaves any part of what was to be written; the shard is resumed after its last whole line."""
    file = tmp_path / "0-of-1"
    with ShardWriter(file, ORIGIN) as shard:
        shard.write("".join(f"{line}\n" for line in LINES))
        shard.finish()
    whole = file.read_bytes()
    assert read_origin(file) == {**ORIGIN, "lenpen": None} and [*read_lines(file)] == LINES
    file.unlink()
    for size in range(len(whole) + 1):
        shard.file.write_bytes(whole[:size])
        with ShardWriter(file, ORIGIN) as shard:
            done = [*read_lines(shard.file)]
            assert done == LINES[: max(0, whole[:size].count(b"\n") - 1)]
            shard.write("".join(f"{line}\n" for line in LINES[len(done) :]))
            shard.finish()
        assert file.read_bytes() == whole and not shard.file.exists()
        file.unlink()


def test_a_shard_without_lines_leaves_nothing(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "0-of-1", ORIGIN):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["mine", '{"another": "origin"}\n', "[1]\n1\t2\tmine\n", "\n"])
def test_shards_of_others_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "0-of-1.partial").write_text(content)
    with pytest.raises(ConfigurationError, match="was not written by this command|was made from an"):
        ShardWriter(tmp_path / "0-of-1", ORIGIN)
    assert (tmp_path / "0-of-1.partial").read_text() == content

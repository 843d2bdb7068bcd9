"""Files and folders that are not ours stay as they are, whatever they are called."""

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from fairseq_plugins.benchmarks.setting import conversions
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import Destination
from fairseq_plugins.translation.output_shards import OutputShards, forget_run


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return what a folder has: name -> content, None for folders."""
    return {str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None for file in folder.rglob("*")}


def shards_of(folder: Path, run_id: str = "", text: str = "a hash") -> OutputShards:
    return OutputShards(Destination(folder / "out", False), {"text": text}, 1, run_id)


def translate(folder: Path, run_id: str = "") -> None:
    """Write an output of one shard."""
    with shards_of(folder, run_id) as shards:
        _, shard = shards.begin(0)
        with shard:
            shard.write("ours\n")
            shard.finish()
        assert shards.join()


@pytest.mark.parametrize("name", ["notes.txt", "1-of-many", "0-of-1", "0-of-1.partial"])
def test_a_folder_beside_the_output_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts" / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ConfigurationError, match=f"{name}.* (rename it,|was not written by this command)"):
        translate(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("run_id", ["", "array 7"])
def test_nothing_stays_beside_the_output(run_id: str, tmp_path: Path) -> None:
    translate(tmp_path, run_id)
    if run_id:
        assert shards_of(tmp_path, run_id).is_finished(0)
        (tmp_path / "out").rename(tmp_path / "moved")
        assert not shards_of(tmp_path, run_id).is_finished(0)
        (tmp_path / "moved").unlink()
        translate(tmp_path, run_id)
        assert not shards_of(tmp_path, run_id, "another hash").is_finished(0)
        translate(tmp_path, "array 8")
        forget_run(tmp_path / "out")
    assert contents(tmp_path) == {"out": b"ours\n"}


def test_files_that_come_later_stay(tmp_path: Path) -> None:
    with shards_of(tmp_path) as shards:
        shards.begin(0)[1].write("ours\n")
        (tmp_path / "out.parts" / "notes").write_text("mine")
    assert contents(tmp_path / "out.parts").keys() == {"0-of-1.partial", "notes"}


@pytest.mark.parametrize("name", ["0-of-1.partial", "joined", "finished", "0-of-1"])
def test_links_in_our_folder_are_not_followed(name: str, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine\nno newline")
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts" / name).symlink_to(tmp_path / "precious")
    with suppress(ConfigurationError):
        translate(tmp_path, "array 7")
    assert (tmp_path / "precious").read_text() == "mine\nno newline"


def test_benchmarks_use_no_folder_that_others_can_make(tmp_path: Path) -> None:
    assert not conversions(None).is_relative_to(tempfile.gettempdir())
    assert conversions(str(tmp_path)) == tmp_path / "ctranslate2"

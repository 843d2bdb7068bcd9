"""Files and folders that are not ours stay as they are, whatever they are called."""

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_plugins.benchmarks.setting import conversions
from fairseq_plugins.distillation.shards import ShardWriter
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import Destination, destination, write_atomically
from fairseq_plugins.shared.partial_file import PartialFile
from fairseq_plugins.translation.cli import _translate_stream
from fairseq_plugins.translation.output_shards import OutputShards, remove_unused
from tests.support import REPOSITORY


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return what a folder has: name -> content, None for folders."""
    return {str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None for file in folder.rglob("*")}


def write_lines(path: Path) -> None:
    file = PartialFile(str(path), "--stats-file")
    file.write("ours\n")
    file.close()


def translate_stream(path: Path) -> None:
    """Write an output as spec-dec-translate does for input that is no regular file."""
    args = SimpleNamespace(input=__file__, buffer_size=10_000)
    translator: Any = SimpleNamespace(args=args, translate=lambda lines, before: ["ours\n"], summary=lambda: "")
    _translate_stream(translator, destination(path, "--output"))


WRITERS = [lambda path: write_atomically(path, "ours\n", "--output"), write_lines, translate_stream]


def shards_of(folder: Path, run_id: str = "") -> OutputShards:
    return OutputShards(Destination(folder / "out", False), {"text": "a hash"}, 1, run_id)


def translate(folder: Path, run_id: str = "") -> OutputShards:
    """Write an output of one shard."""
    shards = shards_of(folder, run_id)
    shard = shards.begin(0)
    shard.write(["ours\n"])
    shard.finish()
    assert shards.join()
    return shards


@pytest.mark.parametrize("files", [{}, {"0-of-1": "mine"}, {"0-of-1": "mine", "finished": ""}, {"origin.json": "{}"}])
def test_a_folder_beside_the_output_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "out.parts").mkdir()
    for name, text in files.items():
        (tmp_path / "out.parts" / name).write_text(text)
    before = contents(tmp_path)
    with pytest.raises(ConfigurationError, match=r"out.parts is there, and is not an unfinished translation; rename"):
        shards_of(tmp_path)
    remove_unused(tmp_path / "out")
    assert contents(tmp_path) == before


def test_a_link_to_an_unfinished_translation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    shards_of(tmp_path / "other").begin(0)
    (tmp_path / "out.parts").symlink_to(tmp_path / "other" / "out.parts")
    with pytest.raises(ConfigurationError, match="is not an unfinished translation"):
        shards_of(tmp_path)


@pytest.mark.parametrize("run_id", ["", "array 7"])
def test_only_our_files_are_removed(run_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards_of(tmp_path)
    mine = {"notes.txt": "mine", "1-of-many": "mine", "folder/0-of-1": "mine"}
    for name, text in mine.items():
        (tmp_path / "out.parts" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "out.parts" / name).write_text(text)
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out.parts" / "5-of-9").symlink_to(tmp_path / "precious")
    translate(tmp_path, run_id)
    if run_id:
        translate(tmp_path, "array 8")  # removes the files of the finished run
        remove_unused(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "ours\n" and (tmp_path / "precious").read_text() == "mine"
    left = contents(tmp_path / "out.parts")
    assert left == {"folder": None, "5-of-9": b"mine", **{name: text.encode() for name, text in mine.items()}}
    assert "out.parts stays, with files of others" in capsys.readouterr().err


def test_without_other_files_nothing_stays(tmp_path: Path) -> None:
    translate(tmp_path)
    assert contents(tmp_path) == {"out": b"ours\n"}


@pytest.mark.parametrize("name", ["0-of-1.partial", "joined", "finished", "lock", "0-of-1"])
def test_links_in_our_folder_are_not_followed(name: str, tmp_path: Path) -> None:
    shards_of(tmp_path)
    (tmp_path / "precious").write_text("mine\nno newline")
    (tmp_path / "out.parts" / name).unlink(missing_ok=True)
    (tmp_path / "out.parts" / name).symlink_to(tmp_path / "precious")
    with pytest.raises((ConfigurationError, AssertionError)):
        translate(tmp_path)
    assert (tmp_path / "precious").read_text() == "mine\nno newline"


@pytest.mark.parametrize("content", ["mine", '{"another": "origin"}\n', "[1]\n1\t2\tmine\n", "\n"])
def test_shards_of_others_are_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "train.0-of-1.tsv.partial").write_text(content)
    with pytest.raises(ConfigurationError, match="was not written by spec-dec-distill|was made from other"):
        ShardWriter(tmp_path / "train.0-of-1.tsv", {"subset": "train"})
    assert (tmp_path / "train.0-of-1.tsv.partial").read_text() == content


def test_links_called_partial_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        ShardWriter(tmp_path / "out", {"subset": "train"})
    for write in WRITERS:
        write(tmp_path / "out")
        assert (tmp_path / "out").read_text() == "ours\n"
        assert (tmp_path / "out.partial").is_symlink() and (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("write", WRITERS)
def test_files_called_partial_are_kept(write: Callable[[Path], None], tmp_path: Path) -> None:
    mine = ("out.partial", "out.2.partial")
    for name in mine:
        (tmp_path / name).write_text("mine")
    write(tmp_path / "out")
    assert contents(tmp_path) == {"out": b"ours\n", **dict.fromkeys(mine, b"mine")}


def test_benchmarks_use_no_folder_that_others_can_make(tmp_path: Path) -> None:
    assert not conversions(None).is_relative_to(tempfile.gettempdir())
    assert conversions(str(tmp_path)) == tmp_path / "ctranslate2"


def test_nothing_is_removed_by_its_name_only() -> None:
    """Whole folders are removed by `tempfile`, which has made them."""
    for file in [*REPOSITORY.glob("fairseq_plugins/**/*.py"), *REPOSITORY.glob("train_scripts/**/*.py")]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"rmtree|gettempdir|mktemp\(", text), file
        assert "rm -rf" not in text.replace('["rm", "-rf"', "") or file.name == "stages.py", file
    assert os.O_NOFOLLOW

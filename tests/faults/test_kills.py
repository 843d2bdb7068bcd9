"""Kill distillation with SIGKILL at every stage: the same command resumes, and loses or repeats nothing.

The killed process is a fork of this one, to avoid the imports.
"""

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairseq_plugins.distillation import cli, merge, shards
from fairseq_plugins.distillation.shards import ShardWriter, TeacherSentence, read_shard, shard_path
from fairseq_plugins.errors import ConfigurationError
from tests.conftest import Corpus

pytestmark = pytest.mark.xdist_group("distillation")


def killed(stage: int, hooks: list[tuple[Any, str]], run: Callable[[], object]) -> bool:
    """Run a function in a fork that is killed before, or halfway through, a call of one of the hooked functions.

    Args:
        stage: index of the call, from 0.
        hooks: objects, and names of their functions.
        run: function to run.

    Returns:
        whether the fork was killed; else it ended before that call.
    """
    child = os.fork()
    if child == 0:
        left = iter(range(stage + 1))

        def count(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                if next(left, None) == stage:
                    _write_half(arguments)
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)

            return call

        for holder, name in hooks:
            setattr(holder, name, count(getattr(holder, name)))
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            run()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def _write_half(arguments: tuple[Any, ...]) -> None:
    """Leave a shard as a kill in the middle of a write does."""
    if len(arguments) > 1 and isinstance(arguments[0], ShardWriter):
        os.write(arguments[0]._file.fileno(), arguments[1][: len(arguments[1]) // 2])


def every_stage(hooks: list[tuple[Any, str]], run: Callable[[], object], begin: Callable[[], object]) -> Iterator[int]:
    """Yield each stage at which a new run was killed, until a run ends by itself."""
    for stage in range(100):
        begin()
        if not killed(stage, hooks, run):
            return
        yield stage
    raise AssertionError("it never ends")


def decode(corpus: Corpus, output: Path) -> int:
    command = f"decode {corpus.data} --path {corpus.verifier} --output {output} --cpu --decoder greedy"
    return cli.main([*command.split(), "--gen-subset", "valid", "--batch-size", "15"])


def merged(corpus: Corpus, folder: Path, destination: Path) -> int:
    command = f"merge {corpus.data} --shards {folder} --destdir {destination} --gen-subset valid"
    return cli.main(command.split())


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files but the log of preprocessing, which names folders."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def sentences_in(folder: Path) -> list[TeacherSentence]:
    """Return the sentences of the finished shard, by number."""
    return sorted(read_shard(shard_path(folder, "valid", 0, 1))[1], key=lambda sentence: sentence.number)


@pytest.fixture(scope="module")
def whole(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    assert decode(corpus, folder) == 0
    return folder


def test_decoding(corpus: Corpus, whole: Path, tmp_path: Path) -> None:
    hooks = [(ShardWriter, "_write"), (ShardWriter, "finish"), (shards.os, "fsync"), (shards.os, "replace")]
    folder = tmp_path / "shards"
    stages = 0
    for _ in every_stage(hooks, lambda: decode(corpus, folder), lambda: shutil.rmtree(folder, ignore_errors=True)):
        assert decode(corpus, folder) == 0
        # The same translations, each once; an interruption only changes their order.
        assert sentences_in(folder) == sentences_in(whole)
        assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in whole.iterdir())
        stages += 1
    # Calls: header, overlong sentences, batches, footer, fsync, rename.
    assert stages >= 6


def test_merging(corpus: Corpus, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected, destination = tmp_path / "expected", tmp_path / "merged"
    assert merged(corpus, whole, expected) == 0
    before = contents(whole)
    names = ("open_task", "load_subset", "read_all", "filter_pairs", "_binarise", "write_atomically")
    hooks = [*((merge, name) for name in names), (Path, "rename"), (Path, "mkdir")]
    stages = 0

    def begin() -> None:
        if destination.exists():
            shutil.rmtree(destination)

    for _ in every_stage(hooks, lambda: merged(corpus, whole, destination), begin):
        capsys.readouterr()
        if destination.exists():
            # Killed after the rename: the result is complete, and the next run refuses to replace it.
            assert merged(corpus, whole, destination) == 2
            error = f"spec-dec-distill: error: --destdir {destination}: is there already"
            assert capsys.readouterr().err.startswith(error)
        else:
            assert merged(corpus, whole, destination) == 0
        assert contents(destination) == contents(expected)
        assert {path.name.partition(".partial.")[0] for path in tmp_path.iterdir()} == {"expected", "merged"}
        stages += 1
    assert stages >= 10 and contents(whole) == before


def test_shards_torn_at_any_byte(tmp_path: Path) -> None:
    """A torn unfinished shard resumes after its last whole line; a torn finished one is refused."""
    made_from = {"subset": "valid", "name": "ü"}
    sentences = [TeacherSentence(number, f"-{number}.5", "ä b " * number) for number in range(6)]
    file, partial = tmp_path / "valid.0-of-1.tsv", tmp_path / "valid.0-of-1.tsv.partial"
    writer = ShardWriter(file, made_from)
    writer.add(sentences)
    growing = partial.read_bytes()
    writer.finish()
    finished = file.read_bytes()
    header = growing.index(b"\n") + 1
    for size in range(len(growing) + 1):
        file.unlink(missing_ok=True)
        partial.write_bytes(growing[:size])
        writer = ShardWriter(file, made_from)
        assert writer.done == set(range(growing[header:size].count(b"\n") if size > header else 0))
        writer.add(sentence for sentence in sentences if sentence.number not in writer.done)
        writer.finish()
        assert file.read_bytes() == finished and not partial.exists()
    choose = random.Random(1)
    for size in choose.sample(range(len(finished)), 50):
        file.write_bytes(finished[:size])
        with pytest.raises(ConfigurationError, match="corrupt shard .*; remove it and run"):
            read_shard(file)
    for place in choose.sample(range(len(finished)), 50):
        file.write_bytes(finished[:place] + bytes([finished[place] ^ 1]) + finished[place + 1 :])
        with pytest.raises(ConfigurationError, match="corrupt shard"):
            read_shard(file)

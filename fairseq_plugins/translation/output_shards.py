"""An unfinished translation of a file: a folder beside it with one shard for each process.

Chunks of `CHUNK` lines are dealt to the shards in turn. The last process to finish joins the shards. An interrupted run
resumes at the end of each shard, with the same number of shards, if models, options and text are the same.
"""

import argparse
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

from fairseq_plugins.api.files import GPT2_FILES, find_files
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import Destination, is_own_file, lock, open_own, sha256, unwritable
from fairseq_plugins.shared.shards import SHARD, Shards, ShardWriter, check_origin, encode_origin
from fairseq_plugins.shared.workers import WAIT_SECONDS

CHUNK = 1024
"""Number of lines that are sorted by length and written together."""

_OPTION = "--output"
_JOINED = "joined"
_FINISHED = "finished"
"""File with id and origin of the finished run, for tasks of its array that start later and have nothing to do."""
_OWN = re.compile(rf"{SHARD.pattern}(\.partial)?|{_JOINED}|{_FINISHED}")


def origin(args: argparse.Namespace) -> dict[str, Any]:
    """Return everything that the translation of a file depends on."""
    irrelevant = ("input", "output", "processes", "device", "buffer_size", "threads")
    given = {name: value for name, value in vars(args).items() if name not in irrelevant}
    languages = (args.source_lang, args.target_lang)
    models = (args.folder, args.verifier, args.drafter, args.data)
    files = find_files(*models, languages, args.subwords, finds_dictionaries=args.task == "spec_dec")
    made_of: dict[str, list[str | None]] = {
        "models": [*files.verifier.split(":"), files.drafter],
        "dictionaries": [str(file) for file in sorted(Path(files.data).glob("dict.*.txt"))],
        "subwords": _in_folder(files.subwords),
        "input": [args.input],
    }
    # `load` refuses files that are missing.
    found = {name: [Path(path) for path in paths if path and Path(path).is_file()] for name, paths in made_of.items()}
    hashes = {name: sha256(paths) for name, paths in found.items()}
    return {**given, **hashes}


def _in_folder(path: str | None) -> list[str | None]:
    """Return a file, or those in a folder (GPT-2's subwords)."""
    if path is None or not Path(path).is_dir():
        return [path]
    return [str(Path(path, name)) for name in GPT2_FILES]


class OutputShards:
    """The shards of a translation, in a folder beside its output; the folder is removed at the end if it is empty.

    Args:
        output: destination of the translation.
        made_from: everything that the translation depends on.
        count: number of shards of a new translation.
        run_id: id of this process's Slurm array or torchrun's run; empty for a single process.

    Attributes:
        count: number of shards; for a resumed translation that of the first run.

    Raises ConfigurationError for shards of other models, options or text, and a folder with other files.
    """

    def __init__(self, output: Destination, made_from: dict[str, Any], count: int, run_id: str = "") -> None:
        self._output, self._made_from = output.path, made_from
        # With the origin: a user may give the next run of torchrun the same id.
        self._run = encode_origin({"run": run_id, **made_from}) if run_id else b""
        self._folder = folder_of(output.path)
        with self._errors():
            others = [file.name for file in self._folder.glob("*") if not _OWN.fullmatch(file.name)]
            if others:
                problem = f"{self._folder} has other files ({others[0]})"
                raise ConfigurationError(_OPTION, self._output, problem, "rename it, or give another file")
            if not self.is_done:  # of an earlier run
                (self._folder / _FINISHED).unlink(missing_ok=True)
        shards = Shards(self._folder)
        self.count = shards.count() or count
        self._files = [shards.path(index, self.count) for index in range(self.count)]
        for file in filter(is_own_file, self._files):
            check_origin(file, made_from)

    def __enter__(self) -> "OutputShards":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._folder.rmdir()

    @property
    def is_done(self) -> bool:
        """Whether another process of this run has joined the shards."""
        file = self._folder / _FINISHED
        return self._run != b"" and self._output.is_file() and is_own_file(file) and file.read_bytes() == self._run

    def is_finished(self, index: int) -> bool:
        """Return whether a shard is finished."""
        return is_own_file(self._files[index]) or self.is_done

    def begin(self, index: int) -> tuple[int, ShardWriter]:
        """Lock a shard and resume it; raises HeldByAnother if another process writes it."""
        return index, ShardWriter(self._files[index], self._made_from)

    def join(self) -> bool:
        """Join the shards if all are finished; return whether this process did it."""
        with self._errors(), ExitStack() as opened:
            try:
                shards = [opened.enter_context(open_own(file, "r+b")) for file in self._files]
            except FileNotFoundError:
                return False
            lock(shards[0], self._files[0], wait=True)
            if not is_own_file(self._files[0]):  # another process has joined them
                return False
            whole = self._folder / _JOINED
            with open_own(whole, "wb") as joined:
                try:
                    for shard in shards:
                        shard.readline()  # its origin
                    while sum(_copy_chunk(shard, joined) for shard in shards):
                        pass
                    joined.flush()
                    os.fsync(joined.fileno())
                    os.replace(whole, self._output)
                except BaseException:  # the next run joins the shards, which stay
                    whole.unlink(missing_ok=True)
                    raise
            if self._run:
                with open_own(self._folder / _FINISHED, "wb") as finished:
                    finished.write(self._run)
            for file in self._files:
                file.unlink()
            return True

    def wait(self) -> None:
        """Wait until this or another process has joined the shards."""
        while Shards(self._folder).count() is not None:
            time.sleep(WAIT_SECONDS)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self._output, _OPTION, error) from error


def folder_of(path: Path) -> Path:
    """Return the folder of the shards of an output."""
    return path.with_name(path.name + ".parts")


def forget_run(path: Path) -> None:
    """Remove what tells later processes of a run that its output is finished."""
    with suppress(OSError):
        (folder_of(path) / _FINISHED).unlink(missing_ok=True)
        folder_of(path).rmdir()


def _copy_chunk(source: IO[bytes], target: IO[bytes]) -> int:
    lines = list(islice(source, CHUNK))
    target.writelines(lines)
    return len(lines)

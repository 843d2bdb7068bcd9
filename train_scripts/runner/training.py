"""Run fairseq-train: resume it after an interruption, end it after a time limit, and show its progress."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_scripts.runner.stages import (
    CommandFailed,
    StopRequested,
    begin_writing,
    finish_writing,
    is_dry_run,
    minutes,
    run,
    say,
    started,
)

INTERVAL = 20  # seconds between two progress lines in a file
NUMBERED = "checkpoint_[0-9]*.pt"
# Not after a request to stop, which sets --max-update to 1.
REACHED = re.compile(rb"\| (Stopping training due to (?!num_updates: \d+ >= max_update: 1$)|early stop since )")


def train(folder: Path, log: Path, limit: float, command: str, keep: int = 0, later: float = 0) -> None:
    """Train or resume, with the checkpoints in FOLDER.partial, which is renamed at the end.

    Args:
        folder: folder of the checkpoints.
        log: file that the messages of fairseq-train are appended to.
        limit: minutes of training, including those before an interruption; 0 for no limit.
        command: fairseq-train and its options.
        keep: number of checkpoints to keep besides the best and the last.
        later: time of later stages, as for `Progress`.

    Raises:
        CommandFailed: if fairseq-train fails.
        StopRequested: after SIGUSR1, when a checkpoint is written.
    """
    partial = Path(f"{folder}.partial")
    command += f" --save-dir {partial} --no-epoch-checkpoints --keep-interval-updates {keep or 1}"
    command += f" --stop-time-hours {limit / 60:g} --log-format json"
    # By default fairseq keeps the batches of the first epoch, and a resumed training would have those of another.
    command += " --update-epoch-batch-itr True"
    command += f" --log-interval {os.environ.get('LOG_INTERVAL') or 100}"
    if is_dry_run():
        return run(command)
    begin_writing(partial)
    partial.mkdir(parents=True, exist_ok=True)
    mend_checkpoints(partial)
    if (partial / "checkpoint_last.pt").exists():
        say(f"       resuming from {partial}/checkpoint_last.pt")
    stop, seconds, reached = partial.absolute() / "stop", partial / "seconds", partial / "reached"
    if reached.exists():  # fairseq would train one more update
        return finish(partial, folder, keep)
    before = float(seconds.read_text() or 0) if seconds.exists() else 0.0
    progress = Progress(limit, ends_of(shlex.split(command)), later, before)
    stop.unlink(missing_ok=True)
    # Both pipes tell the processes of the training when this one is killed.
    files = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    asked = {**os.environ, "SPEC_DEC_STOP_FILE": str(stop)}  # fairseq_plugins/process/training.py
    with open(log, "ab", 0) as file, started(command, env=asked, **files) as child:
        lines: Iterable[bytes] = child.stdout or ()
        is_last = False

        def log_line(line: bytes) -> bool:
            """Log a line; return whether it reports a checkpoint, from which training and its clock can resume."""
            nonlocal is_last
            file.write(line)
            is_last = is_last or REACHED.search(line) is not None
            is_saved = b"| Saved checkpoint " in line
            if is_saved:
                seconds.write_text(f"{progress.elapsed():.0f}")
                if is_last:
                    reached.touch()
            return is_saved

        try:
            for line in lines:
                log_line(line)
                progress.read(line.decode(errors="replace"))
        except StopRequested:
            stop.touch()
            for line in lines:
                if log_line(line):
                    break
            raise
    clear_line()
    if child.wait():
        raise CommandFailed(child.returncode, log)
    finish(partial, folder, keep)


def finish(partial: Path, folder: Path, keep: int) -> None:
    """Rename the folder of a training that has ended; numbered checkpoints are for averaging only."""
    if not keep:
        remove_numbered(partial)
    finish_writing(partial, folder)


def to_average(folder: Path, wanted: int) -> str:
    """Return what spec-dec-average reads: the last `wanted` checkpoints, fewer after a short training; else the best.

    Args:
        folder: folder of the checkpoints; with --dry-run all are taken to be there.
        wanted: number of checkpoints; 0 for the best one.
    """
    count = wanted if is_dry_run() else min(wanted, len(list(folder.glob(NUMBERED))))
    if count < wanted:
        averaged = f"averages {count}" if count else "takes the best one"
        say(f"       {folder} has {count} of AVERAGE={wanted} checkpoints, one each SAVE_INTERVAL_UPDATES: {averaged}")
    return f"{folder} --last {count}" if count else f"{folder}/checkpoint_best.pt"


def remove_numbered(folder: Path) -> None:
    """Remove the numbered checkpoints, which only averaging needs."""
    for file in folder.glob(NUMBERED):
        file.unlink()


def mend_checkpoints(folder: Path) -> None:
    """Replace truncated checkpoints by the newest whole one, and remove those that were not saved.

    fairseq copies a checkpoint that it has saved to checkpoint_best.pt and then to checkpoint_last.pt. A kill or a full
    disk meanwhile leaves a truncated copy, which it cannot load.
    """
    best, last = folder / "checkpoint_best.pt", folder / "checkpoint_last.pt"
    for file in folder.glob("checkpoint*.pt.tmp"):
        file.unlink()
    for file in (best, last):
        if is_whole(file) or not (file.exists() or best.exists()):
            continue
        saved = set(folder.glob("checkpoint_[b0-9]*.pt")) - {file}
        others = sorted(saved, key=lambda other: other.stat().st_mtime_ns, reverse=True)
        if newest := next(filter(is_whole, others), None):
            shutil.copy(newest, f"{file}.partial")
            os.replace(f"{file}.partial", file)
        else:
            file.unlink(missing_ok=True)


def is_whole(checkpoint: Path) -> bool:
    """Return whether a checkpoint exists and is not truncated."""
    try:
        with zipfile.ZipFile(checkpoint) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, EOFError, FileNotFoundError):
        return False


def ends_of(command: Sequence[str]) -> dict[str, int]:
    """Return the limits of a training in epochs and updates. Of a repeated option the last value counts."""
    pairs = dict(zip(command, command[1:], strict=False))
    found = {unit: pairs.get(option, "0") for unit, option in (("epoch", "--max-epoch"), ("update", "--max-update"))}
    return {unit: int(end) for unit, end in found.items() if end.isdigit() and end != "0"}


def clear_line() -> None:
    """Erase the progress line on a terminal."""
    if sys.stdout.isatty():
        print("\r\033[K", end="", flush=True)


@dataclass
class Progress:
    """Show the progress of a training from its JSON log: in place on a terminal, else a line per `INTERVAL`.

    Args:
        limit: minutes after which the training ends; 0 for no limit.
        ends: its limits in epochs and updates (see `ends_of`).
        later: time of the stages after it, as a multiple of its own time; 0 if it is not known.
        before: seconds of earlier runs of this training.
        clock: returns seconds.
    """

    limit: float
    ends: dict[str, int]
    later: float = 0
    before: float = 0
    clock: Callable[[], float] = time.monotonic
    first: tuple[float, float] | None = None
    shown: float = float("-inf")

    def __post_init__(self) -> None:
        self.start = self.clock()

    def elapsed(self) -> float:
        """Return the seconds of this training, earlier runs included, which fairseq's own clock does not count."""
        return self.before + self.clock() - self.start

    def read(self, line: str) -> None:
        """Show a line of the log if it reports progress."""
        found = re.search(r"\| (train_inner|valid) \| (\{.*\})$", line.rstrip())
        if found is None:
            return
        with suppress(ValueError, KeyError):  # of a line that another process has written into
            values = json.loads(found[2])
            if found[1] == "valid":
                text = f"epoch {values['epoch']}, {values['valid_num_updates']} updates: loss on the validation set "
                accepted = values.get("valid_tokens_per_iteration")
                clear_line()
                more = f", tokens per iteration {accepted}" if accepted else ""
                return say(f"       {text}{values['valid_loss']}{more}")
            text = f"       {self.describe(values)}"
            if sys.stdout.isatty():
                # A line that the terminal wraps could not be overwritten.
                print(f"\r{text[: shutil.get_terminal_size().columns - 1]}\033[K", end="", flush=True)
            elif self.clock() - self.shown >= INTERVAL:
                self.shown = self.clock()
                say(text)

    def describe(self, values: dict[str, Any]) -> str:
        """Return elapsed time, estimated remaining time, epoch, update and loss."""
        done = {"epoch": float(values["update"]), "update": int(values["num_updates"])}
        share, now = max((done[unit] / end for unit, end in self.ends.items()), default=0), self.clock()
        self.first = self.first or (share, now)
        elapsed = self.elapsed()
        ends = [60 * self.limit - elapsed] if self.limit else []
        if share > self.first[0]:
            ends.append((now - self.first[1]) / (share - self.first[0]) * (1 - share))
        text = f"{minutes(elapsed)} min"
        if ends:
            left = max(0, min(ends))
            text += f", about {minutes(left)} left"
            text += f", {minutes(left + self.later * (elapsed + left))} with the later stages" if self.later else ""
        epoch, update = (f" of {self.ends[unit]}" if unit in self.ends else "" for unit in done)
        text += f": epoch {values['epoch']}{epoch}, update {done['update']}{update}, loss {float(values['loss']):.2f}"
        return f"{text}, {float(values.get('wps', 0)):.0f} words/s"

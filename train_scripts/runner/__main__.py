"""`python -m train_scripts.runner COMMAND ...`, for the scripts beside this folder.

    recipe [--dry-run] [--skip STAGES] [--only STAGES]   all stages of a recipe; its settings are in the environment
    stage OUTPUT MESSAGE LOG COMMAND...                  a command that writes OUTPUT, or first OUTPUT.partial
    train FOLDER MESSAGE LOG MINUTES COMMAND...          fairseq-train
    measure CELL MESSAGE COMMAND...                      fairseq-generate, with its BLEU and counts in CELL
    log LOG COMMAND...                                   any command, with the end of its log where it fails

What exists is not made again. The variable LOCK names a file that other runs wait for.
"""

import argparse
import errno
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from train_scripts.runner import stages
from train_scripts.runner.recipe import Recipe
from train_scripts.runner.settings import read_settings
from train_scripts.runner.stages import CommandFailed, Refused, TimeIsUp, run
from train_scripts.runner.training import train

END_OF_LOG = 15  # lines that are shown of a command that failed


def recipe(*options: str) -> None:
    """Run the stages that the options of a recipe choose."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dry-run", action="store_true")
    for option in ("--skip", "--only"):
        parser.add_argument(option, nargs="?", default="", const=" ")
    chosen, unknown = parser.parse_known_args(options)
    if unknown:
        raise Refused(f"{unknown[0]}: no such option; there are --dry-run, --skip STAGES, --only STAGES and --help")
    s = read_settings(os.environ)
    names, skip, only = (set(filter(None, given.split(","))) for given in (s.recipe_stages, chosen.skip, chosen.only))
    for option, given in (("--skip", skip), ("--only", only)):
        if given - names:
            raise Refused(f"{option} {min(given - names)}: no such stage; choose from {s.recipe_stages}")
    if s.DATA and not os.path.isdir(s.DATA):
        raise Refused(f"DATA={s.DATA}: no such folder; give one with the text: train.*, valid.* and test.*")
    if not s.DATA and not s.FROM and "BASH_FUNC_get_text%%" not in os.environ:
        if not chosen.dry_run:
            raise Refused(f"DATA is missing; give a folder with train.{s.src}, train.{s.tgt}, valid.*, test.*")
        s.DATA = "FOLDER"
    if chosen.dry_run:
        os.environ["dry_run"] = "1"
    Recipe(s, only or names - skip).run_all()


def stage(output: str, message: str, log: str, *command: str) -> None:
    """Make a file or folder by a command that writes it, or OUTPUT.partial."""
    partial = Path(f"{output}.partial")

    def make() -> None:
        run(shlex.join(["rm", "-rf", str(partial)]))
        run(shlex.join(command), log=Path(log))
        if partial.exists():
            partial.rename(output)

    stages.stage(Path(output), message, make)


def train_once(folder: str, message: str, log: str, limit: str, *command: str) -> None:
    """Train a model."""
    stages.stage(Path(folder), message, lambda: train(Path(folder), Path(log), float(limit), shlex.join(command)))


def measure(cell: str, message: str, *command: str) -> None:
    """Decode into CELL.out and CELL.log, and write BLEU, tokens, iterations and mean accepted tokens into CELL."""
    out, log, partial = (Path(f"{cell}.{end}") for end in ("out", "log", "partial"))

    def make() -> None:
        run(shlex.join(command), log=log, out=out)
        bleu = re.search(r"^Generate .*?BLEU[^=]* = ([\d.]+)", out.read_text(encoding="utf-8"), re.MULTILINE)
        counted = r" sentences, (\d+) tokens, (\d+) iterations, ([\d.]+) mean accepted tokens"
        counts = re.findall(counted, log.read_text(encoding="utf-8"))
        if bleu is None or not counts:
            raise Refused(f"{out}: fairseq-generate gave no BLEU or no counts; see {log}")
        partial.write_text(" ".join([bleu[1], *counts[-1]]) + "\n", encoding="utf-8")
        partial.rename(cell)

    stages.stage(Path(cell), message, make)


COMMANDS: dict[str, Callable[..., None]] = {
    "recipe": recipe,
    "stage": stage,
    "train": train_once,
    "measure": measure,
    "log": lambda log, *command: run(shlex.join(command), log=Path(log)),
}


def show_end(log: Path) -> None:
    """Print the end of a log, without translations."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = [line for line in lines if not re.match("[HSTPD]-", line)][-END_OF_LOG:]
    after = "After mending the cause, run the same command again: finished stages are kept."
    print("", *last, f"error: the last command failed; all it said is in {log}. {after}", sep="\n", file=sys.stderr)


def time_is_up(*_: object) -> NoReturn:
    """End what runs, after one signal only: Slurm may send it again."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise TimeIsUp


def requeue() -> None:
    """Put this job of Slurm into the queue again, where the variable REQUEUE asks for it."""
    if os.environ.get("REQUEUE") and os.environ.get("SLURM_JOB_ID"):
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])


def main(argv: Sequence[str]) -> int:
    """Run a command: its exit status, that of a program that failed, or 2 after one line about wrong settings."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    signal.signal(signal.SIGUSR1, time_is_up)
    try:
        if os.environ.get("LOCK"):
            stages.lock(Path(os.environ["LOCK"]))
        COMMANDS[argv[0]](*argv[1:])
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except CommandFailed as error:
        if error.log:
            show_end(error.log)
        return error.status
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        remedy = "make room there" if error.errno == errno.ENOSPC else "run it in a clone that can be written to"
        print(f"error: {error.filename}: cannot be written ({error.strerror}); {remedy}", file=sys.stderr)
        return 2
    except TimeIsUp:
        print("Stopped by SIGUSR1. The same command goes on from here.", file=sys.stderr, flush=True)
        requeue()
        return 128 + signal.SIGUSR1
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

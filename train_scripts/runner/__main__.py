"""Run `python -m train_scripts.runner COMMAND ...`, which the scripts in train_scripts/ call.

    recipe [--dry-run] [--skip STAGES] [--only STAGES]   run a recipe, whose settings are environment variables
    stage OUTPUT MESSAGE LOG COMMAND...                  run a command that writes OUTPUT or OUTPUT.partial
    train FOLDER MESSAGE LOG MINUTES COMMAND...          run fairseq-train, or resume it
    log LOG COMMAND...                                   run a command; if it fails, print the end of its log

A command whose output exists is skipped. The variable LOCK names a lock file, held until the end.
"""

import argparse
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
from train_scripts.runner.stages import CommandFailed, RecipeError, StopRequested, run
from train_scripts.runner.training import train

LOG_TAIL = 15  # lines printed from the log of a failed command


def recipe(*options: str) -> None:
    """Run the stages of a recipe that its options choose."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dry-run", action="store_true")
    for option in ("--skip", "--only"):
        parser.add_argument(option, nargs="?", default="", const=" ")
    chosen, unknown = parser.parse_known_args(options)
    if unknown:
        raise RecipeError(f"{unknown[0]}: no such option; there are --dry-run, --skip STAGES, --only STAGES and --help")
    s = read_settings(os.environ)
    names, skip, only = (set(filter(None, given.split(","))) for given in (s.recipe_stages, chosen.skip, chosen.only))
    for option, given in (("--skip", skip), ("--only", only)):
        if given - names:
            raise RecipeError(f"{option} {min(given - names)}: no such stage; choose from {s.recipe_stages}")
    if s.DATA and not os.path.isdir(s.DATA):
        raise RecipeError(f"DATA={s.DATA}: no such folder; give one with the text: train.*, valid.* and test.*")
    if not s.DATA and not s.FROM and "BASH_FUNC_get_text%%" not in os.environ:
        if not chosen.dry_run:
            raise RecipeError(f"DATA is missing; give a folder with train.{s.src}, train.{s.tgt}, valid.*, test.*")
        s.DATA = "FOLDER"
    if chosen.dry_run:
        os.environ["dry_run"] = "1"
    Recipe(s, only or names - skip).run_all()


def stage(output: str, message: str, log: str, *command: str) -> None:
    """Run a command that writes `output`, or OUTPUT.partial, which is then renamed."""
    partial = Path(f"{output}.partial")

    def make() -> None:
        stages.write_anew(partial)
        run(shlex.join(command), log=Path(log))
        if not stages.is_dry_run():
            stages.finish_writing(partial, Path(output))

    stages.stage(Path(output), message, make)


def train_once(folder: str, message: str, log: str, limit: str, *command: str) -> None:
    """Train a model, unless its folder exists."""
    stages.stage(Path(folder), message, lambda: train(Path(folder), Path(log), float(limit), shlex.join(command)))


COMMANDS: dict[str, Callable[..., None]] = {
    "recipe": recipe,
    "stage": stage,
    "train": train_once,
    "log": lambda log, *command: run(shlex.join(command), log=Path(log)),
}


def print_log_tail(log: Path) -> None:
    """Print the end of a failed command's log, without translations."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = [line for line in lines if not re.match("[HSTPD]-", line)][-LOG_TAIL:]
    remedy = "Fix the cause and run the same command again: finished stages are kept."
    print("", *last, f"error: the last command failed; its whole log is {log}. {remedy}", sep="\n", file=sys.stderr)


def request_stop(*_: object) -> NoReturn:
    """Raise `StopRequested`, and ignore further signals: Slurm may send several."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise StopRequested


def requeue() -> None:
    """Requeue this Slurm job if the variable REQUEUE is neither empty nor 0; of an array only this task."""
    job = os.environ.get("SLURM_JOB_ID")
    if os.environ.get("REQUEUE", "0") not in ("", "0") and job:
        if array := os.environ.get("SLURM_ARRAY_JOB_ID"):  # one of its tasks has the number of the whole array
            job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        subprocess.run(["scontrol", "requeue", job])


def main(argv: Sequence[str]) -> int:
    """Run a command; return its exit status, or 2 after a one-line error about settings."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda received, _: sys.exit(128 + received))
    signal.signal(signal.SIGUSR1, request_stop)
    try:
        if os.environ.get("LOCK"):
            stages.lock(Path(os.environ["LOCK"]))
        COMMANDS[argv[0]](*argv[1:])
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except CommandFailed as error:
        if error.log:
            print_log_tail(error.log)
        return error.status
    except BrokenPipeError:  # `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        said = stages.full_disk(error)
        if said is None and error.filename is None:
            raise
        remedy = "run it in a clone that you may write to"
        print(f"error: {said or f'{error.filename}: cannot be written ({error.strerror}); {remedy}'}", file=sys.stderr)
        return 2
    except StopRequested:
        print("Stopped by SIGUSR1. The same command resumes here.", file=sys.stderr, flush=True)
        requeue()
        return 128 + signal.SIGUSR1
    except KeyboardInterrupt:
        print("\nInterrupted. The same command resumes here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

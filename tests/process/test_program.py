"""A program that imports the package keeps what it owns: hooks, signals, logging, warnings, memory, random numbers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_plugins.process.output import PARENT
from tests.support import REPOSITORY

STATE = """
import decimal, gc, locale, logging, os, random, signal, sys, threading, warnings

def state():
    found = {
        "hooks": [sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook],
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "garbage collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(gc.callbacks)],
        "warnings": [list(warnings.filters), warnings.showwarning],
        "logging": [logging.root.level, list(logging.root.handlers), logging.raiseExceptions, logging.lastResort],
        "environment": dict(os.environ),
        "interpreter": [sys.getrecursionlimit(), sys.getswitchinterval(), list(sys.path), list(sys.argv), os.getcwd()],
        "output": [sys.stdin, sys.stdout, sys.stderr, "write" in vars(sys.stdout), "flush" in vars(sys.stdout)],
        "locale and numbers": [locale.setlocale(locale.LC_ALL), repr(decimal.getcontext())],
        "random": random.getstate(),
        "threads": [thread.name for thread in threading.enumerate()],
    }
    if "torch" in sys.modules:
        import numpy, torch
        from fairseq import options
        found["torch"] = [
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(),
            torch.multiprocessing.get_sharing_strategy(), torch.multiprocessing.get_start_method(allow_none=True),
            torch.get_rng_state().tolist(), repr(numpy.random.get_state()), options.parse_args_and_arch,
        ]
    return found

def changed(before):
    after = state()
    # Libraries put filters of their own warnings before those of the program.
    after["warnings"][0] = after["warnings"][0][-len(before["warnings"][0]):]
    return {name: (value, after[name]) for name, value in before.items() if value != after[name]}

"""

TRANSLATES = """
model = fairseq_plugins.load("checkpoints/cldr.en-de", device="cpu")
assert model.translate("Monday")
"""


def run(program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own."""
    return subprocess.run([sys.executable, "-c", STATE + program], cwd=REPOSITORY, capture_output=True, text=True)


@pytest.mark.parametrize("first", ["", "import gc, torch, fairseq.options; gc.disable()"])
def test_what_a_program_owns_is_unchanged(first: str) -> None:
    """Also of a program that has imported fairseq before, and collects no garbage."""
    ended = run(f"{first}\nbefore = state()\nimport fairseq_plugins\n{TRANSLATES}\nprint(changed(before))")
    assert ended.stdout == "{}\n", ended.stderr


@pytest.mark.parametrize("first", ["gc.set_threshold(10**9)", "gc.disable()"])
def test_garbage_of_a_program_is_collected_as_before(first: str) -> None:
    """Young garbage does not count as old, which a program collects rarely."""
    made = "class One: pass\none = One()\none.own = one\nmade = weakref.ref(one)\ndel one"
    ended = run(f"import weakref\n{first}\n{made}\nimport fairseq_plugins\ngc.collect(1)\nprint(made())")
    assert ended.stdout == "None\n", ended.stderr


def test_uncaught_errors_of_a_program_keep_their_traceback() -> None:
    ended = run("import fairseq_plugins, torch\ndef own():\n    raise torch.OutOfMemoryError('of its own')\nown()")
    assert ended.returncode == 1 and "in own\n" in ended.stderr and "of its own" in ended.stderr


def test_ctrl_c_during_imports_of_a_command_prints_one_line(tmp_path: Path) -> None:
    """Also where Python runs a module; one of several processes prints none, as the first one does."""
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    script = tmp_path / "spec-dec-translate"
    script.write_text("from fairseq_plugins.translation.cli import main")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    for command in (["-m", "fairseq_plugins.translation.cli"], [str(script), "model"]):
        for more, printed in (({}, "interrupted\n"), ({PARENT: "1"}, "")):
            ended = subprocess.run(
                [sys.executable, "-u", *command], env={**environment, **more}, capture_output=True, text=True
            )
            assert (ended.returncode, ended.stderr) == (-signal.SIGINT, printed)

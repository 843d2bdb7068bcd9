"""A program that imports the package keeps what it owns: hooks, signals, logging, warnings, memory, random numbers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_plugins.process.output import PARENT
from tests.api.test_other_tasks import arguments
from tests.families import FAMILIES
from tests.support import REPOSITORY

STATE = """
import decimal, gc, locale, logging, os, random, signal, sys, threading, warnings

def state():
    found = {
        "hooks": [sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook],
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        # Python 3.12 freezes some hundreds of objects itself.
        "garbage collector": [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 1000, list(gc.callbacks)],
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

PROGRAM = """
class One: pass
one = One()
one.own = one
made = weakref.ref(one)
del one
before = state()
import fairseq_plugins
gc.collect(1)
print(made())
assert fairseq_plugins.load("checkpoints/cldr.en-de", device="cpu").translate("Monday")
fairseq_plugins.load(**json.loads(sys.argv[1])).translate("w3 w9 w4")
print(changed(before))

def own():
    import torch
    raise torch.OutOfMemoryError("of its own")
own()
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", ["gc.set_threshold(10**9)", "import torch, fairseq.options; gc.disable()"])
def test_what_a_program_owns_is_unchanged(first: str, tmp_path: Path) -> None:
    """Young garbage stays young. Nothing is printed of fairseq and Hydra, and errors keep their traceback."""
    FAMILIES["m2m"].save(tmp_path)
    program = f"import json, weakref\n{STATE}{first}\n{PROGRAM}"
    command = [sys.executable, "-c", program, json.dumps(arguments(FAMILIES["m2m"], tmp_path), default=str)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (1, "None\n{}\n"), ended.stderr
    printed, _, trace = ended.stderr.partition("Traceback")
    assert "in own\n" in trace and "of its own" in trace
    # Of itself, fairseq logs everything.
    assert printed == "" or "fairseq" in first


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

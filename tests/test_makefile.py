"""`make`: after Ctrl-C it ends by the signal and says nothing of its own; failures keep their status."""

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support import REPOSITORY

BEGIN = "echo begun; "
SCRIPTS = {
    "handles the signal": "trap 'echo interrupted; exit 130' INT; " + BEGIN + "sleep 20 & wait",
    "ends by the signal": BEGIN + "exec sleep 20",
    "is interrupted alone": BEGIN + "kill -INT $$",
}


def make(folder: Path, script: str) -> list[str]:
    """Return the command of `make demo` in a copy of the repository, with a script that replaces the demo."""
    (folder / "train_scripts").mkdir()
    (folder / "train_scripts/quick_demo.sh").write_text(script)
    # The set-up counts as done.
    return ["make", "-C", str(folder), "--no-print-directory", "-f", str(REPOSITORY / "Makefile"), "-o",
            ".venv/.setup-done", "demo"]  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_interrupted(name: str, tmp_path: Path) -> None:
    command = make(tmp_path, SCRIPTS[name])
    process, terminal = pty.fork()
    if process == 0:
        os.execvp(command[0], command)
    output, was_begun = b"", False
    while True:
        try:
            output += os.read(terminal, 1000)
        except OSError:  # the terminal is closed
            break
        if b"begun" in output and not was_begun and name != "is interrupted alone":
            os.write(terminal, b"\x03")
            was_begun = True
    assert os.WTERMSIG(os.waitpid(process, 0)[1]) == signal.SIGINT
    assert b"***" not in output and b"Error" not in output


def test_failed(tmp_path: Path) -> None:
    finished = subprocess.run(make(tmp_path, "exit 3"), capture_output=True, text=True)
    assert finished.returncode == 2 and "demo] Error 3" in finished.stderr

"""`command_server`: commands behave as in processes that import everything themselves."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAMS = [
    "print('out'); print('error', file=sys.stderr)",
    "print(sys.argv, os.getcwd(), os.environ['MARK'], sys.stdin.read())",
    "sys.exit(3)",
    "sys.exit('a text')",
    "sys.exit()",
    "os._exit(4)",
    "print('lost?'); 1 / 0",
    "print('lost?'); raise KeyboardInterrupt",
    "os.kill(os.getpid(), signal.SIGTERM)",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "atexit.register(print, 'at the end')",
    "print('x' * 100_000)",
    "print([stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)])",
]
REDIRECTIONS = ["", "> /dev/full", ">&-", "2>&-", "<&-", "> >(true)"]


def run(python: str | Path, program: str, redirection: str, unbuffered: str = "") -> tuple[int, str, str]:
    """Run a program; return exit status, output, and the last line of its errors."""
    line = f'exec "$0" -c "$1" one "two words" {redirection}'
    program = f"import atexit, os, signal, sys\n{program}"
    environment = {**os.environ, "MARK": "ä", "PYTHONUNBUFFERED": unbuffered}
    command = ["bash", "-c", line, str(python), program]
    done = subprocess.run(command, input="text", capture_output=True, text=True, env=environment)
    error = done.stderr.splitlines()[-1:]
    return done.returncode, done.stdout, error[0] if error else ""


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_exit_status_is_that_of_a_process(programs: Path, redirection: str) -> None:
    for program in PROGRAMS:
        expected = run(sys.executable, program, redirection)
        assert run(programs / "python", program, redirection) == expected, program


def test_unbuffered_output(programs: Path) -> None:
    for unbuffered in ("", "1"):
        expected = run(sys.executable, "print('out'); os._exit(0)", "", unbuffered)
        assert run(programs / "python", "print('out'); os._exit(0)", "", unbuffered) == expected
        assert expected[1] == ("out\n" if unbuffered else "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_signals_of_the_client_reach_the_command(programs: Path, tmp_path: Path, number: signal.Signals) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(100)"
    for python in (sys.executable, programs / "python"):
        file = tmp_path / Path(python).parent.name
        process = subprocess.Popen(
            [python, "-c", program, file],
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        while not file.exists() or not file.read_text():
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(10) == -number
        process.stderr.close()
        for _ in range(500):
            if not Path(f"/proc/{file.read_text()}").exists():
                break
            time.sleep(0.01)
        assert not Path(f"/proc/{file.read_text()}").exists()

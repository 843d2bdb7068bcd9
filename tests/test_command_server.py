"""`command_server` and `quick_options`: commands behave as in processes that import everything themselves."""

import os
import shlex
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.utils import import_user_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf

from tests import quick_options
from tests.support import REPOSITORY

PRINTING = [
    "print('out'); print('error', file=sys.stderr)",
    "print('lost?'); 1 / 0",
    "print('lost?'); raise KeyboardInterrupt",
    "print('x' * 100_000)",
    "print([stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)])",
]
OTHERS = [
    "print(sys.argv, os.getcwd(), os.environ['MARK'], sys.stdin.read())",
    "sys.exit(3)",
    "sys.exit('a text')",
    "sys.exit()",
    "os._exit(4)",
    "os.kill(os.getpid(), signal.SIGTERM)",
    "os.kill(os.getpid(), signal.SIGKILL)",
    "atexit.register(print, 'at the end')",
]
REDIRECTIONS = ["", "> /dev/full", ">&-", "2>&-", "<&-", "> >(true)"]


def run(python: str | Path, program: str, redirection: str) -> tuple[int, str, str]:
    """Run a program; return exit status, output, and the last line of its errors."""
    line = f'exec "$0" -c "$1" one "two words" {redirection}'
    program = f"import atexit, os, signal, sys\n{program}"
    environment = {**os.environ, "MARK": "ä"}
    command = ["bash", "-c", line, str(python), program]
    done = subprocess.run(command, input="text", capture_output=True, text=True, env=environment)
    error = done.stderr.splitlines()[-1:]
    return done.returncode, done.stdout, error[0] if error else ""


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_exit_status_is_that_of_a_process(programs: Path, redirection: str) -> None:
    for program in [*PRINTING, *([] if redirection else OTHERS)]:
        expected = run(sys.executable, program, redirection)
        assert run(programs / "python", program, redirection) == expected, program


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_signals_of_the_client_reach_the_command(programs: Path, tmp_path: Path, number: signal.Signals) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(500)"
    file = tmp_path / "process"
    process = subprocess.Popen(
        [programs / "python", "-c", program, file],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not file.exists() or not file.read_text():
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(200) == -number
    for _ in range(20_000):
        if not Path(f"/proc/{file.read_text()}").exists():
            return
        time.sleep(0.01)
    raise AssertionError("the command goes on")


OPTIONS = [
    ("training", "data --task translation --arch transformer --lr 0.02,0.01 --max-tokens 5 --optimizer adam"),
    ("training", "data --task spec_dec --arch block_nat --criterion glat_loss --optimizer adam --block-size 4 "
     "--adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt --save-dir 'a folder/of €' --update-freq 2,3"),
    ("generation", "data --task spec_dec --path one.pt:it\\'s.pt --decoder gad++ --tau 0.5 --bpe gpt2 --lenpen 1e-3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line"), OPTIONS)
def test_cached_options_are_those_of_hydra(kind: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import_user_module(Namespace(user_dir=str(REPOSITORY / "fairseq_plugins")))
    args = options.parse_args_and_arch(getattr(options, f"get_{kind}_parser")(), input_args=shlex.split(line))
    found = [OmegaConf.to_container(convert_namespace_to_omegaconf(args)) for _ in range(2)]
    with pytest.raises(Exception, match="nothing"):
        convert_namespace_to_omegaconf(Namespace(**{**vars(args), "ddp_backend": "nothing"}))
    monkeypatch.setattr(ConfigLoaderImpl, "_load_configuration_impl", quick_options._compose)
    expected = OmegaConf.to_container(convert_namespace_to_omegaconf(args))
    assert found == [expected, expected] and list(found[0]) == list(expected)

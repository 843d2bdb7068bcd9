"""Runs console commands for scripts under test without their imports: a process that has them forks for each.

A recipe starts some twenty commands, each of which imports torch and fairseq for seconds. Here they are small clients
on PATH that pass arguments, environment and output on.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

REPOSITORY = Path(__file__).parents[1]
COMMANDS = {
    "fairseq-generate": "fairseq_cli.generate:cli_main",
    "fairseq-interactive": "fairseq_cli.interactive:cli_main",
    "fairseq-preprocess": "fairseq_cli.preprocess:cli_main",
    "fairseq-train": "fairseq_cli.train:cli_main",
    "sacremoses": "sacremoses.cli:cli",
    "spec-dec-average": "fairseq_plugins.averaging:main",
    "spec-dec-compare": "fairseq_plugins.benchmarks.compare:main",
    "spec-dec-distill": "fairseq_plugins.distillation.cli:main",
    "spec-dec-metrics": "fairseq_plugins.metrics.cli:main",
    "spec-dec-sweep": "fairseq_plugins.benchmarks.sweep:main",
    "subword-nmt": "subword_nmt.subword_nmt:main",
}

CLIENT = """#!{python} -SE
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({path!r})
message = json.dumps([os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]).encode() + b"\\n"
socket.send_fds(server, [message[:1]], [0, 1, 2])
server.sendall(message[1:])
sys.exit(int(server.recv(16) or b"1"))
"""


@contextlib.contextmanager
def commands(folder: Path) -> Iterator[Path]:
    """Start the server; yields a folder of commands to put first on PATH."""
    programs, path = folder / "bin", str(folder / "socket")
    programs.mkdir()
    for name in COMMANDS:
        (programs / name).write_text(CLIENT.format(python=sys.executable, path=path))
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen([sys.executable, "-m", "tests.command_server", path], cwd=REPOSITORY, env=environment)
    try:
        while not Path(path).exists():
            assert server.poll() is None, "the server ended at once"
            time.sleep(0.05)
        yield programs
    finally:
        server.terminate()
        server.wait()


def serve(path: str) -> None:
    """Accept commands until killed."""
    for target in COMMANDS.values():
        importlib.import_module(target.split(":")[0])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".partial")
    listener.listen()
    os.rename(path + ".partial", path)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run(client)
        client.close()


def _run(client: socket.socket) -> None:
    """Run one command in this forked process, and end it."""
    from fairseq.utils import import_user_module

    message, files, _, _ = socket.recv_fds(client, 1, 3)
    while not message.endswith(b"\n"):
        message += client.recv(1 << 16)
    name, arguments, folder, environment = json.loads(message)
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [name, *arguments]
    # The script's own link to the plugin, which is imported already.
    import_user_module.memo = {os.path.abspath("fairseq_plugins")}
    module, function = COMMANDS[name].split(":")
    status = 1
    try:
        status = getattr(importlib.import_module(module), function)() or 0
        gc.collect()
        atexit._run_exitfuncs()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(str(status).encode())
    os._exit(0)


def _end(signal_number: int, frame: FrameType | None) -> None:
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    serve(sys.argv[1])

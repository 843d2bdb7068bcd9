"""Runs console commands for scripts under test without their imports: a process that has them forks for each.

A recipe starts some twenty commands, each of which imports torch and fairseq for seconds. Here they are small clients
on PATH that pass arguments, environment and output on. A client that is killed takes its command with it.
"""

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from argparse import Namespace
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
COMMANDS = {
    "fairseq-generate": "fairseq_cli.generate:cli_main",
    "fairseq-interactive": "fairseq_cli.interactive:cli_main",
    "fairseq-preprocess": "fairseq_cli.preprocess:cli_main",
    "fairseq-train": "fairseq_cli.train:cli_main",
    "python": "tests.command_server:python",
    "sacremoses": "sacremoses.cli:cli",
    "spec-dec-average": "fairseq_plugins.averaging:main",
    "spec-dec-corpus": "fairseq_plugins.demo_corpus.corpus:main",
    "spec-dec-compare": "fairseq_plugins.benchmarks.compare:main",
    "spec-dec-distill": "fairseq_plugins.distillation.cli:main",
    "spec-dec-metrics": "fairseq_plugins.metrics.cli:main",
    "spec-dec-sweep": "fairseq_plugins.benchmarks.sweep:main",
    "spec-dec-trace": "fairseq_plugins.pages.show_trace:main",
    "spec-dec-translate": "fairseq_plugins.translation.cli:main",
    "subword-nmt": "subword_nmt.subword_nmt:main",
}

USUAL_OPTIONS = {
    "training": "data --task spec_dec --arch block_nat --criterion glat_loss --optimizer adam",
    "generation": "data --task spec_dec --path model.pt",
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


def start(folder: Path, owner: int) -> None:
    """Make `folder`/bin, a folder of commands to put first on PATH, and start their server.

    Args:
        folder: an empty folder.
        owner: the server ends when the process of this id has ended.
    """
    programs, path = folder / "bin", str(folder / "socket")
    programs.mkdir()
    for name in COMMANDS:
        (programs / name).write_text(CLIENT.format(python=sys.executable, path=path))
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.command_server", path, str(owner)]
    server = subprocess.Popen(command, cwd=REPOSITORY, env=environment, start_new_session=True)
    while not Path(path).exists():
        assert server.poll() is None, "the server ended at once"
        time.sleep(0.05)


def serve(path: str, owner: int) -> None:
    """Accept commands until the owner has ended."""
    from tests import quick_options

    for target in COMMANDS.values():
        importlib.import_module(target.split(":")[0])
    # What the first optimiser of a process imports for two seconds, and the first figure.
    for name in ("torch._dynamo", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        importlib.import_module(name)
    quick_options.install()
    _read_options()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    report, learnt = Path(path + ".defaults"), set[str]()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".partial")
    listener.listen()
    listener.settimeout(1)
    os.rename(path + ".partial", path)
    # What is there now stays: collections of garbage in the forked processes need not look at it.
    gc.collect()
    gc.freeze()
    while _is_running(owner):
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        client.setblocking(True)
        _learn(report, learnt)
        if os.fork() == 0:
            listener.close()
            _run(client, report)
        client.close()


def _read_options() -> None:
    """Read options as commands do: what that leaves behind all forks have."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.utils import import_user_module

    import_user_module(Namespace(user_dir=str(REPOSITORY / "fairseq_plugins")))
    for kind, line in USUAL_OPTIONS.items():
        parser = getattr(options, f"get_{kind}_parser")()
        convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=line.split()))


def _learn(report: Path, learnt: set[str]) -> None:
    """Keep the defaults that a command reports to have composed, for those that come after it."""
    from hydra.errors import HydraException

    from tests import quick_options

    for line in set(report.read_text().splitlines()) - learnt if report.exists() else ():
        learnt.add(line)
        # This process knows no classes that a command has from elsewhere.
        with contextlib.suppress(HydraException):
            quick_options.keep_defaults(*json.loads(line))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _end_with(client: socket.socket) -> None:
    """End this command and what it started, as hard as its client was ended."""
    if client.recv(1) == b"":
        os.killpg(0, signal.SIGKILL)


def python() -> None:
    """`python -m MODULE`, `python -c CODE`, `python -` with the code on standard input, `python FILE`."""
    kind, *rest = sys.argv[1:]
    if kind == "-m":
        sys.argv = rest
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind in ("-", "-c"):
        code, *arguments = rest if kind == "-c" else [sys.stdin.read(), *rest]
        sys.argv = [kind, *arguments]
        exec(compile(code, f"<{kind}>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


def _run(client: socket.socket, report: Path) -> None:
    """Run one command in this forked process, report what others will need, too, and end it."""
    from fairseq.utils import import_user_module

    from tests import quick_options

    known = quick_options.known_defaults()
    message, files, _, _ = socket.recv_fds(client, 1, 3)
    while not message.endswith(b"\n"):
        message += client.recv(1 << 16)
    name, arguments, folder, environment = json.loads(message)
    os.setpgid(0, 0)
    threading.Thread(target=_end_with, args=[client], daemon=True).start()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [name, *arguments]
    # The script's own link to the plugin, which is imported already.
    import_user_module.memo = {os.path.abspath("fairseq_plugins")}
    module_name, function = COMMANDS[name].split(":")
    module = importlib.import_module(module_name)
    if name in ("fairseq-train", "fairseq-interactive", "fairseq-preprocess"):
        # They say where the log goes before they import anything else. Here others came before them.
        logging.root.handlers.clear()
        importlib.reload(module)
    status = 1
    try:
        status = getattr(module, function)() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with report.open("a") as file:
        # Of several commands at once each writes whole lines.
        file.write("".join(f"{json.dumps(names)}\n" for names in quick_options.known_defaults() if names not in known))
    # The rest of what the end of a process brings.
    gc.collect()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(str(status).encode())
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

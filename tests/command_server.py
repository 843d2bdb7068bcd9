"""Runs console commands for scripts under test without their imports: a process that has them forks for each.

A recipe starts some twenty commands, each of which imports torch and fairseq for seconds. Here they are small clients
on PATH that pass arguments, environment and output on. A client that is killed takes its command with it.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import logging
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
from argparse import Namespace
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# As they are installed, all of this project and those of others that it calls.
COMMANDS = {
    **{
        script.name: script.value
        for script in entry_points(group="console_scripts")
        if script.name.startswith(("fairseq-", "spec-dec-")) or script.name in ("sacremoses", "subword-nmt")
    },
    "python": "tests.command_server:python",
}

USUAL_OPTIONS = {
    "training": "data --task spec_dec --arch block_nat --criterion glat_loss --optimizer adam",
    "generation": "data --task spec_dec --path model.pt",
}

# Only modules that are in the interpreter itself, which starts in a third of the time without the others.
CLIENT = """#!{python} -SE
import _signal, _socket, marshal, posix, sys

def is_open(number):
    try:
        return posix.fstat(number) is not None
    except OSError:
        return False

files = [number for number in (0, 1, 2) if is_open(number)]
server = _socket.socket(_socket.AF_UNIX)
server.connect({path!r})
# What is ignored stays ignored, as in the jobs in the background of a shell.
if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:
    _signal.signal(_signal.SIGINT, lambda *_: server.send(b"i"))
_signal.signal(_signal.SIGUSR1, lambda *_: server.send(b"u"))
message = marshal.dumps([sys.argv, posix.getcwd(), dict(posix.environ), files])
numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
sent = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)] if files else []
server.sendmsg([len(message).to_bytes(4, "big")], sent)
server.sendall(message)
status = int(server.recv(16) or b"1")
if status < 0:
    _signal.signal(-status, _signal.SIG_DFL) if status != -9 else None
    posix.kill(posix.getpid(), -status)
posix._exit(status)
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
    from torch.utils.data import _utils

    from tests import quick_options, quick_seeds

    for target in COMMANDS.values():
        importlib.import_module(target.split(":")[0])
    # What the first optimiser of a process imports for two seconds, and the first figure.
    for name in ("torch._dynamo", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        importlib.import_module(name)
    quick_options.install()
    quick_seeds.install()
    _read_options()
    # Processes that read data look for new work, and for their end, every five seconds.
    for module in (_utils, _utils.worker):
        module.MP_STATUS_CHECK_INTERVAL = 0.1
    # PyTorch would take its operators apart at the end of every command.
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False
    report, reported = Path(path + ".report"), Counter[str]()
    listener, (ended, wake) = socket.socket(socket.AF_UNIX), socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    listener.bind(path + ".partial")
    listener.listen()
    os.rename(path + ".partial", path)
    # What is there now stays: collections of garbage in the forked processes need not look at it.
    gc.collect()
    gc.freeze()
    running: dict[int, socket.socket] = {}
    while _is_running(owner):
        ready, _, _ = select.select([listener, ended], [], [], 1)
        if ended in ready:
            ended.recv(100)
            _tell_how_they_ended(running)
        if listener in ready:
            client, _ = listener.accept()
            _learn(report, reported)
            process = os.fork()
            if process == 0:
                for other in (listener, ended, wake, *running.values()):
                    other.close()
                _run(client, report)
            running[process] = client


def _tell_how_they_ended(running: dict[int, socket.socket]) -> None:
    """Tell the clients of all commands that have ended: exit status, or less than 0 for a signal."""
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        # A client that was killed asks no more.
        with running.pop(process) as client, contextlib.suppress(OSError):
            client.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _read_options() -> None:
    """Read options as commands do: what that leaves behind all forks have."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.utils import import_user_module

    import_user_module(Namespace(user_dir=str(REPOSITORY / "fairseq_plugins")))
    for kind, line in USUAL_OPTIONS.items():
        parser = getattr(options, f"get_{kind}_parser")()
        convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, input_args=line.split()))


def _learn(report: Path, reported: Counter[str]) -> None:
    """Keep what commands report to have worked out of options, for those that come after them."""
    from hydra.errors import HydraException

    from tests import quick_options

    lines = report.read_text().splitlines()[reported.total() :] if report.exists() else []
    for line in lines:
        reported[line] += 1
        what = json.loads(line)
        # Most texts come once, those with paths. Defaults always come again.
        if reported[line] == (2 if isinstance(what, str) else 1):
            # This process knows no classes that a command has from elsewhere.
            with contextlib.suppress(HydraException):
                quick_options.learn(what)
    if lines:
        # Else every command would look at it at its end, for 60 ms.
        gc.freeze()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _obey(client: socket.socket) -> None:
    """Pass on what interrupts the client, to all that this command started, and SIGUSR1; end them as it was ended."""
    while (sent := client.recv(1)) in (b"i", b"u"):
        if sent == b"i":
            os.killpg(0, signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGUSR1)
    os.killpg(0, signal.SIGKILL)


def python() -> None:
    """`python -m MODULE`, `python -c CODE`, `python -` with the code on standard input, `python FILE`."""
    kind, *rest = (argument for argument in sys.argv[1:] if argument != "-u")
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


def _receive(client: socket.socket) -> tuple[list[str], str]:
    """Take over what the client is started with: its files, folder and environment; its arguments, its folder."""
    length, files, _, _ = socket.recv_fds(client, 4, 3)
    message = b""
    while len(message) < int.from_bytes(length, "big"):
        message += client.recv(1 << 16)
    arguments, folder, environment, numbers = marshal.loads(message)
    for number, file in zip(numbers, files, strict=True):
        os.dup2(file, number)
        os.close(file)
    for number in {0, 1, 2}.difference(numbers):
        os.close(number)
    os.chdir(folder)
    os.environ.clear()
    os.environb.update(environment)
    sys.stdin = open(0) if 0 in numbers else None
    sys.stdout = open(1, "w") if 1 in numbers else None
    sys.stderr = open(2, "w", buffering=1) if 2 in numbers else None
    if sys.stdout is not None and os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(sys.stdout.detach().detach(), write_through=True)
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return arguments, folder


def _run(client: socket.socket, report: Path) -> None:
    """Run one command in this forked process, report what others will need, too, and end it."""
    from fairseq.utils import import_user_module

    from fairseq_plugins.output import lower_log_level, watch_output
    from fairseq_plugins.stopping import stop_on_request
    from tests import quick_options

    known = quick_options.worked_out()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    (program, *arguments), folder = _receive(client)
    name = os.path.basename(program)
    threading.Thread(target=_obey, args=[client], daemon=True).start()
    sys.argv = [name, *arguments]
    if name in ("fairseq-train", "fairseq-generate", "fairseq-validate"):
        # By default they start a process that reads the data. Options that come later count.
        sys.argv[1:1] = ["--num-workers", "0"]
    # What torchrun starts comes from here, too.
    os.environ["PYTHON_EXEC"] = os.path.join(os.path.dirname(program), "python")
    # The script's own link to the plugin, which is imported already.
    import_user_module.memo = {os.path.join(folder, "fairseq_plugins")}
    module_name, function = COMMANDS[name].split(":")
    module = importlib.import_module(module_name)
    if name in ("fairseq-train", "fairseq-interactive", "fairseq-preprocess"):
        # They say where the log goes before they import anything else. Here others came before them.
        logging.root.handlers.clear()
        importlib.reload(module)
    if name.startswith("spec-dec-") or "--user-dir" in arguments:
        # As importing the plugin does, which came before the command had its output.
        watch_output()
        lower_log_level()
        stop_on_request()
    status = 1
    try:
        status = getattr(module, function)() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str) and sys.stderr is not None:
            print(end.code, file=sys.stderr)
    except BaseException as error:
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())
    with report.open("ab", buffering=0) as file:
        # At once: of several commands each writes whole lines.
        lines = [f"{json.dumps(what)}\n" for what in quick_options.worked_out() if what not in known]
        file.write("".join(lines).encode())
    _end(status)


def _end(status: int) -> None:
    """The rest of what the end of a process brings."""
    gc.collect()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            status = status if status == -signal.SIGINT else 120
            if stream is sys.stdout and sys.stderr is not None:
                print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr)
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))

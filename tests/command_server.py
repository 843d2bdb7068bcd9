"""Run console commands of tested scripts in forks of a server that has imported torch and fairseq.

A recipe runs about twenty commands, whose imports take seconds each. Here commands on PATH are small clients that pass
arguments, environment and files to the server. Killing a client also kills its command.
"""

import atexit
import contextlib
import gc
import importlib
import importlib.util
import io
import logging
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
import tomllib
import warnings
import weakref
from argparse import Namespace
from importlib.metadata import entry_points
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def own_commands() -> dict[str, str]:
    """Return command -> module:function, from pyproject.toml."""
    scripts: dict[str, str] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    return scripts


# This project's commands, those of fairseq, and others that the recipes call.
COMMANDS = {
    **{
        script.name: script.value
        for script in entry_points(group="console_scripts")
        if script.name.startswith("fairseq-") or script.name in ("sacremoses", "subword-nmt")
    },
    **own_commands(),
    "python": "tests.command_server:python",
}

USUAL_OPTIONS = [
    ("training", "--task spec_dec --arch block_nat --criterion glat_loss"),
    ("training", "--task translation --arch transformer --criterion label_smoothed_cross_entropy"),
    ("training", "--task translation --arch transformer --criterion cross_entropy"),
    ("generation", "--task spec_dec --path model.pt"),
    ("generation", "--task translation --path model.pt"),
]

# Imports only built-in modules: then Python starts three times as fast.
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
# An ignored SIGINT stays ignored, as in background jobs of a shell.
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
    """Write clients of all commands to `folder`/bin, to be put first on PATH, and start the server.

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

    from tests import quick_options

    for target in COMMANDS.values():
        importlib.import_module(target.split(":")[0])
    importlib.import_module("torch._dynamo")  # which the first optimiser of a process imports, in two seconds
    quick_options.install()
    _read_options()
    # Data workers check for work, and for the end of their parent, every five seconds by default.
    for module in (_utils, _utils.worker):
        module.MP_STATUS_CHECK_INTERVAL = 0.1
    # Skip PyTorch's slow clean-up of operators at the end of each command.
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path + ".partial")
    listener.listen()
    os.rename(path + ".partial", path)
    # Existing objects stay alive, so garbage collections in forks need not visit them.
    gc.collect()
    gc.freeze()
    # A file that can be read when a command has ended -> its process and its client.
    commands: dict[int, tuple[int, socket.socket]] = {}
    while _is_running(owner):
        clients = [client for _, client in commands.values()]
        ready, _, _ = select.select([listener, *commands, *clients], [], [], 1)
        for ended, (process, client) in list(commands.items()):
            if ended in ready:
                _, status = os.waitpid(process, 0)
                with client, contextlib.suppress(OSError):  # a killed client has closed its socket
                    client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                os.close(ended)
                del commands[ended]
            elif client in ready:
                _pass_signal(client, process)
        if listener in ready:
            client, _ = listener.accept()
            length, files, _, _ = socket.recv_fds(client, 4, 3)
            message = client.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            process = os.fork()
            if process == 0:
                os.setpgid(0, 0)
                for opened in (listener, client, *clients):
                    opened.close()
                _run(*_adopt(message, files))
            for file in files:
                os.close(file)
            with contextlib.suppress(OSError):
                os.setpgid(process, process)
            commands[os.pidfd_open(process)] = process, client


def _is_running(process: int) -> bool:
    """Return whether a process has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _pass_signal(client: socket.socket, process: int) -> None:
    """Pass a client's SIGINT on to the process group of its command, and SIGUSR1 to its process; kill all with it."""
    sent = client.recv(1)
    if sent == b"u":
        os.kill(process, signal.SIGUSR1)
    else:
        os.killpg(process, signal.SIGINT if sent == b"i" else signal.SIGKILL)


def _read_options() -> None:
    """Parse typical options, so that forks inherit the caches that this fills."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.utils import import_user_module

    import_user_module(Namespace(user_dir=str(REPOSITORY / "fairseq_plugins")))
    for kind, line in USUAL_OPTIONS:
        parser = getattr(options, f"get_{kind}_parser")()
        more = " --optimizer adam --lr-scheduler inverse_sqrt" if kind == "training" else ""
        arguments = options.parse_args_and_arch(parser, input_args=f"data {line}{more}".split())
        convert_namespace_to_omegaconf(arguments)


def python() -> None:
    """Run `python -m MODULE`, `python -c CODE`, `python -` (code on standard input) or `python FILE`."""
    kind, *rest = (argument for argument in sys.argv[1:] if argument != "-u")
    if kind == "-m":
        found = importlib.util.find_spec(rest[0])
        # As Python sets it: exit handlers ask which program this is.
        sys.argv = [(found and found.origin) or rest[0], *rest[1:]]
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


def _adopt(message: bytes, files: list[int]) -> tuple[list[str], str]:
    """Adopt a client's open files, working folder and environment; return its arguments and its folder."""
    try:
        arguments, folder, environment, numbers = marshal.loads(message)
    except EOFError:  # the client was killed
        os._exit(1)
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


def _run(arguments: list[str], folder: str) -> None:
    """Run a command in this fork, and exit."""
    from fairseq.utils import import_user_module

    from fairseq_plugins.checkpoint.tool_errors import set_hooks
    from fairseq_plugins.errors import on_command_line, spell_as
    from fairseq_plugins.process.output import lower_log_level, watch_output
    from fairseq_plugins.process.training import stop_on_request

    signal.signal(signal.SIGINT, signal.default_int_handler)
    program, *arguments = arguments
    name = os.path.basename(program)
    sys.argv = [name, *arguments]
    if name in ("fairseq-train", "fairseq-generate", "fairseq-validate"):
        # By default they start a data worker. A later option takes precedence.
        sys.argv[1:1] = ["--num-workers", "0"]
    # Let torchrun start its processes through the server, too.
    os.environ["PYTHON_EXEC"] = os.path.join(os.path.dirname(program), "python")
    # The script's checkout links to the plugin, which is already imported.
    import_user_module.memo = {os.path.join(folder, "fairseq_plugins")}
    module_name, function = COMMANDS[name].split(":")
    module = importlib.import_module(module_name)
    if name in ("fairseq-train", "fairseq-interactive", "fairseq-preprocess"):
        # They configure logging when imported, which must happen after the output is redirected.
        logging.root.handlers.clear()
        importlib.reload(module)
    if name.startswith("spec-dec-") or "--user-dir" in arguments:
        # Importing the plugin does this, but the server imported it before the output was redirected.
        set_hooks()
        spell_as(on_command_line)
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
    _end(status)


def _end(status: int) -> None:
    """End the process as Python does: exit handlers, flushing, exit status."""
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

"""The process of fairseq-train: its end on request, the end of its process groups, and `--bf16` on a GPU.

Slurm sends SIGUSR1 before a time limit, and a training ends with a checkpoint. fairseq stops and saves after the update
that reaches --max-update, so a request lowers --max-update, at once or after a validation that is due. Only the first
of several processes saves and stops; it then fails, for which torchrun ends the others.

The settings are a local variable of fairseq's loop, which the handler gets from Python as a frame: nothing that fairseq
calls in the loop knows them (its older tasks and optimizers have only their own), and fairseq is not patched.
"""

import atexit
import math
import os
import select
import signal
import sys
import threading
import time
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from fairseq import options
from fairseq.distributed.utils import get_global_group
from omegaconf import OmegaConf
from torch import distributed

from fairseq_plugins.process.ending import FAILED

STOP_FILE = "SPEC_DEC_STOP_FILE"
"""Variable that names a file whose existence asks for the same: a signal does not reach the processes of torchrun."""

_SECONDS = 0.5
_LOOP = "fairseq_cli.train"
_NOT_DUE = "spec_dec_not_due"


def stop_on_request() -> None:
    """Let SIGUSR1 or the file of `STOP_FILE` end fairseq-train after its update, or a validation that is due."""
    if Path(sys.argv[0]).name != "fairseq-train":
        return
    signal.signal(signal.SIGUSR1, _stop)
    if os.environ.get(STOP_FILE):
        threading.Thread(target=_wait_for, args=[Path(os.environ[STOP_FILE])], daemon=True).start()


def _wait_for(file: Path) -> None:
    """Stop when the file exists, or when the runner, which holds the ends of two pipes, was killed: none notes the end.

    torchrun, the parent of its processes, lives on. So does srun, which reads the output and passes the input on.
    """
    runner = select.poll()  # reports only that the other end of a pipe is closed
    runner.register(0, 0)
    if runner.poll(0):  # a launcher that passes no input on
        runner.unregister(0)
    runner.register(1, 0)
    while not file.exists():
        if runner.poll(1000 * _SECONDS):
            file.touch()  # for processes that another program has started
    os.kill(os.getpid(), signal.SIGUSR1)


def _end_after_training() -> None:
    """End one of several processes after its checkpoint, and thereby the others: fairseq would wait for them.

    `main` of fairseq-train returns when all checkpoints are written, those of --save-async, too.
    """
    main = threading.main_thread().ident
    while distributed.is_initialized():
        if _find("main", sys._current_frames().get(main or 0)) is None:
            os._exit(FAILED)
        time.sleep(_SECONDS)


def _find(function: str, frame: FrameType | None) -> FrameType | None:
    """Return the frame of a function of fairseq-train among a frame and its callers."""
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != (_LOOP, function):
        frame = frame.f_back
    return frame


_asked_at: list[int] = []  # numbers of updates at requests in fairseq's loop, the first one first


def _validates_soon(frame: FrameType) -> bool:
    """Return whether fairseq may validate this update or one beside it, which it would not do after a restart.

    False two updates after the first request: some trainings validate all the time, and then while they stop.
    """
    cfg, done, batches = frame.f_locals["cfg"], frame.f_locals["trainer"].get_num_updates(), frame.f_locals.get("itr")
    if cfg.dataset.disable_validation:
        return False
    _asked_at.append(done)
    intervals = (cfg.checkpoint.save_interval_updates, cfg.dataset.validate_interval_updates)
    # An update is counted before its validation.
    is_due = any(every > 0 and (done + 1) % every <= 1 for every in intervals)
    ends_epoch = getattr(batches, "n", 0) + 1 >= getattr(batches, "total", math.inf)
    return (is_due or ends_epoch) and done < _asked_at[0] + 2


def _is_not_due() -> bool:
    """Return whether fairseq, which asks before a validation, would not have validated this update without a request.

    The first process, which stops, would then validate alone: it may exceed the time left, and needs all processes.
    """
    saving = _find("validate_and_save", sys._getframe())
    if saving is None:
        return True
    given = saving.f_locals
    cfg, done = given["cfg"], given["num_updates"]
    if given["end_of_epoch"]:
        intervals = [(cfg.dataset.validate_interval, given["epoch_itr"].epoch)]
    else:
        intervals = [(cfg.checkpoint.save_interval_updates, done)]
    intervals.append((cfg.dataset.validate_interval_updates, done))
    return not any(every > 0 and count % every == 0 for every, count in intervals)


OmegaConf.register_new_resolver(_NOT_DUE, _is_not_due, replace=True)


def _stop(number: int, frame: FrameType | None) -> None:
    if distributed.is_initialized() and distributed.get_rank() > 0:
        return
    frame = _find("train", frame)
    # None: before the first update or between two epochs.
    if frame is None or _validates_soon(frame):
        timer = threading.Timer(_SECONDS, os.kill, [os.getpid(), number])  # try again
        timer.daemon = True
        timer.start()
        return
    cfg, updates = frame.f_locals["cfg"], frame.f_locals["trainer"].get_num_updates()
    if 0 < cfg.optimization.max_update <= updates + 1:  # ends by itself; a restart would train one update more
        return
    cfg.optimization.max_update = 1
    cfg.dataset.disable_validation = cfg.dataset.disable_validation or f"${{{_NOT_DUE}:}}"
    threading.Thread(target=_end_after_training, daemon=True).start()


def destroy_process_groups_at_exit() -> None:
    """Let fairseq's process groups end before the interpreter, which fairseq leaves them to."""
    atexit.register(_destroy_process_groups)


def _destroy_process_groups() -> None:
    """Destroy process groups, and wait for their threads.

    A thread of gloo frees the tensors of a reduction after this was waited for. Once the interpreter ends, freeing one
    aborts the process (pytorch/pytorch#179291). After an error others may still communicate: nothing is destroyed.
    """
    if distributed.is_initialized() and getattr(sys, "last_value", None) is None:
        vars(get_global_group).pop("_global_group", None)  # where fairseq keeps a group, with its threads
        distributed.destroy_process_group()


def bf16_without_tpu() -> None:
    """Let fairseq's parser ask for a TPU only where `--tpu` is given, not for `--bf16`."""
    parse = options.parse_args_and_arch

    @wraps(parse)
    def parse_without_tpu(*args: Any, **kwargs: Any) -> Any:
        parsed = parse(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        arguments = kwargs.get("input_args")
        if getattr(namespace, "bf16", False) and "--tpu" not in (sys.argv if arguments is None else arguments):
            namespace.tpu = False
        return parsed

    options.parse_args_and_arch = parse_without_tpu

"""Errors of fairseq's tools as one line: their hooks, which look for the file that is wrong."""

import contextlib
import errno
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from fairseq_plugins.errors import ConfigurationError, explain, on_command_line, one_line
from fairseq_plugins.process.ending import set_failed
from fairseq_plugins.process.output import abandon_output, is_output_failure, say, say_interrupted, say_output_failure
from fairseq_plugins.shared.fairseq_errors import wrong_option
from fairseq_plugins.shared.files import is_own_file, unwritable


def set_hooks() -> None:
    """Print errors that nothing catches as one line, those of threads as well."""
    sys.excepthook, threading.excepthook = excepthook, thread_excepthook


def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line for errors that have one, in place of `sys.excepthook`; all others keep their traceback.

    fairseq's tools print a traceback through hydra for a mistyped file name. The exit status stays 1. Ctrl-C and an
    unwritable standard output print no traceback either. After Ctrl-C Python lets SIGINT end the process, as other
    programs do: a shell sees 130, and ends its own loop.
    """
    if isinstance(error, KeyboardInterrupt):
        say_interrupted()
    elif is_output_failure(error):
        say_output_failure(error)
        abandon_output()
    else:
        explained = explain_in_tool(error)
        if explained is None:
            sys.__excepthook__(kind, error, trace)
        else:
            _tell(explained)
    with contextlib.suppress(OSError):
        _set_aside_results(trace)


def _set_aside_results(trace: TracebackType | None) -> None:
    """Rename the unfinished file that fairseq-generate writes in --results-path, or remove it if it is empty.

    fairseq opens it under its final name, before anything can fail.
    """
    for frame, _ in traceback.walk_tb(trace):
        if Path(frame.f_code.co_filename).parts[-2:] != ("fairseq_cli", "generate.py") or "h" not in frame.f_locals:
            continue
        file = Path(frame.f_locals["output_path"])
        if not is_own_file(file):
            continue
        if file.stat().st_size == 0:
            file.unlink()
        else:
            partial = file.rename(file.with_name(f"{file.name}.partial"))
            say(f"--results-path {file.parent}: not finished; the lines so far are in {partial}")


def thread_excepthook(given: threading.ExceptHookArgs) -> None:
    """Print one line for an error in a thread that has one, in place of `threading.excepthook`, and fail at the end."""
    explained = None if given.exc_value is None else explain_in_tool(given.exc_value)
    if explained is None:
        threading.__excepthook__(given)
    else:
        set_failed()
        _tell(explained)


# Lines about TensorBoard's files: each of its writers has a thread, whose error the main thread raises again.
_tensorboard_lines: set[str] = set()
_telling = threading.Lock()


def _tell(explained: ConfigurationError) -> None:
    """Print an error. Close TensorBoard's writers if it is about them: at exit they would raise it once more."""
    line = f"error: {explained.spelled(on_command_line)}"
    with _telling:
        if line in _tensorboard_lines:
            return
        if explained.option == "--tensorboard-logdir":
            _tensorboard_lines.add(line)
            vars(sys.modules["fairseq.logging.progress_bar"])["_tensorboard_writers"].clear()
        say(line)


def explain_in_tool(error: BaseException) -> ConfigurationError | None:
    """Return what `explain` does, or what is wrong with a file or an option that this tool of fairseq was given."""
    explained = explain(error)
    if explained is None or isinstance(error, OSError):
        # Whatever fails while an error is looked at, that error is shown.
        with contextlib.suppress(Exception, SystemExit):
            from fairseq_plugins.shared.parsing import arguments_of_fairseqs_tool

            given = arguments_of_fairseqs_tool()
            explained = _wrong_file(error, given) or wrong_option(error, given) or explained
    return explained


def _wrong_file(error: BaseException, given: Mapping[str, Any]) -> ConfigurationError | None:
    """Return what is wrong with a file of a command line: fairseq's errors do not name it."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [code.co_filename for code in codes]
    results = given.get("results_path")
    if isinstance(error, OSError) and results is not None:
        is_printing = error.filename is None and "fairseq_cli" in Path(files[-1]).parts
        folder, file = (Path(os.fsdecode(name or "")).absolute() for name in (results, error.filename))
        if is_printing or file.is_relative_to(folder) or (error.filename and file in folder.parents):
            return unwritable(results, "--results-path", error)
    logdir = given.get("tensorboard_logdir")
    if isinstance(error, OSError) and logdir is not None and any("tensorboard" in Path(file).parts for file in files):
        return unwritable(logdir, "--tensorboard-logdir", error)
    full = _full_disk(error)
    if full is not None and any(code.co_name == "save_checkpoint" for code in codes):
        return unwritable(given.get("save_dir") or "", "--save-dir", full)
    try:
        check_dictionaries(given.get("data") or "")
        check_sentencepiece(given.get("sentencepiece_model"))
        if any(file.endswith("checkpoint_utils.py") for file in files):
            _check_checkpoints(error, given)
    except ConfigurationError as found:
        return found
    return None


def _full_disk(error: BaseException | None) -> OSError | None:
    """Return the error of a full disk that led to this one, which torch's writer of archives hides."""
    while error is not None and not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        error = error.__context__
    return error


def check_dictionaries(data: str) -> None:
    """Raise ConfigurationError for a dictionary in these folders, with colons between, that fairseq cannot read."""
    from fairseq.data import Dictionary

    for file in (file for folder in data.split(":") for file in sorted(Path(folder).glob("dict.*.txt"))):
        try:
            Dictionary.load(str(file))
        except Exception as error:
            problem = f"not a dictionary of fairseq-preprocess ({one_line(error, 200)})"
            raise ConfigurationError(None, file, problem, "copy it again or binarise the data anew") from error


def check_sentencepiece(file: str | None) -> None:
    """Raise ConfigurationError for a model of sentencepiece that cannot be read."""
    from omegaconf import MISSING
    from sentencepiece import SentencePieceProcessor

    if file == MISSING:
        raise ConfigurationError("--sentencepiece-model", None, "is missing", "give the file")
    if file is not None:
        try:
            file.encode()
            SentencePieceProcessor(model_file=file)
        except UnicodeEncodeError as error:
            problem = "sentencepiece opens no file whose path is not UTF-8"
            raise ConfigurationError(None, file, problem, "rename it or its folder") from error
        except Exception as error:
            problem = f"not a model of sentencepiece ({one_line(error, 200)})"
            raise ConfigurationError(None, file, problem, "copy it again") from error


def _check_checkpoints(error: BaseException, given: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a checkpoint that fairseq could not load."""
    from fairseq_plugins.checkpoint.loading import misfit, read_state

    path, restored = given.get("path") or "", given.get("restore_file") or ""
    for file in (*path.split(":"), given.get("finetune_from_model")):
        if file:
            read_state(file, "--finetune-from-model" if file == given.get("finetune_from_model") else "--path")
    # A training begins without the last checkpoint where there is none yet.
    if os.path.isfile(restored):
        read_state(restored, "--restore-file")
    last = Path(given.get("save_dir") or "", restored)
    if last.is_file():
        try:
            read_state(str(last), None)
        except ConfigurationError as damaged:
            # fairseq copies it from another one, which takes a while.
            others = sorted(last.parent.glob("checkpoint*.pt"), key=os.path.getmtime)
            newest = next((other for other in reversed(others) if other.name != last.name), None)
            if newest is None or "truncated" not in damaged.problem:
                raise
            remedy = f"copy {newest.name} in its place, and run the same command again"
            raise ConfigurationError(None, last, "cut off, perhaps by the end of the training", remedy) from damaged
    other = re.match(r"Cannot load model parameters from checkpoint (.*); please ensure", str(error))
    if other is not None and isinstance(error.__context__, ConfigurationError):
        raise error.__context__
    if other is not None:
        problem = f"does not fit this training's options and dictionaries ({one_line(error.__context__, 300)})"
        remedy = "give those of its training, or another {--save-dir}"
        raise ConfigurationError(None, other[1], problem, remedy)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "load_model_ensemble_and_task" and isinstance(error, Exception):
            file = frame.f_locals["filename"]
            found = misfit("--lm-path" if file == given.get("lm_path") else "--path", file, error)
            if found is not None:
                raise found

"""Configuration errors, and how they reach the user: one line on stderr instead of a traceback."""

import pickle
import sys
import traceback
from types import TracebackType


class ConfigurationError(ValueError):
    """A wrong option or input. The message names the option, its value and the remedy."""


def explain(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the one-line message for errors that the user can mend, None for all others.

    Besides our own `ConfigurationError` this covers what fairseq raises while it loads a checkpoint, where no code of
    the plugin runs: a missing file, a file that torch cannot read, and weights that do not fit.
    """
    if isinstance(error, ConfigurationError):
        return " ".join(str(error).split())
    file, is_reading = _checkpoint_in(trace)
    if file is None:
        return None
    if isinstance(error, OSError) and "Model file not found" in str(error):
        return f"{file}: no such file; give the checkpoint that fairseq-train wrote (checkpoint_best.pt)"
    reason = " ".join(str(error).split())[:300] or "unexpected end of file"
    if is_reading and isinstance(error, (RuntimeError, EOFError, pickle.UnpicklingError)):
        return f"{file}: truncated or not a fairseq checkpoint ({reason}); copy it again or train it anew"
    if isinstance(error, RuntimeError) and reason.startswith("Error(s) in loading state_dict"):
        return (
            f"{file}: its weights do not fit this data's dictionaries or its own settings ({reason}); "
            "use the data folder and the dictionaries that it was trained with"
        )
    return None


def _checkpoint_in(trace: TracebackType | None) -> tuple[str | None, bool]:
    """The checkpoint that fairseq was loading, with `--path` where that named it, and whether it was still reading."""
    file, option, is_reading = None, "", False
    for frame, _ in traceback.walk_tb(trace):
        if not frame.f_code.co_filename.endswith("checkpoint_utils.py"):
            continue
        if frame.f_code.co_name == "load_model_ensemble_and_task":
            file, option = frame.f_locals.get("filename"), "--path "
        elif frame.f_code.co_name == "load_checkpoint_to_cpu":
            file, is_reading = frame.f_locals.get("path"), True
    return (None if file is None else f"{option}{file}"), is_reading


def install_one_line_errors() -> None:
    """Make `sys.excepthook` print `explain`'s line for errors that have one; all others keep their traceback.

    fairseq's command-line tools have no place to turn an exception into a message, and a user who mistyped a file
    name is not helped by forty lines of hydra frames. The exit status stays 1.
    """
    previous = sys.excepthook
    if getattr(previous, "explains_configuration_errors", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        message = explain(error, trace)
        if message is None:
            previous(kind, error, trace)
        else:
            print(f"error: {message}", file=sys.stderr)

    hook.explains_configuration_errors = True  # type: ignore[attr-defined]
    sys.excepthook = hook

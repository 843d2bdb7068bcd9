"""Configuration errors, printed as one line on stderr instead of a traceback."""

import ast
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from fairseq_plugins.process.output import abandon_output, is_output_failure, is_tool, say, say_output_failure

# Assertions of fairseq's tools about options; their other assertions are about the program.
_ASSERTED_OPTION = re.compile(r"--[a-z]")


Spelling = Callable[[str, Any], str]
"""How an option and its value (None: not shown) are written."""


def on_command_line(option: str, value: Any) -> str:
    """Write an option as fairseq's commands take it: `--block-size 3`."""
    return option if value is None else f"{option} {value}"


# Options whose argument in Python has another name, and flags that are the value of one.
ARGUMENTS = {"--path": "verifier", "--drafter-path": "drafter", "--nbest": "num_hypotheses"}
_FLAGS = {"--cpu": ("device", "cpu"), "--fp16": ("precision", "fp16"), "--bf16": ("precision", "bf16")}


def in_python(option: str, value: Any) -> str:
    """Write an option as an argument in Python: `block_size=3`, `decoder="gad"`; `drafts=` without a value."""
    name, value = _FLAGS.get(option, (ARGUMENTS.get(option, option[2:].replace("-", "_")), value))
    if value is None:
        return f"{name}="
    return f"{name}=" + (f'"{value}"' if isinstance(value, (str, os.PathLike)) else f"{value!r:.200}")


def as_command(options: Collection[str], settable: Collection[str]) -> Spelling:
    """Return the spelling of a command that names options as Python does.

    Args:
        options: names of the command's own options, with underscores.
        settable: names of those that it takes as `--set NAME=VALUE`.
    """

    def spell(option: str, value: Any) -> str:
        name = in_python(option, None).removesuffix("=")
        name = "nbest" if name == "num_hypotheses" else name
        if name not in options:
            given = f"--set {name}" + ("" if value is None else f"={value}")
            return given if name in settable else on_command_line(option, value)
        return on_command_line(flag(name), _FLAGS.get(option, (name, value))[1])

    return spell


_spelling: Spelling = in_python


@contextmanager
def spelled_as(spelling: Spelling) -> Iterator[None]:
    """Show errors inside with another spelling of options: that of a command."""
    global _spelling
    before, _spelling = _spelling, spelling
    try:
        yield
    finally:
        _spelling = before


class ConfigurationError(ValueError):
    """A wrong option or input, shown as one line: `--block-size 0: give at least 1`.

    Problem and remedy mention options in braces, `{--decoder}` or `{--decoder gad}` (in f-strings `{{--decoder gad}}`),
    since commands and programs in Python spell them differently.

    Attributes:
        option: `--name` of fairseq's commands; the name of anything else, such as `text[3]`; or None.
        value: what was given; without an option the file that is wrong; None if it says nothing.
        problem: what is wrong.
        remedy: what to do.
    """

    def __init__(self, option: str | None, value: Any = None, problem: str = "", remedy: str = "") -> None:
        super().__init__(option, value, problem, remedy)
        self.option, self.value, self.problem, self.remedy = option, value, problem, remedy

    def __str__(self) -> str:
        """Return the line with the options spelled as this process takes them."""
        return self.spelled(_spelling)

    @property
    def is_text(self) -> bool:
        """Whether this is a whole message, of which nothing is known."""
        return not self.problem and not self.remedy

    def spelled(self, spelling: Spelling) -> str:
        """Return the line with options in this spelling."""
        if self.is_text:
            return " ".join(str(self.option).split())
        if self.option is not None and self.option.startswith("--"):
            shown = spelling(self.option, self.value)
            subject = [shown.removesuffix("=") if self.value is None else shown]
        else:
            subject = [str(part) for part in (self.option, self.value) if part is not None]
        text = "; ".join(_with_options(part, spelling) for part in (self.problem, self.remedy) if part)
        return " ".join(": ".join([*([" ".join(subject)] if subject else []), text]).split())


def _with_options(text: str, spelling: Spelling) -> str:
    """Spell the options in braces."""
    first, *others = text.split("{--")
    for other in others:
        option, _, rest = other.partition("}")
        name, _, value = option.partition(" ")
        first += spelling(f"--{name}", _literal(value) if value else None) + rest
    return first


def _literal(text: str) -> Any:
    """Return the number or True that a text is, else the text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def unknown_value(option: str, value: Any, known: Iterable[str]) -> ConfigurationError:
    """Return the error of a value that is not among those known."""
    names = [*known]
    return ConfigurationError(
        option, value, "no such value", did_you_mean(str(value), names) or f"choose from {', '.join(names)}"
    )


def flag(name: str) -> str:
    """Return the option of a field or an argument."""
    return "--" + name.replace("_", "-")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the nearest of these names; empty if none is similar."""
    from difflib import get_close_matches

    nearest = get_close_matches(name, sorted(known), n=2, cutoff=0.7)
    shown = [f"{{{name}}}" if name.startswith("--") else name for name in nearest]
    return f"did you mean {' or '.join(shown)}?" if nearest else ""


CHECKPOINTS = ("verifier.pt", "checkpoint_best.pt", "checkpoint_last.pt")
"""Names of a model's checkpoint in a folder, the best first."""


def nearest_checkpoint(path: str) -> str:
    """Return ", such as FILE", with the best checkpoint in a folder, or in that of a missing file; empty for none."""
    folder = path if os.path.isdir(path) else os.path.dirname(path) or "."
    found = next((name for name in CHECKPOINTS if os.path.isfile(os.path.join(folder, name))), None)
    return "" if found is None else f", such as {os.path.join(folder, found)}"


def explain(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the one-line message for errors that the user can fix, None for all others.

    Besides `ConfigurationError` this covers errors that fairseq raises outside the plugin: while it loads a checkpoint
    (a missing or unreadable file, weights that do not fit), and when it checks its options.
    """
    if isinstance(error, ConfigurationError):
        return str(error)
    if isinstance(error, AssertionError) and _ASSERTED_OPTION.match(str(error)) and _is_fairseqs_own(trace):
        return f"{error}; --decoder beam alone samples" if "--sampling" in str(error) else str(error)
    if type(error).__name__ == "OutOfMemoryError":  # of PyTorch; by name, to avoid its import
        reason = " ".join(str(error).split())[:200]
        return f"out of memory on the GPU ({reason}); lower --batch-size or --max-tokens, or decode with --cpu"
    bad_data = _bad_data(error, trace)
    if bad_data is not None:
        return bad_data
    results = _results_folder(trace)
    if isinstance(error, OSError) and results is not None and _is_in(results, error, trace):
        return (
            f"--results-path {results}: cannot be written ({error.strerror}); free disk space, or give another folder"
        )
    file, is_reading = _checkpoint_in(trace)
    if file is None:
        return None
    if isinstance(error, OSError) and "Model file not found" in str(error):
        return f"{file}: no such file; give the checkpoint that fairseq-train wrote{nearest_checkpoint(file)}"
    if is_reading:
        unreadable = unreadable_checkpoint(error)
        return None if unreadable is None else f"{file}: {unreadable}"
    reason = " ".join(str(error).split())[:300]
    if isinstance(error, KeyError) or reason.startswith("Neither args nor cfg exist"):
        return f"{file}: {NOT_OF_FAIRSEQ_TRAIN}"
    other_shapes = isinstance(error, RuntimeError) and reason.startswith("Error(s) in loading state_dict")
    if other_shapes or "requires a joined dictionary" in reason:
        return (
            f"{file}: its weights do not fit this data's dictionaries or its own settings ({reason}); "
            "use the data folder and the dictionaries that it was trained with"
        )
    return None


# Also of the compiled kernels (csrc/limits.cpp).
NAN_SCORES = "the model's scores are not numbers (NaN): its weights or activations overflow"

NOT_OF_FAIRSEQ_TRAIN = (
    "not a fairseq checkpoint (it lacks weights under 'model' or settings under 'cfg'); give one of fairseq-train"
)


def _bad_data(error: BaseException, trace: TracebackType | None) -> str | None:
    """Return the error of a dictionary, a sentencepiece model, a sentence or scores that cannot be used, or None."""
    reason = " ".join(str(error).split())[:200]
    file = _local(trace, "data/dictionary.py", "add_from_file", "f")
    if isinstance(file, str) and not isinstance(error, OSError):
        return f"{file}: not a dictionary of fairseq-preprocess ({reason}); copy it again or binarise the data anew"
    loading = ("sentencepiece/__init__.py", "LoadFromFile")
    file = _local(trace, *loading, "filename") or _local(trace, *loading, "arg")  # in older versions
    if file is not None:
        return f"{file}: not a model of sentencepiece ({reason}); copy it again"
    sentence = re.match(r"Size of sample #(\d+) is invalid \(=(.*)\) since max_positions=(.*), skip", reason)
    if sentence is not None:
        number, size, limit = (re.sub(r"np\.int\d+\((\d+)\)", r"\1", part) for part in sentence.groups())
        return (
            f"sentence {number} (from 0) has {size} tokens, and at most {limit} can be read; split it, or leave it "
            "out with --skip-invalid-size-inputs-valid-test"
        )
    longer = re.match(r"Sentences lengths should not exceed max_tokens=(\d+)", reason)
    if longer is not None:
        return f"--max-tokens {longer[1]}: a sentence has more tokens; raise it"
    embedded = _local(trace, "torch/nn/modules/sparse.py", "forward", "input")
    if reason == "a source token is outside of the vocabulary" or (embedded is not None and "out of range" in reason):
        return "the data has tokens that its dictionary does not; binarise it again with the verifier's dictionaries"
    # The second is the assertion of fairseq's search when no hypothesis ends.
    if reason == NAN_SCORES or re.fullmatch(r"(\d+) < \1", reason):
        return f"{NAN_SCORES}; decode in fp32, or give an earlier checkpoint"
    return None


def _local(trace: TracebackType | None, file: str, function: str, name: str) -> Any:
    """Return a local variable of the outermost call of a library's function in the traceback, or None."""
    for frame, _ in traceback.walk_tb(trace):
        if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
            return frame.f_locals.get(name)
    return None


def unreadable_checkpoint(error: BaseException) -> str | None:
    """Return why a checkpoint could not be read and what to do; None for errors that are not about the file."""
    if isinstance(error, IsADirectoryError):
        return f"is a folder; give a checkpoint{nearest_checkpoint(error.filename)}"
    # torch seeks before the start of a truncated file.
    is_short = isinstance(error, OSError) and error.errno == errno.EINVAL
    if isinstance(error, OSError) and not is_short:
        return f"cannot be read ({error.strerror or error}); give a checkpoint that fairseq-train wrote"
    if isinstance(error, (TypeError, AttributeError)):
        return NOT_OF_FAIRSEQ_TRAIN
    if isinstance(error, MemoryError) or not isinstance(error, Exception):
        return None
    # A damaged file lets torch's loader fail in any way: with wrong text, an empty stack, an unknown kind ...
    reason = " ".join(str(error).split())[:300] or "unexpected end of file"
    if isinstance(error, LookupError):
        reason = "not made of weights and settings"
    elif "weights_only" in reason or "Weights only" in reason:
        # torch's message explains how to turn safe loading off: do not repeat it, such a file may run any program.
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused is not None:
            return (
                f"not loaded: it refers to {refused[1]}, which no checkpoint of fairseq does, and loading it could run "
                "any program; get a checkpoint that fairseq-train wrote"
            )
        reason = "not made of weights and settings"
    return f"truncated or not a fairseq checkpoint ({reason}); copy it again or train it anew"


def _is_fairseqs_own(trace: TracebackType | None) -> bool:
    """Return whether an error was raised by the main function of one of fairseq's tools."""
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    file = frames[-1].f_code.co_filename if frames else ""
    return os.path.basename(os.path.dirname(file)) == "fairseq_cli" or file.endswith("fairseq/sequence_generator.py")


def _results_folder(trace: TracebackType | None) -> str | None:
    """Return fairseq-generate's folder of `--results-path`, or None."""
    for frame, _ in traceback.walk_tb(trace):
        if frame.f_code.co_name == "main" and frame.f_code.co_filename.endswith("fairseq_cli/generate.py"):
            common = getattr(frame.f_locals.get("cfg"), "common_eval", None)
            return getattr(common, "results_path", None)
    return None


def _is_in(results: str, error: OSError, trace: TracebackType | None) -> bool:
    """Return whether an error came from creating or writing the file in the results folder."""
    if error.filename is None:
        return _is_fairseqs_own(trace)
    return os.path.abspath(os.fsdecode(error.filename)).startswith(os.path.abspath(results))


def _checkpoint_in(trace: TracebackType | None) -> tuple[str | None, bool]:
    """Return the checkpoint that fairseq was loading (after `--path`, if that named it), and whether it was reading."""
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

    fairseq's command-line tools print a traceback through hydra for a mistyped file name. The exit status stays 1. In
    our commands and fairseq's, Ctrl-C and an unwritable standard output print no traceback either. After Ctrl-C Python
    lets SIGINT end the process, as other programs do: a shell sees 130, and ends its own loop.
    """
    global _spelling
    if is_tool():
        _spelling = on_command_line
    previous = sys.excepthook
    if getattr(previous, "explains_configuration_errors", False):
        return

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_tool():
            if isinstance(error, KeyboardInterrupt):
                say("interrupted")
                return
            if is_output_failure(error):
                say_output_failure(error)
                abandon_output()
                return
        with spelled_as(on_command_line if is_tool() else _spelling):
            message = explain(error, trace)
        if message is None:
            previous(kind, error, trace)
        else:
            say(f"error: {message}")

    hook.explains_configuration_errors = True  # type: ignore[attr-defined]
    sys.excepthook = hook

"""Errors that the user can mend: option, value, problem, remedy, spelled as the command or program takes options."""

import os
import re
import traceback
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from types import CodeType
from typing import Any

Spelling = Callable[[str, Any], str]
"""How an option and its value (None: not shown) are written."""


def on_command_line(option: str, value: Any) -> str:
    """Write an option as fairseq's commands take it: `--block-size 3`."""
    return option if value is None else f"{option} {value}"


# Options whose argument in Python has another name, and flags that are the value of one.
_ARGUMENTS = {"--path": "verifier", "--drafter-path": "drafter", "--nbest": "num_hypotheses"}
_FLAGS = {"--cpu": ("device", "cpu"), "--fp16": ("precision", "fp16"), "--bf16": ("precision", "bf16")}


def _argument(option: str, value: Any) -> tuple[str, Any]:
    return _FLAGS.get(option, (_ARGUMENTS.get(option, option[2:].replace("-", "_")), value))


def in_python(option: str, value: Any) -> str:
    """Write an option as an argument in Python: `block_size=3`, `decoder="gad"`; `drafts=` without a value."""
    name, value = _argument(option, value)
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
        name, given = _argument(option, value)
        if name in settable and name not in options:
            return f"--set {name}" + ("" if given is None else f"={given}")
        # `nbest` is the same in both.
        return on_command_line(flag(name), given) if name in options else on_command_line(option, value)

    return spell


_spelling: Spelling = in_python


def spell_as(spelling: Spelling) -> Spelling:
    """Show this process's errors with a spelling of options; return the one before."""
    global _spelling
    before, _spelling = _spelling, spelling
    return before


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

    def __init__(self, option: str | None, value: Any, problem: str = "", remedy: str = "") -> None:
        super().__init__(option, value, problem, remedy)
        self.option, self.value, self.problem, self.remedy = option, value, problem, remedy

    def __str__(self) -> str:
        """Return the line with the options spelled as this process takes them."""
        return self.spelled(_spelling)

    def spelled(self, spelling: Spelling) -> str:
        """Return the line with options in this spelling."""
        if self.option is not None and self.option.startswith("--"):
            shown = spelling(self.option, self.value)
            subject = [shown.removesuffix("=") if self.value is None else shown]
        else:
            subject = [str(part) for part in (self.option, self.value) if part is not None]
        text = "; ".join(_with_options(part, spelling) for part in (self.problem, self.remedy) if part)
        return one_line(": ".join([*([" ".join(subject)] if subject else []), text]))


def spelled(text: str) -> str:
    """Return a message with its options in braces as this process takes them."""
    return _with_options(text, _spelling)


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
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return True if text == "True" else text


def unknown_value(option: str, value: Any, known: Iterable[str]) -> ConfigurationError:
    """Return the error of a value that is not among those known."""
    names = [*known]
    remedy = did_you_mean(str(value), names) or f"choose from {', '.join(names)}"
    return ConfigurationError(option, value, "no such value", remedy)


def flag(name: str) -> str:
    """Return the option of a field or an argument."""
    return "--" + name.replace("_", "-")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean ...?" with the nearest of these names; empty if none is similar."""
    from difflib import get_close_matches

    nearest = get_close_matches(name, sorted(known), n=2, cutoff=0.7)
    shown = [f"{{{name}}}" if name.startswith("--") else name for name in nearest]
    return f"did you mean {' or '.join(shown)}?" if nearest else ""


def one_line(text: object, length: int | None = None) -> str:
    """Return a text or an error without line breaks, and with at most this many characters.

    Control characters, which would command the terminal, and halves of characters are escaped.
    """
    line = " ".join(str(text).split())
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)[:length]


class OutOfMemory(ConfigurationError):
    """Memory was refused, perhaps only until another program ends."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory was refused, for which PyTorch has no class on a CPU."""
    return isinstance(error, MemoryError) or _is_of_gpu_memory(error) or "annot allocate memory" in str(error)


def _is_of_gpu_memory(error: BaseException) -> bool:
    # The class by name, to avoid PyTorch's import. The text is that of a GPU too full for the first use by a process.
    return type(error).__name__ == "OutOfMemoryError" or "CUDA error: out of memory" in str(error)


def out_of_gpu_memory(error: BaseException, remedy: str) -> OutOfMemory:
    """Return the error of a GPU without free memory, which advises `remedy` or the CPU."""
    problem = f"out of memory on the GPU ({one_line(error, 200)})"
    return OutOfMemory(None, None, problem, f"{remedy}, or decode with {{--cpu}}")


def _codes(error: BaseException) -> list[CodeType]:
    """Return the functions that an error passed through."""
    return [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]


def _less_gpu_memory(error: BaseException) -> str:
    """Return what would take less of a GPU's memory, by where it was refused: not all depends on the batch."""
    places = _codes(error)
    if any(place.co_name == "_apply" for place in places):  # by which PyTorch moves a model
        return "the model does not fit: add {--fp16}, end other programs there"
    if any("/decoding/gpu/" in place.co_filename for place in places):
        return FEWER_SENTENCES
    return "lower {--batch-size} or {--max-tokens}"


FEWER_SENTENCES = "give fewer {--active-sentences}, such as 32"
"""What takes less memory in the GPU engine, which has it for any batch."""


# Also of the compiled kernels (csrc/limits.cpp).
NAN_SCORES = "the model's scores are not numbers (NaN): its weights or activations overflow"


def explain(error: BaseException) -> ConfigurationError | None:
    """Return a `ConfigurationError` itself, or that for a file without permission or an error of fairseq's, or None."""
    if isinstance(error, ConfigurationError):
        return error
    reason = one_line(error, 200)
    if isinstance(error, PermissionError) and error.filename is not None:
        problem = f"cannot be used ({error.strerror})"
        return ConfigurationError(None, os.fsdecode(error.filename), problem, "change its permissions, or give another")
    if isinstance(error, OSError) and any(
        "multiprocessing/synchronize" in place.co_filename for place in _codes(error)
    ):
        problem = f"cannot be used ({error.strerror}), and fairseq has locks there"
        return ConfigurationError(None, "/dev/shm", problem, "let it be writable, in a container a tmpfs")
    if isinstance(error, AssertionError) and reason.startswith("--"):  # of fairseq's commands, about their options
        both = "give both the number of samples, such as {--beam 1} {--nbest 1}"
        return ConfigurationError(None, None, reason, both if "--sampling" in reason else "")
    if is_out_of_memory(error):
        if _is_of_gpu_memory(error):
            return out_of_gpu_memory(error, _less_gpu_memory(error))
        problem = f"out of memory ({reason})" if reason else "out of memory"  # Python gives no reason
        return OutOfMemory(None, None, problem, "free some, or raise the limit of this process")
    sentence = re.match(r"Size of sample #(\d+) is invalid \(=(.*)\) since max_positions=(.*), skip", reason)
    if sentence is not None:
        number, size, limit = (re.sub(r"np\.int\d+\((\d+)\)", r"\1", part) for part in sentence.groups())
        problem = f"sentence {number} (from 0) has {size} tokens, and at most {limit} can be read"
        remedy = "split it, or leave it out with {--skip-invalid-size-inputs-valid-test}"
        return ConfigurationError(None, None, problem, remedy)
    longer = re.match(r"Sentences lengths should not exceed max_tokens=(\d+)", reason)
    if longer is not None:
        remedy = "raise it (in training: {--max-tokens-valid})"
        return ConfigurationError("--max-tokens", int(longer[1]), "a sentence has more tokens", remedy)
    # The second is PyTorch's, of an embedding.
    if reason in ("a source token is outside of the vocabulary", "index out of range in self"):
        remedy = "binarise it again with the verifier's dictionaries"
        return ConfigurationError(None, None, "the data has tokens that its dictionary does not", remedy)
    # The second is the assertion of fairseq's search when no hypothesis ends.
    if reason == NAN_SCORES or re.fullmatch(r"(\d+) < \1", reason):
        return ConfigurationError(None, None, NAN_SCORES, "decode in fp32, or give an earlier checkpoint")
    return None

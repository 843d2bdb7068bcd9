"""Errors that name options: `--block-size 3` on the command line is `block_size=3` in Python."""

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from fairseq_plugins.decoding import methods
from fairseq_plugins.errors import ConfigurationError, explain

# Options whose argument in Python has another name.
_NAMES = {"path": "verifier", "drafter-path": "drafter", "nbest": "num_hypotheses"}
_FILES = ("verifier", "drafter")
# Flags that are the value of an argument.
_VALUES = {"cpu": ("device", "cpu"), "fp16": ("precision", "fp16"), "bf16": ("precision", "bf16")}
# Options of fairseq-generate that our commands name as Python does.
_OPTIONS = {f"--{option}": f"--{name}" for option, name in _NAMES.items() if name in _FILES}
_OPTIONS |= {f"--{option}": f"--{name} {value}" for option, (name, value) in _VALUES.items()}
# Command lines within messages, which stay as they are.
_PROGRAM = re.compile(r"(?:fairseq-|spec-dec-|python -m |hf download )[^;()]*")
_SUBJECT = re.compile(r"--([a-z][a-z0-9-]*)(?: ([^:]+))?(?=: )")
_DECODERS = "|".join(re.escape(name) for name in methods.DECODERS)
_MENTION = re.compile(rf"--([a-z][a-z0-9-]*)(?: (\S+\.pt|high-[a-z]+|[a-z]+_[a-z_]+|(?:{_DECODERS})(?![\w+-])))?")


def in_python(message: str) -> str:
    """Return a message about options with the names of Python's arguments in their place."""
    subject = _SUBJECT.match(message)
    begin = ""
    if subject is not None:
        name, value = _argument(subject[1]), subject[2]
        begin = name if value is None else f"{name}{' ' if name in _FILES else '='}{value}"
        message = message[subject.end() :]
    parts, end = [begin], 0
    for program in _PROGRAM.finditer(message):
        parts += [_MENTION.sub(_mention, message[end : program.start()]), program[0]]
        end = program.end()
    return "".join([*parts, _MENTION.sub(_mention, message[end:])])


def on_command_line(error: ConfigurationError, options: Collection[str]) -> str:
    """Return the message of an error of the Python API with the names of a command's options.

    Args:
        error: the API's error.
        options: names of the command's options, with underscores.
    """
    if error.__cause__ is not None:
        message = explain(error.__cause__, error.__cause__.__traceback__) or str(error)
        for option, own in _OPTIONS.items():
            message = re.sub(rf"{option}(?![\w-])", own, message)
        return message

    def flag(match: re.Match[str]) -> str:
        name, value = {"num_hypotheses": "nbest"}.get(match[1], match[1]), match[2] or match[3]
        if name == "folder":
            return name.upper()  # the argument without an option
        if name not in options:
            return match[0]
        return f"--{name.replace('_', '-')}" + (f" {value}" if value else "")

    message = re.sub(r"^([a-z_]+)(?=[ :])()()", flag, str(error))
    return re.sub(r'\b([a-z_]+)=(?:"([^"]*)"|([^\s"]+?)(?=:))?', flag, message)


@contextmanager
def python_errors(explains: bool = False) -> Iterator[None]:
    """Name Python's arguments instead of options in the errors raised inside.

    Args:
        explains: also replace errors of fairseq's that have a one-line explanation, such as a file it cannot load.

    Raises:
        ConfigurationError: with a message of one line.
    """
    try:
        yield
    except Exception as error:
        is_own = isinstance(error, ConfigurationError)
        if isinstance(error, ConfigurationError) and not error.is_text:
            raise
        message = explain(error, error.__traceback__) if is_own or explains else None
        if message is None:
            raise
        spelled = in_python(message)
        if is_own and spelled == message:
            raise
        raise ConfigurationError(spelled) from error


def _argument(option: str) -> str:
    return _NAMES.get(option, option.replace("-", "_"))


def _mention(match: re.Match[str]) -> str:
    option, value = match.groups()
    name, value = _VALUES.get(option, (_argument(option), value))
    return f"{name}=" + (f'"{value}"' if value else "")

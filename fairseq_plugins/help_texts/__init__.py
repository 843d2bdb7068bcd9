"""`--help` and `--version` of the spec-dec-* commands, answered before torch and fairseq are imported for seconds.

The texts are what the commands themselves print; `python -m tests.help_texts` writes them anew.
"""

import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

FOLDER = Path(__file__).parent


def version() -> str:
    """Name and version of this package, and of the fairseq and the torch that it runs on."""
    found = []
    for name in ("fairseq-spec-dec", "fairseq-fixed", "torch"):
        try:
            found.append(f"{name} {version_of(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def text_file(command: str, arguments: list[str]) -> Path:
    """Where the help of a command, or of its subcommand, is kept."""
    first = arguments[:1] if arguments[:1] and not arguments[0].startswith("-") else []
    subcommand = FOLDER / f"{'-'.join([command, *first])}.txt"
    return subcommand if subcommand.is_file() else FOLDER / f"{command}.txt"


def answer_help() -> None:
    """End the process with the help or the version, where it is a spec-dec-* command that was asked for it."""
    command, arguments = Path(sys.argv[0] if sys.argv else "").name, sys.argv[1:]
    if not command.startswith("spec-dec-"):
        return
    if arguments == ["--version"]:
        answer = version() + "\n"
    elif {"-h", "--help"}.isdisjoint(arguments) or not text_file(command, arguments).is_file():
        return
    else:
        answer = text_file(command, arguments).read_text(encoding="utf-8")
    try:
        sys.stdout.write(answer)
        sys.stdout.flush()
    except OSError:
        sys.exit(1)
    sys.exit(0)

"""`--help` and `--version` of the spec-dec-* commands, printed before the slow imports of torch and fairseq.

The texts are the output of the commands' parsers; `python -m tests.help_texts` writes them.
"""

import sys
from pathlib import Path

from fairseq_plugins.version import __version__

FOLDER = Path(__file__).parent


def version() -> str:
    """Return name and version of this package, of fairseq and of torch."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    versions = [f"fairseq-spec-dec {__version__}"]
    for name in ("fairseq-fixed", "torch"):
        try:
            versions.append(f"{name} {version_of(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(versions)


def text_file(command: str, arguments: list[str]) -> Path:
    """Return the file with the help of a command or its subcommand."""
    first = arguments[:1] if arguments[:1] and not arguments[0].startswith("-") else []
    subcommand = FOLDER / f"{'-'.join([command, *first])}.txt"
    return subcommand if subcommand.is_file() else FOLDER / f"{command}.txt"


def answer_help() -> None:
    """Print help or version and exit, if this is a spec-dec-* command with that option."""
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

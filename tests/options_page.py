"""Write the tables of docs/options.md from the options of task and methods: `python -m tests.options_page`."""

import re
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path

from fairseq.dataclass.utils import interpret_dc_type
from fairseq.tasks.translation import TranslationConfig

from fairseq_plugins.decoding import methods
from fairseq_plugins.decoding.method import plain
from fairseq_plugins.errors import flag
from fairseq_plugins.shared.parsing import TRAINING_OPTIONS
from fairseq_plugins.tasks.options import SpecDecConfig
from tests import generation_options
from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs" / "options.md"
README = REPOSITORY / "README.md"
# Options that change the output of lossless decoders.
_CHANGES_OUTPUT = {"int8", "source_first_token", "forced_first_token", "suppress_tokens", "begin_suppress_tokens"}
_FOR_ALL = {"source_first_token", "forced_first_token", "suppress_tokens"}


def _default(option: Field) -> str:
    value = plain(option.default)
    if value is None or isinstance(value, bool):
        return "-" if value is None else "on" if value else "off"
    return f"`{value}`"


def _users(name: str) -> list[methods.MethodSpec]:
    return [spec for spec in methods.METHODS if name in {option.name for option in fields(spec.options)}]


def _is_lossless(name: str) -> str:
    users = _users(name)
    changes = name in _CHANGES_OUTPUT or (users and not any(spec.is_lossless for spec in users))
    return "no" if changes else "yes"


def _help(option: Field) -> str:
    # A column lists the methods.
    text = re.sub(r"^[a-z+, -]+: ", "", option.metadata["help"]) if _users(option.name) else option.metadata["help"]
    return " ".join(text.split()).replace("|", "\\|")


def tables() -> dict[str, str]:
    """Return name -> Markdown of the tables."""
    fairseqs = {option.name for option in fields(TranslationConfig)}
    own = [option for option in fields(SpecDecConfig) if option.name not in fairseqs and "help" in option.metadata]
    decoding = ["| option | default | with | lossless | what it does |", "| --- | --- | --- | --- | --- |"]
    training = ["| option | default | what it does |", "| --- | --- | --- |"]
    for option in own:
        name = option.metadata.get("argparse_alias") or flag(option.name)
        if option.name == "decoding_method":
            decoding.append(f"| `{name} ...` | {_default(option)} | | see below | how to decode |")
        elif option.name in TRAINING_OPTIONS:
            training.append(f"| `{name}` | {_default(option)} | {_help(option)} |")
        else:
            users = ", ".join(spec.name for spec in _users(option.name))
            if option.name == "drafter_path":
                users = "those that need it"
            elif not users:
                users = "all" if option.name in _FOR_ALL else "all but beam"
            takes = "" if interpret_dc_type(option.type) is bool else " ..."
            cells = (f"`{name}{takes}`", _default(option), users, _is_lossless(option.name), _help(option))
            decoding.append(f"| {' | '.join(cells)} |")
    return {
        "decoding": "\n".join(decoding),
        "training": "\n".join(training),
        "decoders": decoders(),
        "generation": generation_options.table(),
    }


def decoders() -> str:
    """Return the methods as a Markdown table."""
    lines = ["| `--decoder` | who drafts | what is accepted | lossless | needs | from |", "| --- " * 6 + "|"]
    for spec in methods.METHODS:
        names = ", ".join(f"`{name}`" for name in (spec.name, *spec.aliases))
        lossless = "yes" if spec.is_lossless else "no"
        needs = ", ".join(_needs(spec))
        lines.append(f"| {names} | {spec.drafts} | {spec.accepts} | {lossless} | {needs} | {spec.paper} |")
    return "\n".join(lines)


def _needs(spec: methods.MethodSpec) -> list[str]:
    """Return what a method requires, for the table."""
    options = spec.options()
    needs = ["`--drafter-path`"] if spec.needs_drafter(options) else []
    needs += ["a joined dictionary"] if spec.copies_source(options) else []
    return needs if spec.verifier_class is None else [*needs, f"a `{spec.verifier_class.__name__}`"]


def marked(text: str, name: str) -> re.Match[str]:
    """Return the match of a page's part between the comments `name begins` and `name ends`."""
    match = re.search(rf"(<!-- {name} begins[^\n]*-->\n)(.*?)(\n<!-- {name} ends -->)", text, re.DOTALL)
    assert match is not None, f"no marks of {name}"
    return match


def write(page: Path, contents: Mapping[str, str]) -> None:
    """Replace the texts between their marks in a page."""
    text = page.read_text(encoding="utf-8")
    for name, content in contents.items():
        place = marked(text, name)
        text = text[: place.start(2)] + content + text[place.end(2) :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(PAGE, tables())

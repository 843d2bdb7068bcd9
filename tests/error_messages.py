"""List every error of the package, with its file and line: `python -m tests.error_messages [WORD]`."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import fairseq_plugins
from fairseq_plugins.errors import ConfigurationError, on_command_line

PACKAGE = Path(fairseq_plugins.__file__).parent


def messages() -> Iterator[tuple[str, ConfigurationError]]:
    """Yield place and error, with expressions of the source in `<>`."""
    for file in sorted(PACKAGE.rglob("*.py")):
        texts: dict[str, ast.AST] = {}
        nodes = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if hasattr(node, "lineno")]
        for node in sorted(nodes, key=lambda node: node.lineno):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("problem", "remedy"):
                texts[ast.unparse(node.targets[0])] = node.value
            if isinstance(node, ast.AugAssign) and ast.unparse(node.target) in ("problem", "remedy"):
                texts[ast.unparse(node.target)] = ast.JoinedStr([texts[ast.unparse(node.target)], node.value])
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "ConfigurationError":
                parts = [_text(texts.get(ast.unparse(part), part)) for part in node.args]
                if isinstance(node.args[0], ast.Starred):  # option and value
                    parts.insert(1, None)
                named = {given.arg: _text(texts.get(ast.unparse(given.value), given.value)) for given in node.keywords}
                yield f"{file.relative_to(PACKAGE.parent)}:{node.lineno}", ConfigurationError(*parts, **named)


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant):
        return None if node.value is None else str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "" for part in node.values)
    return f"<{ast.unparse(node.value if isinstance(node, ast.FormattedValue) else node)}>"


def options_in(error: ConfigurationError) -> set[str]:
    """Return the options that an error names."""
    mentioned = re.findall(r"\{(--[a-z0-9-]+)", f"{error.problem} {error.remedy}")
    return {*mentioned, *([error.option] if re.fullmatch(r"--[a-z0-9-]+", error.option or "") else [])}


if __name__ == "__main__":
    for place, error in messages():
        line = error.spelled(on_command_line)
        if all(word in line for word in sys.argv[1:]):
            print(f"{place}\n    {line}")

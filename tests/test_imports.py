"""Imports of the package follow its layers: no module imports from a layer above, and there are no import cycles."""

import ast
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import fairseq_plugins

# Layers from bottom to top; subpackages of a line may not import each other. A module imports from its own subpackage
# and from the layers below. "" is the package itself.
LAYERS = (
    ("version",),
    ("help_texts",),
    ("process",),
    ("errors",),
    ("shared",),
    ("checkpoint",),
    ("data",),
    ("models",),
    ("decoding",),
    ("metrics",),
    ("pages",),
    ("benchmarks", "distillation"),
    ("conversion", "criterions"),
    ("tasks",),
    ("api",),
    ("serving", "translation"),
    ("",),
)


def modules_of(folder: Path) -> dict[str, Path]:
    """Return dotted name -> file of all modules of a package; an `__init__` file has the name of its package."""
    modules = {}
    for file in sorted(folder.rglob("*.py")):
        parts = [folder.name, *file.relative_to(folder).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Return all imports, those inside functions included, without those under `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from statements(ast.Module([other], []))
        else:
            yield from statements(node)


def imports_of(folder: Path) -> dict[str, set[str]]:
    """Return module -> modules of the same package that it imports.

    `from package import name` imports the submodule of this name if there is one, else the package.
    """
    modules = modules_of(folder)
    imports: dict[str, set[str]] = {}
    for module, file in modules.items():
        imports[module] = set()
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        for statement in statements(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            else:
                # One dot is the package itself, every further one a package up.
                above = package.split(".")[: len(package.split(".")) - statement.level + 1] if statement.level else []
                source = ".".join([*above, *([statement.module] if statement.module else [])])
                targets = [f"{source}.{alias.name}" for alias in statement.names]
                names = [target if target in modules else source for target in targets]
            imports[module] |= modules.keys() & set(names)
    return imports


def shelf_of(module: str) -> str:
    """Return the subpackage of a module: the second part of its name, "" for the package."""
    return [*module.split("."), ""][1]


def upward(imports: dict[str, set[str]], layers: Sequence[Sequence[str]]) -> list[str]:
    """Return the imports from the same layer or one above, each as a line."""
    height = {shelf: number for number, layer in enumerate(layers) for shelf in layer}
    return [
        f"{module} imports {other}"
        for module, others in sorted(imports.items())
        for other in sorted(others)
        if shelf_of(module) != shelf_of(other) and height[shelf_of(module)] <= height[shelf_of(other)]
    ]


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Return the modules of an import cycle in order, the first again at the end; empty without a cycle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


IMPORTS = imports_of(Path(fairseq_plugins.__file__).parent)


def test_every_package_has_a_layer() -> None:
    shelves = [shelf for layer in LAYERS for shelf in layer]
    assert sorted(shelves) == sorted({shelf_of(module) for module in IMPORTS})


def test_imports_are_found() -> None:
    assert "fairseq_plugins.decoding.recording.reliability" in IMPORTS["fairseq_plugins.criterions.tensorboard"]
    assert "fairseq_plugins.pages.ddgviz_figure" in IMPORTS["fairseq_plugins.pages.ddgviz"]  # inside of a function


def test_no_import_points_up() -> None:
    assert upward(IMPORTS, LAYERS) == []


def test_no_circle() -> None:
    assert circle(IMPORTS) == []


def package(folder: Path, files: dict[str, str]) -> Path:
    """Write the modules of a sample package."""
    for name, text in {"__init__.py": "", **files}.items():
        file = folder / "made_up" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / "made_up"


def test_an_upward_import_is_found(tmp_path: Path) -> None:
    files = {
        "low/__init__.py": "",
        "low/one.py": "def late():\n    from made_up.high import two\n",
        "low/two.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made_up.high import two\n",
        "high/__init__.py": "",
        "high/two.py": "from made_up.low.one import late\n",
        "beside.py": "import made_up.high.two\n",
    }
    imports = imports_of(package(tmp_path, files))
    layers = (("low",), ("high", "beside"), ("",))
    assert upward(imports, layers) == [
        "made_up.beside imports made_up.high.two",
        "made_up.low.one imports made_up.high.two",
    ]


def test_a_circle_is_found(tmp_path: Path) -> None:
    files = {
        "one.py": "from made_up import two\n",
        "two.py": "from .part import three\n",
        "part/__init__.py": "from made_up.part import three\n",
        "part/three.py": "def late():\n    from .. import one\n",
    }
    names = circle(imports_of(package(tmp_path, files)))
    assert names[0] == names[-1]
    assert set(names) == {"made_up.one", "made_up.two", "made_up.part.three"}


def test_a_package_that_imports_its_modules_is_no_circle(tmp_path: Path) -> None:
    files = {
        "part/__init__.py": "from made_up.part import one, two\n",
        "part/one.py": "from made_up.part import two\n",
        "part/two.py": "",
    }
    assert circle(imports_of(package(tmp_path, files))) == []

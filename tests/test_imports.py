"""Imports of the package follow its layers: no module imports from a layer above, and there are no import cycles."""

from graphlib import TopologicalSorter

import grimp

# Layers from bottom to top; subpackages of a layer may not import each other. A module imports from its own subpackage
# and from the layers below. The package itself is on top.
LAYERS = (
    *("version", "help_texts", "process", "errors", "shared", "checkpoint", "data", "models", "decoding", "metrics"),
    *("pages", {"benchmarks", "distillation"}, {"conversion", "criterions"}, "tasks", "api"),
    {"serving", "translation"},
)
# Also of imports inside functions, without those under `if TYPE_CHECKING`.
GRAPH = grimp.build_graph("fairseq_plugins", cache_dir=None, exclude_type_checking_imports=True)


def test_no_import_points_up() -> None:
    illegal = GRAPH.find_illegal_dependencies_for_layers(LAYERS[::-1], containers={"fairseq_plugins"})
    assert illegal == set() and GRAPH.find_modules_that_directly_import("fairseq_plugins") == set()
    packages = {name for layer in LAYERS for name in ([layer] if isinstance(layer, str) else layer)}
    assert {f"fairseq_plugins.{name}" for name in packages} == GRAPH.find_children("fairseq_plugins")


def checked_imports(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """Return the imports of each module; raise CycleError for a circle."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()
    return imports


def test_no_circle() -> None:
    imports = checked_imports(GRAPH)
    assert "fairseq_plugins.conversion.convert" in imports["fairseq_plugins.api.files"]


def test_no_circle_in_the_runner_of_recipes() -> None:
    """Not even of types."""
    imports = checked_imports(grimp.build_graph("train_scripts.runner", cache_dir=None))
    assert "train_scripts.runner.pipeline" in imports["train_scripts.runner.measuring"]

"""Import fairseq in less time: without work that translating never needs, and with the garbage collector off."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import OmegaConf

from fairseq_plugins.process.output import is_tool

# For two of fairseq's criterions, a task and its progress bar.
_MODULES = ("sklearn", "sklearn.metrics", "scipy.stats", "tensorboardX", "torch.utils.tensorboard")
# Objects that Python 3.12 freezes itself when it starts are fewer; a program that has frozen more keeps them frozen.
_MOST_OF_PYTHON = 1000


class _Deferred(ModuleType):
    """Stands for a module whose functions import it when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        module = self.__name__

        def call(*args: Any, **named: Any) -> Any:
            return getattr(importlib.import_module(module), name)(*args, **named)

        return call


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Let `from sklearn.metrics import f1_score` and the like, inside, import nothing until the function is called.

    Modules that were imported before stay, and imports afterwards are the usual ones.
    """
    deferred = {name: _Deferred(name) for name in _MODULES if name not in sys.modules}
    for name, module in deferred.items():
        parent, _, child = name.rpartition(".")
        if parent in deferred:
            setattr(deferred[parent], child, module)
    sys.modules.update(deferred)
    try:
        yield
    finally:
        for name, module in deferred.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


class _LazyNode(ConfigNode):
    """Settings in hydra's store, converted from their dataclass when they are first read."""

    def __init__(self, source: Any, name: str, group: str | None, package: str | None, provider: str | None) -> None:
        self.__dict__.update(_source=source, name=name, group=group, package=package, provider=provider)

    def __getattr__(self, name: str) -> Any:
        if name != "node":
            raise AttributeError(name)
        self.node = OmegaConf.structured(self._source)
        return self.node


def _store(
    self: ConfigStore,
    name: str,
    node: Any,
    group: str | None = None,
    package: str | None = None,
    provider: str | None = None,
) -> None:
    """Store settings as `ConfigStore.store` does, but convert them later."""
    folder = self.repo
    for part in group.split("/") if group else ():
        folder = folder.setdefault(part, {})
    file = name if name.endswith(".yaml") else f"{name}.yaml"
    folder[file] = _LazyNode(node, file, group, package, provider)


@contextmanager
def deferred_settings() -> Iterator[None]:
    """Let hydra convert the settings that are stored inside when they are read.

    fairseq stores the settings of a hundred models and tasks at import; a command reads a dozen, translating none.
    """
    own = ConfigStore.store
    ConfigStore.store = _store  # type: ignore[method-assign]
    try:
        yield
    finally:
        ConfigStore.store = own  # type: ignore[method-assign]


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector off: modules stay, and it would visit all their objects again and again.

    A command never visits them later either, not even at its end. In a program they count as old, as if collections
    had visited them. So do the program's own objects, after a collection of its young garbage.
    """
    was_enabled = gc.isenabled()
    ages = was_enabled and not is_tool() and gc.get_freeze_count() < _MOST_OF_PYTHON
    if ages:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        if is_tool():
            gc.freeze()
        elif ages:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
        if was_enabled:
            gc.enable()

"""Import fairseq in less time: without what translating never needs, and with the garbage collector off."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fairseq_plugins.output import is_tool

# For two of fairseq's criterions, a task and its progress bar.
_MODULES = ("sklearn", "sklearn.metrics", "scipy.stats", "torch.utils.tensorboard")


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


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector off: modules stay, and it would visit all their objects again and again.

    A command never visits them later either, not even at its end.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_tool():
            gc.freeze()
        if was_enabled:
            gc.enable()

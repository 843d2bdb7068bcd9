"""Parameters that keep the numbers of their file, in int8 or float16, and compute as if they were in fp32.

The kernels read them layer by layer, so the model is never in memory in fp32. PyTorch restores a weight for every
operation: `restore` makes ordinary parameters of them, for whatever runs in PyTorch.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

_kept: ContextVar[bool] = ContextVar("_kept", default=False)


@contextmanager
def compact_weights() -> Iterator[None]:
    """Let weights in int8 and float16 that are loaded inside become `CompactWeight`, not ordinary ones in fp32."""
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)


def are_kept() -> bool:
    """Return whether this is inside of `compact_weights`."""
    return _kept.get()


class CompactWeight(Tensor):
    """A weight in fp32 [rows, columns] that is `stored`, with a `scale` of each row or None.

    It cannot be written.
    """

    stored: Tensor
    scale: Tensor | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, stored: Tensor, scale: Tensor | None = None) -> "CompactWeight":
        """Make the weight of numbers in int8 with scales [rows] in fp32, or in float16."""
        with torch.inference_mode(False):  # as the parameters of a model are
            weight: CompactWeight = Tensor._make_wrapper_subclass(cls, stored.size(), dtype=torch.float32)
        weight.stored, weight.scale = stored, scale
        return weight

    def restored(self) -> Tensor:
        """Return the weight as an ordinary tensor; float16 and int8 times a scale are exact."""
        with torch.inference_mode(False), torch.no_grad():  # a view of an inference tensor could not be returned
            weight = self.stored.to(torch.float32)
            return weight if self.scale is None else weight.mul_(self.scale[:, None])

    def as_parameter(self, requires_grad: bool) -> "CompactWeight":
        """Return the weight as a parameter.

        It is marked as `nn.Parameter` does it, but not detached: the first operation on a tensor of another class
        lets torch import all of torch.distributed.tensor and sympy, which takes 0.4 s.
        """
        weight = CompactWeight(self.stored, self.scale)
        weight._is_param = True
        weight.requires_grad = requires_grad
        return weight

    @property
    def floats(self) -> Tensor:
        """The floating-point numbers that it is made of."""
        return self.stored if self.scale is None else self.scale

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # as torch calls it
        cls, function: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation on restored weights."""
        if function is torch.ops.aten.detach.default:
            return cls(args[0].stored, args[0].scale)
        given = {**dict(zip((each.name for each in function._schema.arguments), args, strict=False)), **(kwargs or {})}
        if any(each.is_write and isinstance(given.get(each.name), cls) for each in function._schema.arguments):
            raise TypeError(f"{function}: a weight in int8 or float16 cannot be written; restore it first")
        args, kwargs = tree_map_only(cls, cls.restored, (args, dict(kwargs or {})))
        return function(*args, **kwargs)


def ordinary(weight: Tensor) -> Tensor:
    """Return a weight as an ordinary tensor: a `CompactWeight` restored, any other itself."""
    return weight.restored() if isinstance(weight, CompactWeight) else weight


def restore(models: Iterable[nn.Module]) -> None:
    """Make ordinary parameters of all `CompactWeight` of models, in place."""
    for parameter in {parameter for model in models for parameter in model.parameters()}:
        if isinstance(parameter, CompactWeight):
            torch.utils.swap_tensors(parameter, nn.Parameter(parameter.restored(), parameter.requires_grad))

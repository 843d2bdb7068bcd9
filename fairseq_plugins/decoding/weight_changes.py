"""Notice that the weights of models, or what they compute with them, have changed since they were read."""

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from fairseq_plugins.checkpoint.compact_weights import CompactWeight
from fairseq_plugins.checkpoint.mapped_weights import is_taken

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


class _OptimizerSteps:
    """Counts the steps of all optimizers of this process."""

    count = 0

    def __init__(self) -> None:
        register_optimizer_step_post_hook(self._add_one)

    def _add_one(self, *_: object) -> None:
        self.count += 1


@functools.cache
def _steps() -> _OptimizerSteps:
    """Return the counter, which begins at the first snapshot."""
    return _OptimizerSteps()


class WeightSnapshot:
    """The state of the parameters, buffers, hooks and settings of models at one time.

    A comparison takes microseconds. It reads version counters, addresses, the modules' identities, classes with their
    methods, attributes and hooks, and one number of each tensor. Version counters miss writes to `parameter.data`, such
    as those of fairseq's Adam. After a step of any optimizer all numbers are compared, by a checksum; so are inference
    tensors, which have no version counter.

    A write to `parameter.data` or to its memory outside of an optimizer is missed if it changes none of the numbers
    that are read. Of mapped parameters none is read: that would bring pages of the file into memory.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        modules = [module for model in models for module in model.modules()]
        # Holds the modules and the memory: neither their ids nor their addresses can be used again.
        self._modules = modules
        self._children = [module._modules for module in modules if module._modules]
        self._weights = [held for module in modules for held in (module._parameters, module._buffers) if held]
        self._hooks = [held for module in modules for held in (module._forward_hooks, module._forward_pre_hooks)]
        self._attributes = list(map(vars, modules))
        self._settings = list(map(dict.copy, self._attributes))
        classes = {base for module in modules for base in type(module).__mro__ if base is not object}
        self._class_attributes = list(map(vars, classes))
        self._methods = list(map(dict, self._class_attributes))
        tensors = self._tensors()
        self._has_versions = not any(tensor.is_inference() for tensor in tensors)
        self._state = self._read(tensors)
        self._samples = _samples([tensor for tensor in tensors if not is_taken(tensor)])
        self._sampled = _read_samples(self._samples)
        self._steps = _steps().count
        self._sums = _sums(tensors) if self._steps or not self._has_versions else None

    def is_current(self) -> bool:
        """Return whether the models still have these weights."""
        tensors = self._tensors()
        if self._read(tensors) != self._state or not self._has_settings():
            return False
        if not all(map(torch.equal, _read_samples(self._samples), self._sampled)):
            return False
        if self._has_versions and self._steps == _steps().count:
            return True
        if self._sums is None or _sums(tensors) != self._sums:
            return False
        self._steps = _steps().count
        return True

    def _tensors(self) -> list[Tensor]:
        held = [tensor for held in self._weights for tensor in held.values() if tensor is not None]
        return [tensor for tensor in held if not isinstance(tensor, CompactWeight)]  # these cannot be written

    def _read(self, tensors: Sequence[Tensor]) -> tuple[list[Any], ...]:
        """Return addresses, versions, children, hooks and classes."""
        versions = [tensor._version for tensor in tensors] if self._has_versions else []
        addresses, kinds = list(map(Tensor.data_ptr, tensors)), list(map(type, self._modules))
        return addresses, versions, _ids(self._children), _ids(self._hooks), kinds

    def _has_settings(self) -> bool:
        """Return whether all attributes are the same: scales, activation functions, methods, of objects and classes.

        They include the dictionaries of weights and children, but not what is in these.
        """
        try:
            return self._attributes == self._settings and self._class_attributes == self._methods
        except RuntimeError:  # of comparing two tensors
            return False


def _ids(held: Sequence[dict[Any, Any]]) -> list[int]:
    return list(map(id, chain.from_iterable(map(dict.values, held))))


def _samples(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return views of one number of each tensor, grouped by type and device."""
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            middle = tuple(slice(size // 2, size // 2 + 1) for size in tensor.shape)
            groups.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach()[middle].reshape(1))
    return list(groups.values())


@torch.inference_mode()
def _read_samples(samples: Sequence[list[Tensor]]) -> list[Tensor]:
    return [torch.cat(of_group) for of_group in samples]


def _sums(tensors: Sequence[Tensor]) -> list[int]:
    """Return the sum of each tensor's bits, read as integers."""
    with torch.no_grad():
        sums = [tensor.detach().view(_INTEGERS[tensor.element_size()]).sum().cpu() for tensor in tensors]
    return [int(each) for each in sums]

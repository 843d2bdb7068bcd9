"""Weights rounded to int8: the rounding of `--int8`, and checkpoints with such weights, a quarter of fp32's size."""

import pickle
from typing import Any

import torch
from torch import Tensor

from fairseq_plugins.checkpoint.compact_weights import CompactWeight, are_kept

# A scale of 16 significant bits times an int8 number is exact in fp32.
_SCALE_BITS = 8


def round_to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight [rows, columns] to int8, symmetrically: the largest number of each row becomes 127 or -127.

    Rounding a rounded weight again changes nothing.

    Returns:
        int8 numbers [rows, columns] and scales [rows] in fp32.
    """
    largest = weight.abs().amax(1)
    scale = (torch.where(largest > 0, largest, 1) / 127).float()
    unit = 1 << _SCALE_BITS
    scale = ((scale.view(torch.int32) + unit // 2) & -unit).view(torch.float32)
    return (weight / scale[:, None]).round().to(torch.int8), scale


def restored(rounded: Tensor, scale: Tensor) -> Tensor:
    """Return the weight in fp32, exactly; torch's safe loader calls this for `Int8Weight`.

    Inside of `compact_weights` it keeps its numbers in int8. Raises pickle.UnpicklingError for values that are no
    rounded weight.
    """
    fits = isinstance(rounded, Tensor) and isinstance(scale, Tensor) and rounded.dtype == torch.int8
    if not fits or scale.dtype != torch.float32 or rounded.dim() != 2 or scale.shape != rounded.shape[:1]:
        raise pickle.UnpicklingError("a weight is not int8 with a scale of each row")
    weight = CompactWeight(rounded, scale)
    return weight if are_kept() else weight.restored()


def is_int8(weight: Tensor) -> bool:
    """Return whether a weight keeps its numbers in int8."""
    return isinstance(weight, CompactWeight) and weight.scale is not None


def stored_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `round_to_int8` does, without rounding for a weight that keeps its numbers in int8."""
    if isinstance(weight, CompactWeight) and weight.scale is not None:
        return weight.stored, weight.scale
    return round_to_int8(weight.detach())


class Int8Weight:
    """A weight in a checkpoint: saved in int8, and a tensor in fp32 for whoever loads the file."""

    def __init__(self, weight: Tensor) -> None:
        self.rounded, self.scale = round_to_int8(weight.float())

    def __reduce__(self) -> tuple[Any, tuple[Tensor, Tensor]]:
        return restored, (self.rounded, self.scale)

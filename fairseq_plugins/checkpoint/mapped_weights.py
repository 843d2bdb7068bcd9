"""Read the weights of a checkpoint from the mapped file, without a copy in memory.

Loading a model as fairseq does it takes three times its memory: random weights, the file's content, and its copy into
the model. Here the parameters are views of the file. They take memory when they are read, until `release_pages`.
"""

import ctypes
import mmap
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fairseq_plugins.checkpoint.compact_weights import CompactWeight, are_kept

# fairseq-train writes checkpoint_best.pt and checkpoint_last.pt over the earlier ones, in place.
_OVERWRITTEN = "checkpoint"
_ADDRESS = "_mapped_address"

_RANDOM: frozenset[Callable[..., Any]] = frozenset(
    {
        *(nn.init.uniform_, nn.init.normal_, nn.init.trunc_normal_, nn.init.kaiming_uniform_, nn.init.kaiming_normal_),
        *(nn.init.xavier_uniform_, nn.init.xavier_normal_, Tensor.uniform_, Tensor.normal_),
    }
)

# From Linux' Documentation/admin-guide/mm/pagemap.rst: a page is in memory, in the swap, or that of a file.
_PRESENT, _SWAPPED, _OF_FILE = (numpy.uint64(1 << bit) for bit in (63, 62, 61))


def can_map(path: str) -> bool:
    """Return whether a checkpoint can be mapped: torch's own format, in a file that nothing overwrites.

    torch maps no file whose path is not UTF-8.
    """
    if not os.path.isfile(path) or os.path.basename(path).startswith(_OVERWRITTEN):
        return False
    try:
        path.encode()
        with zipfile.ZipFile(path) as archive:
            return all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    except (OSError, zipfile.BadZipFile, UnicodeEncodeError):
        return False


def map_in_small_pages(path: str) -> None:
    """Let a reading of a mapped file bring in a few small pages, not two megabytes; Linux only."""
    if sys.platform == "linux":
        file = os.path.realpath(path)
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            ranges = [line.split()[0].split("-") for line in maps if line.rstrip("\n").endswith(f" {file}")]
        for first, end in ranges:
            _advise(int(first, 16), int(end, 16), mmap.MADV_NOHUGEPAGE)


def _advise(address: int, end: int, advice: int) -> None:
    ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(end - address), advice)


class TakeWeights(TorchFunctionMode):
    """Inside, new modules have no random weights, and `load_state_dict` takes tensors without a copy.

    Weights in another type are converted, or become `CompactWeight` inside of `compact_weights`.

    All weights of a model that is built inside must be loaded inside.
    """

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Leave out random numbers, and copies into parameters."""
        if function in _RANDOM:
            return args[0] if args else kwargs["tensor"]  # type: ignore[index]
        if function is Tensor.copy_ and isinstance(args[0], nn.Parameter) and _fits(*args[:2]):
            parameter, weight = args[:2]
            if weight.dtype != parameter.dtype or isinstance(weight, CompactWeight):
                compact = weight if isinstance(weight, CompactWeight) else CompactWeight(weight.detach())
                torch.utils.swap_tensors(parameter, compact.as_parameter(parameter.requires_grad))
            else:
                parameter.data = weight.detach()
                setattr(parameter, _ADDRESS, weight.data_ptr())
            return parameter
        return function(*args, **(kwargs or {}))


def _fits(parameter: Tensor, weight: Tensor) -> bool:
    is_compact = are_kept() and (parameter.dtype, weight.dtype, weight.dim()) == (torch.float32, torch.float16, 2)
    fits = (parameter.device, parameter.shape) == (weight.device, weight.shape)
    return fits and (is_compact or parameter.dtype == weight.dtype)


def is_taken(parameter: Tensor) -> bool:
    """Return whether a parameter still has the memory that `TakeWeights` gave it."""
    if isinstance(parameter, CompactWeight):
        return True
    return getattr(parameter, _ADDRESS, None) == parameter.data_ptr()


def release_pages(parameters: Iterable[Tensor]) -> None:
    """Give the memory of mapped parameters back to the system; the next reading brings it back from the file.

    Pages that were written stay. Does nothing for parameters that are not mapped, and on other systems than Linux.
    """
    if sys.platform != "linux":
        return
    taken = [parameter for parameter in parameters if is_taken(parameter)]
    stored = [weight.stored if isinstance(weight, CompactWeight) else weight for weight in taken]
    addresses = {weight.data_ptr(): weight.nbytes for weight in stored}
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            for address, size in addresses.items():
                first, end = -(-address // mmap.PAGESIZE), (address + size) // mmap.PAGESIZE
                if first < end and _are_of_file(pagemap, first, end - first):
                    _advise(first * mmap.PAGESIZE, end * mmap.PAGESIZE, mmap.MADV_DONTNEED)
    except OSError:
        return  # a system without this file


def _are_of_file(pagemap: Any, first: int, count: int) -> bool:
    """Return whether no page was written: that would be a copy, which exists in memory only."""
    pagemap.seek(8 * first)
    entries = numpy.frombuffer(pagemap.read(8 * count), numpy.uint64)
    in_use = entries & (_PRESENT | _SWAPPED) != 0
    return len(entries) == count and bool((entries[in_use] & _OF_FILE != 0).all())

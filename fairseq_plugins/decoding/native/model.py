"""Convert fairseq's modules for the compiled CPU kernels, and choose the format of each weight."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fairseq_plugins.checkpoint.int8_weights import is_int8, stored_int8
from fairseq_plugins.decoding.kernel_module import KernelModule, Unsupported
from fairseq_plugins.decoding.kernel_weights import KernelWeights
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.weights import Linear, QuantizedLinear, is_small

# Large weights have a packed copy only if it takes at most this share of the memory that is available.
_COPY_SHARE = 1 / 4
# Narrow layers stay in the cache: there, a single row takes AMX tiles twice the time of vectors. From memory, in
# fp32, tiles take 1.15 times the time of vectors for one row, and vectors 1.2 times that of tiles for sixteen.
NARROW = 511
# AMX tiles need a number of inputs that is a multiple of 32. Those of float16 multiply weights by 1024, which must not
# overflow (csrc/isa/amx_tiles.h).
_TILE_INPUTS, _FP16_TILE_LIMIT = 32, 64


@dataclass(frozen=True)
class NativeWeights(KernelWeights):
    """Converts for the compiled CPU kernels, and chooses the format of each weight.

    Attributes:
        packed: keep packed copies of large weights, which the kernels read faster; small ones always have one.
        cached: numbers of a vocabulary projection that stays in the processor's cache.
    """

    packed: bool = True
    cached: int = 2**22

    @property
    def module(self) -> KernelModule:
        return cast(KernelModule, kernels())

    def linear(self, layer: Linear, exact: bool = False) -> Any:
        module, int8 = kernels(), self.int8 and not exact
        scale = None
        if int8 and not isinstance(layer, QuantizedLinear) and is_int8(layer[0]):
            layer = QuantizedLinear(*stored_int8(layer[0]), layer[1])
        if isinstance(layer, QuantizedLinear):
            bias, scale, weight_format = layer.bias, layer.scale, module.WeightFormat.INT8
            weight = self.array(layer.weight, torch.int8)
        else:
            bias = layer[1]
            weight = self.array(layer[0])
            weight_format = self._format(weight, int8)
        return module.linear(
            weight, self.array(bias), self.array(scale), format=weight_format, batch_invariant=self.batch_invariant
        )

    def embedding(self, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return a table of embeddings and scales as `KernelWeights.embedding` does; in int8 both."""
        if not self.rounds_embeddings:
            return super().embedding(weight)
        self.check(weight, None)
        rounded, scale = stored_int8(weight)
        return rounded.contiguous(), scale.contiguous()

    def screen(self, projection: Linear) -> dict[str, Any]:
        """Return the projection in int8, which bounds its scores (csrc/predictor.h), where that is faster."""
        if self.int8 or not self.packed or kernels().instruction_set() == "portable":
            return {}
        screen = replace(self, int8=True).linear(projection)
        return {"screen": screen, "scores_later": screen.inputs * screen.outputs > self.cached}

    def _format(self, weight: Tensor, int8: bool) -> Any:
        """Return the fastest format (`WeightFormat`) that keeps the weight's precision and the memory limits."""
        formats, supports = kernels().WeightFormat, kernels().supports
        if int8:
            return formats.INT8
        is_near = min(weight.shape) <= NARROW and is_small(weight)
        if not is_near and not (self.packed and weight.nbytes <= _COPY_SHARE * available_memory()):
            return formats.ROWS
        is_half = supports(formats.FP16_PANELS) and _is_exact_in_half(weight)
        takes_tiles = self.packed and weight.size(1) % _TILE_INPUTS == 0 and supports(formats.FP16_AMX_TILES)
        if takes_tiles and (self.many_rows or not is_near):
            if not is_half:
                return formats.FP32_AMX_TILES
            if weight.abs().max() < _FP16_TILE_LIMIT:
                return formats.FP16_AMX_TILES
        return formats.FP16_PANELS if is_half else formats.PANELS

    def for_drafts(self) -> "NativeWeights":
        """Return the converter for a drafter: in int8, since drafts are verified, unless copies are ruled out."""
        return replace(self, int8=True, drafts_of_fp32=not self.int8) if self.packed else self

    def may_fuse(self, weight: Tensor) -> bool:
        """Return whether a copy of the weight is small."""
        return is_small(weight)

    def check(self, tensor: Tensor, dtype: torch.dtype | None) -> None:
        """Raise Unsupported for a tensor that is not on the CPU, or of another type (None: fp32)."""
        if tensor.device.type != "cpu" or tensor.dtype != (dtype or torch.float32):
            raise Unsupported(f"the weights are in {str(tensor.dtype).removeprefix('torch.')} on {tensor.device.type}")


def _is_exact_in_half(weight: Tensor) -> bool:
    """Return whether all numbers of a weight are exact in float16."""
    # In blocks: most weights fail in the first one, and small temporaries need little memory.
    blocks = weight.reshape(-1).split(2**16)
    return all(bool((block.half().to(block.dtype) == block).all()) for block in blocks)


_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_V1 = _CGROUP / "memory"


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path | None = None) -> float:
    """Return the bytes that are available without swapping; infinity where the system does not tell (not Linux).

    `meminfo` is Linux' table of the machine's memory, `cgroup` the folder of the container's limit, version 1 or 2.
    """
    folder = cgroup or (_CGROUP_V1 if _CGROUP_V1.is_dir() else _CGROUP)
    return min(_of_machine(meminfo), _of_container(folder))


def _of_machine(meminfo: Path) -> float:
    for line in _lines(meminfo):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return math.inf


def _of_container(folder: Path) -> float:
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, current = _lines(folder / limit), _lines(folder / used)
        if most and current and most[0].isdigit():
            # Linux gives pages of files back when memory is short.
            stat = dict(line.split() for line in _lines(folder / "memory.stat"))
            return max(0, int(most[0]) - int(current[0]) + int(stat.get(cache, 0)))
    return math.inf


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []

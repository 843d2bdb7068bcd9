"""Watch the memory that interpreted kernels use: Triton's interpreter runs programs one by one, a GPU does not.

An access is wrong if it is out of bounds; if another program of the launch writes there, unless both write the same;
and if the program itself has read or written there before without a barrier, since its warps are not in step. With
programmatic dependent launch, a program waits before it writes and before it reads what the launch before has written,
and reads what earlier ones have written past the first-level cache until then.
"""

import inspect
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton._C.libtriton.ir import CACHE_MODIFIER
from triton.runtime import interpreter

from fairseq_plugins.decoding.gpu import runner
from fairseq_plugins.decoding.gpu.kernels import layers

_CELL = 2  # bytes: those of the smallest number


class _Memory:
    """When each number of a storage was read and written."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage  # kept, so that no other takes its address
        self.begin, self.end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        self.written, self.first_read, self.last_read = np.zeros((3, storage.nbytes() // _CELL), np.int64)


class Watch:
    """Watches all launches from now on.

    Attributes:
        launches: number of launches that were watched.
    """

    def __init__(self) -> None:
        self.launches = 0
        self._memories: dict[tuple[int, int], _Memory] = {}
        # Moments are counted; a program and a barrier begin a new one.
        self._moment = self._program = self._launch = self._launch_before = 0
        self._patch()

    def _patch(self) -> None:
        builder, call = interpreter.InterpreterBuilder, interpreter.GridExecutor.__call__
        load, store, begin = builder.create_masked_load, builder.create_masked_store, builder.set_grid_idx

        def watched_call(executor: Any, *given: Any, **options: Any) -> None:
            self._begin_launch(executor.fn, [*given, *options.values()], options)
            call(executor, *given, **options)
            self._end_program()

        def watched_begin(own: Any, *place: int) -> None:
            self._end_program()
            self._begin_program(place)
            begin(own, *place)

        def watched_load(own: Any, pointers: Any, mask: Any, other: Any, cache: Any, *how: Any) -> Any:
            self._read(pointers.data[mask.data], cache == CACHE_MODIFIER.CG)
            return load(own, pointers, mask, other, cache, *how)

        def watched_store(own: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
            self._write(pointers.data[mask.data], value.data[mask.data])
            return store(own, pointers, value, mask, *others)

        builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
        builder.set_grid_idx, builder.create_barrier = watched_begin, lambda own: self._pass_barrier()
        interpreter.GridExecutor.__call__ = watched_call
        # As on a Hopper.
        mock.patch.object(runner, "uses_dependent_launch", lambda device: True).start()
        mock.patch.multiple(layers, gdc_wait=self._wait, gdc_launch_dependents=lambda: None).start()

    # ----------------------------------------------------------------------------------------- launches, programs

    def _begin_launch(self, kernel: Any, given: list[Any], options: dict[str, Any]) -> None:
        self.launches += 1
        self._name, self._has_warps = kernel.__name__, options.get("num_warps", 4) > 1
        self._waits = options.get("PDL", False)
        assert self._waits == options.get("launch_pdl", False), f"{self._name}: PDL and launch_pdl differ"
        self._regions: list[tuple[int, int, _Memory]] = []
        for tensor in [each for value in given for each in (value if isinstance(value, tuple) else [value])]:
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
                end = tensor.data_ptr() + (last + 1) * tensor.element_size()
                self._regions.append((tensor.data_ptr(), end, self._memory(tensor)))
        self._moment += 1
        self._launch_before, self._launch = self._launch, self._moment
        self._has_waited = True  # no program has begun

    def _memory(self, tensor: torch.Tensor) -> _Memory:
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), storage.nbytes()
        if key not in self._memories:
            self._memories[key] = _Memory(storage)
        return self._memories[key]

    def _begin_program(self, place: tuple[int, ...]) -> None:
        self._place, self._has_waited = place, not self._waits
        self._moment += 1
        self._program = self._moment

    def _end_program(self) -> None:
        assert self._has_waited, f"{self._name}: the program {self._place} does not wait"

    def _pass_barrier(self) -> None:
        self._moment += 1

    def _wait(self) -> None:
        self._has_waited = True

    # -------------------------------------------------------------------------------------------------- accesses

    def _read(self, addresses: np.ndarray, is_past_cache: bool) -> None:
        if not addresses.size:
            return
        memory, cells = self._cells(addresses)
        written = memory.written[cells]
        self._refuse((written >= self._launch) & (written < self._program), "reads what another program writes")
        self._refuse(self._has_warps & (written == self._moment), "reads what it has written, without a barrier")
        is_new = (written >= self._launch_before) & (written < self._launch)
        self._refuse(~np.bool_(self._has_waited) & is_new, "reads before it waits")
        is_old = np.bool_(not self._has_waited and not is_past_cache) & (written > 0)
        self._refuse(is_old, "reads from a cache before it waits")
        first = memory.first_read[cells]
        memory.first_read[cells] = np.where(first < self._launch, self._moment, first)
        memory.last_read[cells] = self._moment

    def _write(self, addresses: np.ndarray, values: np.ndarray) -> None:
        if not addresses.size:
            return
        memory, cells = self._cells(addresses)
        self._refuse(np.bool_(not self._has_waited), "writes before it waits")
        first, last, written = memory.first_read[cells], memory.last_read[cells], memory.written[cells]
        self._refuse((first >= self._launch) & (first < self._program), "writes what another program reads")
        self._refuse((last >= self._launch) & (last < self._program), "writes what another program reads")
        self._refuse(self._has_warps & (last == self._moment), "writes what it has read, without a barrier")
        is_shared = (written >= self._launch) & (written < self._program)
        if is_shared.any():
            there = interpreter._interpreter.load(
                addresses, np.ones(addresses.shape, bool), np.zeros_like(values), values.dtype
            )
            self._refuse(is_shared & (there != values), "writes what another program writes")
        memory.written[cells] = self._moment

    def _cells(self, addresses: np.ndarray) -> tuple[_Memory, np.ndarray]:
        low, high = int(addresses.min()), int(addresses.max())
        for begin, end, memory in self._regions:
            if begin <= low and high < end:
                return memory, (addresses.astype(np.int64) - memory.begin) // _CELL
        self._refuse(np.bool_(True), "is out of bounds")
        raise AssertionError

    def _refuse(self, wrong: Any, problem: str) -> None:
        if np.any(wrong):
            lines = [frame for frame in inspect.stack() if "/kernels/" in frame.filename]
            at = "\n".join(f"  {frame.filename}:{frame.lineno}: {(frame.code_context or [''])[0]}" for frame in lines)
            raise AssertionError(f"{self._name}, program {self._place} {problem}\n{at}")

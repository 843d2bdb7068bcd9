"""A pretended GPU: tensors that say that they are on cuda:0 and hold their numbers on the CPU.

It refuses operations on tensors of both devices, and what a capture forbids. Streams, memory and the numerics of CUDA
are not pretended.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.cpp_extension import include_paths, library_paths

from fairseq_plugins.decoding.reference import fixed_shapes
from fairseq_plugins.decoding.reference.captured.graph_capture import Outputs, Run

CUDA = torch.device("cuda:0")
# Operations for whose result the host waits.
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "_unique2", "is_nonzero"}


class GpuTensor(torch.Tensor):
    """A tensor on the pretended GPU; `host` has its numbers."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "GpuTensor":
        made: GpuTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype, device=CUDA
        )
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        assert PretendedGpu.current is not None, "outside of `pretended_gpu`"
        return PretendedGpu.current.run(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.host.untyped_storage()

    def tolist(self) -> Any:
        assert PretendedGpu.current is not None
        PretendedGpu.current.wait("tolist")
        return self.host.tolist()

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self

    @data.setter
    def data(self, other: "GpuTensor") -> None:
        self.host = other.host

    def pin_memory(self, *_: Any) -> Tensor:  # type: ignore[override]
        raise RuntimeError("cannot pin a tensor of a GPU")


class PretendedGpu(TorchDispatchMode):
    """Runs operations on the tensors of the pretended GPU; a capture records them on its tape."""

    current: "PretendedGpu | None" = None

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[tuple[Callable, tuple, dict, Any]] | None = None
        self.waits = 0
        self.on: list[torch.device] = []  # devices that were made current, the last one is

    @contextmanager
    def made_current(self, device: torch.device) -> Iterator[None]:
        """What `torch.cuda.device` does."""
        self.on.append(device)
        yield
        self.on.pop()

    def wait(self, what: str) -> None:
        """The host waits for the device."""
        self.waits += 1
        if self.tape is not None:
            raise AssertionError(f"{what} waits in a capture, at {_line()}")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run an operation on the tensors of the host that stand behind its arguments."""
        name = func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        on_gpu = [leaf for leaf in leaves if isinstance(leaf, GpuTensor)]
        goes_to = kwargs.get("device")
        to_gpu = goes_to is not None and torch.device(goes_to).type == "cuda"
        if not on_gpu and not to_gpu:
            return func(*args, **kwargs)
        if name != "scaled_dot_product_attention" and func._can_decompose():
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        self._refuse_mixed(name, leaves)
        if name in ("_to_copy", "copy_"):
            source, target = (args[0], None) if name == "_to_copy" else (args[1], args[0])
            target_is_gpu = isinstance(target, GpuTensor) if name == "copy_" else to_gpu or goes_to is None
            if isinstance(source, GpuTensor) != target_is_gpu and (not target_is_gpu or source.dim() > 0):
                self.wait("a copy between host and device")
            if goes_to is not None and not to_gpu:
                return func(source.host, **kwargs)
        if name == "_local_scalar_dense":
            self.wait("a number")
            return func(args[0].host)
        by_booleans = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in _WAITING or by_booleans or (name == "repeat_interleave" and len(args) == 1 and not kwargs):
            self.wait(name)
        result = _on_host(func, args, kwargs)
        known = {id(tensor.host): tensor for tensor in on_gpu}

        def as_gpu(leaf: Any) -> Any:
            return known.get(id(leaf), leaf) if id(leaf) in known or not isinstance(leaf, Tensor) else GpuTensor(leaf)

        wrapped = tree_map(as_gpu, result)
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in func._schema.returns)
        if self.tape is not None and not is_view:
            self.tape.append((func, args, kwargs, wrapped))
        return wrapped

    def launch(self, function: Callable[..., Tensor], *args: Any) -> Tensor:
        """Run a function of tensors on the host as a kernel of Triton, which goes to the current device."""
        assert self.on[-1:] == [CUDA], f"another device is current at {_line()}"
        self._refuse_mixed(function.__name__, list(args))
        result = GpuTensor(_on_host(function, args, {}))
        if self.tape is not None:
            self.tape.append((function, args, {}, result))
        return result

    def _refuse_mixed(self, name: str, leaves: list[Any]) -> None:
        on_host = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, GpuTensor)]
        has_gpu = any(isinstance(leaf, GpuTensor) for leaf in leaves)
        if has_gpu and any(leaf.dim() > 0 for leaf in on_host) and name not in ("copy_", "_to_copy"):
            raise RuntimeError(f"expected all tensors to be on the same device: {name} at {_line()}")

    def capture(self, run: Run) -> Run:
        """What `capture_on_cuda` does: a graph that launches the same operations on the same memory.

        Whatever it allocated is lost after every replay, as in memory that graphs share.
        """
        assert self.on[-1:] == [CUDA], f"another device is current at {_line()}"
        run()
        self.tape = tape = []
        outputs: Outputs = run()
        self.tape = None
        made = _allocated(tape)

        def replay() -> Outputs:
            for func, args, kwargs, result in tape:
                for old, new in zip(tree_leaves(result), tree_leaves(_on_host(func, args, kwargs)), strict=True):
                    if isinstance(old, GpuTensor) and old.host.data_ptr() != new.data_ptr():
                        old.host.copy_(new)
            _spoil(made)
            return outputs

        _spoil(made)
        return replay


def _on_host(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    changed = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    if "device" in kwargs:
        changed["device"] = torch.device("cpu")
    args, changed = tree_map(lambda leaf: leaf.host if isinstance(leaf, GpuTensor) else leaf, (args, changed))
    if func in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default) and args[2]:
        # A GPU reads half precision and writes fp32 in one.
        args = (args[0].float(), args[1], False)
    return func(*args, **changed)


def _allocated(tape: list[tuple[Callable, tuple, dict, Any]]) -> list[Tensor]:
    """Results of a capture in memory that was not there before."""
    made: dict[int, Tensor] = {}
    before: set[int] = set()
    for _, args, kwargs, result in tape:
        read = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, GpuTensor)}
        before |= read - set(made)
        for leaf in tree_leaves(result):
            if isinstance(leaf, GpuTensor) and leaf.untyped_storage().data_ptr() not in read | before:
                made[leaf.untyped_storage().data_ptr()] = leaf.host
    return list(made.values())


def _spoil(made: list[Tensor]) -> None:
    for host in made:
        if host.is_floating_point():
            host.fill_(torch.nan)


def _line() -> str:
    """The line of the package that an operation comes from."""
    frame = sys._getframe(1)
    while frame is not None and "/fairseq_plugins/" not in frame.f_code.co_filename:
        if "/fairseq/" in frame.f_code.co_filename:
            break
        frame = frame.f_back  # type: ignore[assignment]
    return "elsewhere" if frame is None else f"{frame.f_code.co_filename.rsplit('/', 1)[1]}:{frame.f_lineno}"


class ReferenceKernels:
    """In place of `triton_kernels`, which no CPU runs: what these are tested against."""

    def __init__(self, gpu: PretendedGpu) -> None:
        self.linear = partial(gpu.launch, fixed_shapes.linear)
        self.attention = partial(gpu.launch, fixed_shapes.attention)


_GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
struct Pretended : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return {c10::DeviceType::CUDA, 0}; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
namespace c10::impl { C10_REGISTER_GUARD_IMPL(CUDA, Pretended) }
"""


def build_device_guard(folder: Path) -> None:
    """Build what PyTorch asks which device is current: one for the CPU knows of no GPU."""
    source = folder / "guard.cpp"
    source.write_text(_GUARD)
    paths = [f"-I{path}" for path in include_paths()] + [f"-L{path}" for path in library_paths()]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", str(source), *paths, "-lc10", "-o", str(folder / "guard.so")]
    subprocess.run(command, check=True)


def load_device_guard(folder: Path) -> None:
    """Load what `build_device_guard` has built, in place of that of PyTorch for CUDA; without effect beside a GPU."""
    if not torch.cuda.is_available():
        torch.ops.load_library(folder / "guard.so")


def moved(value: Any) -> Any:
    """A copy of a sample, or a model, on the pretended GPU; parameters that are one stay one."""
    if isinstance(value, nn.Module):
        known: dict[int, nn.Parameter] = {}
        for module in value.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None and not isinstance(parameter.data, GpuTensor):
                    gpu = nn.Parameter(GpuTensor(parameter.detach()), requires_grad=False)
                    module._parameters[name] = known.setdefault(id(parameter), gpu)
            for name, buffer in module._buffers.items():
                if buffer is not None and not isinstance(buffer, GpuTensor):
                    module._buffers[name] = GpuTensor(buffer)
        return value
    return tree_map(lambda leaf: GpuTensor(leaf) if isinstance(leaf, Tensor) else leaf, value)


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedGpu]:
    """Pretend that there is a GPU."""
    gpu = PretendedGpu()
    attend, kernels = F.scaled_dot_product_attention, ReferenceKernels(gpu)

    def attention(*args: Any, **kwargs: Any) -> Tensor:
        if isinstance(args[0], GpuTensor):
            return gpu.run(torch.ops.aten.scaled_dot_product_attention.default, args, kwargs)
        return attend(*args, **kwargs)

    with monkeypatch.context() as patch:
        # Tensors of inference mode cannot be subclasses.
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext())
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "device", gpu.made_current)
        patch.setattr(F, "scaled_dot_product_attention", attention)
        patch.setattr(torch.Tensor, "pin_memory", lambda tensor, *_: tensor.clone())
        patch.setattr(fixed_shapes, "triton_kernels", lambda: kernels)
        patch.setattr(PretendedGpu, "current", gpu)
        with gpu:
            yield gpu

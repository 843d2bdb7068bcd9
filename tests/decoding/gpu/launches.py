"""Record the launches of Triton's kernels without a GPU, and compile them for one."""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fairseq_plugins.decoding.gpu import runner

TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"
# Bytes of shared memory of a program, by capability.
SHARED = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}
TYPES = {
    torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """A launch: the kernel, types of its arguments, constants, arguments that 16 divides, and options."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisible: tuple[str, ...]
    warps: int
    grid: tuple[int, ...] = field(compare=False)

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__


def record(launch: Callable[[], Any], with_dependent_launch: bool = True) -> list[Launch]:
    """Return the launches of a function, none of which runs."""
    launches: list[Launch] = []

    def run(self: Any, *given: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launches.append(_launch(self, given, grid, options))

    has_pdl = mock.patch.object(runner, "uses_dependent_launch", lambda device: with_dependent_launch)
    with mock.patch.object(JITFunction, "run", run), has_pdl:
        launch()
    return launches


def _launch(kernel: Any, given: tuple[Any, ...], grid: Any, options: dict[str, Any]) -> Launch:
    """As Triton's just-in-time compiler specialises a kernel: a 1 is a constant, and multiples of 16 are known."""
    values = dict(zip(kernel.arg_names, given, strict=False)) | {
        name: value for name, value in options.items() if name in kernel.arg_names
    }
    signature, constants, divisible = {}, {}, []
    for parameter in kernel.params:
        name, value = parameter.name, values[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1 and not parameter.do_not_specialize):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = TYPES[value.dtype]
            if value.data_ptr() % 16 == 0:
                divisible.append(name)
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                divisible.append(name)
    return Launch(
        kernel, tuple(signature.items()), tuple(constants.items()), tuple(divisible), options["num_warps"], tuple(grid)
    )


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of a kernel: registers of a thread, spilled bytes, shared memory, and its PTX."""

    registers: int
    spilled: int
    shared: int
    ptx: str


def compiled(launch: Launch, capability: int) -> Compiled:
    """Compile a kernel for a GPU of this capability, such as 80 or 90."""
    constants = dict(launch.constants)
    if capability < 90:
        constants |= {"PDL": False}
    names = launch.kernel.arg_names
    source = ASTSource(
        fn=launch.kernel,
        signature=dict(launch.signature),
        constexprs=constants,
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in launch.divisible},
    )
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": launch.warps})
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(kernel.asm["cubin"])
        command = [TOOLS / "cuobjdump", "-res-usage", binary]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    # More than a program may take fails at the first launch.
    assert kernel.metadata.shared <= SHARED[capability], launch
    return Compiled(int(found[1]), int(found[2]), kernel.metadata.shared, kernel.asm["ptx"])

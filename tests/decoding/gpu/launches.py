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
    signature: tuple[tuple[str, Any], ...]
    constants: tuple[tuple[Any, Any], ...]  # by name; in a tuple by the places in both
    divisible: tuple[tuple[int, ...], ...]
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
    signature: dict[str, Any] = {}
    constants: dict[Any, Any] = {}
    divisible: list[tuple[int, ...]] = []

    def kind(value: Any, place: tuple[int, ...], name: Any, is_known: bool = True) -> Any:
        if isinstance(value, tuple):
            kinds = [kind(each, (*place, number), (*place, number)) for number, each in enumerate(value)]
            return type(value)(*kinds)
        is_whole = isinstance(value, int) and is_known
        if value is None or (is_whole and value == 1):
            constants[name] = value
            return "constexpr"
        if isinstance(value, torch.Tensor) or is_whole:
            divisible.extend([place] if (value if is_whole else value.data_ptr()) % 16 == 0 else [])
        return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "fp32" if isinstance(value, float) else "i32"

    for number, parameter in enumerate(kernel.params):
        name, value = parameter.name, values[parameter.name]
        if parameter.is_constexpr:
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = kind(value, (number,), name, not parameter.do_not_specialize)
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
    source = ASTSource(
        fn=launch.kernel,
        signature=dict(launch.signature),
        constexprs=constants,
        attrs={place: [["tt.divisibility", 16]] for place in launch.divisible},
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

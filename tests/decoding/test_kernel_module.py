"""Both modules of kernels, the compiled one and Triton's, offer their interface."""

import ast
import enum
import inspect
import re
from importlib.util import find_spec
from typing import Any

import pytest

from fairseq_plugins.decoding import kernel_module
from fairseq_plugins.decoding.kernel_module import KernelModule
from fairseq_plugins.decoding.native import kernels

# What the interface's functions return, as classes of a module.
CLASSES = {kernel_module.KernelGenerator: "Generator", kernel_module.KernelPolicy: "Policy"}
# The enumerations that it names.
MEMBERS = {"Activation": {"RELU", "GELU", "SILU"}, "Lookup": {"UNIQUE", "NEAREST"}}


@pytest.fixture(params=["native", "gpu"])
def module(request: pytest.FixtureRequest) -> Any:
    """Each of the modules."""
    if request.param == "native":
        return kernels()
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed: 1 GB; PyTorch for CUDA brings it")
    from fairseq_plugins.decoding.gpu import interface

    return interface


def own(interface: type) -> dict[str, Any]:
    """Return what a protocol declares."""
    return {name: value for name, value in vars(interface).items() if not name.startswith("_")}


def arguments(compiled: Any) -> dict[str, bool]:
    """Return the arguments of a function, each with whether it has a default; those by name begin with *."""
    if not hasattr(compiled, "__nb_signature__"):
        parameters = [given for name, given in inspect.signature(compiled).parameters.items() if name != "self"]
        return {
            f"{'*' if given.kind is given.KEYWORD_ONLY else ''}{given.name}": given.default is not given.empty
            for given in parameters
        }
    [(signature, *_)] = compiled.__nb_signature__
    # Defaults are numbers, and the types of arrays are no Python.
    signature = signature.replace("= \\", "= ")
    while "[" in signature:
        signature = re.sub(r"\[[^][]*\]", "", signature)
    [definition] = ast.parse(f"{signature}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    given = definition.args
    by_place = [argument.arg for argument in given.args if argument.arg != "self"]
    first = len(by_place) - len(given.defaults)
    by_name = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    return {name: place >= first for place, name in enumerate(by_place)} | {
        f"*{argument.arg}": default is not None for argument, default in by_name
    }


def refused(wanted: Any, given: dict[str, bool]) -> str:
    """Return which call of the interface's function a compiled one refuses; empty if it takes all."""
    left = dict(given)
    for place, (name, parameter) in enumerate(list(inspect.signature(wanted).parameters.items())[1:]):
        is_named = parameter.kind is parameter.KEYWORD_ONLY
        if not is_named and list(given)[place : place + 1] != [name]:
            return f"{name} is not argument {place + 1}"
        own_name = f"*{name}" if f"*{name}" in left else name
        if own_name not in left:
            return f"{name} is not an argument"
        if not left.pop(own_name) and parameter.default is not parameter.empty:
            return f"{name} has no default"
    needed = [name.strip("*") for name, has_default in left.items() if not has_default]
    return f"{', '.join(needed)}: needed, and not in the interface" if needed else ""


@pytest.mark.parametrize("name", own(KernelModule))
def test_module_has(name: str, module: Any) -> None:
    declared, compiled = own(KernelModule)[name], getattr(module, name)
    if isinstance(declared, property):
        members = MEMBERS.get(name, set())
        assert members <= set(dir(compiled))
        assert isinstance(compiled, enum.EnumType) if members else issubclass(compiled, ValueError)
        return
    function = compiled.__init__ if isinstance(compiled, type) else compiled
    assert refused(declared, arguments(function)) == ""


@pytest.mark.parametrize(("interface", "name"), [(interface, name) for interface in CLASSES for name in own(interface)])
def test_class_has(interface: type, name: str, module: Any) -> None:
    compiled = getattr(module, CLASSES[interface])
    assert refused(own(interface)[name], arguments(getattr(compiled, name))) == ""


def test_layers_have_their_attributes(module: Any) -> None:
    assert set(kernel_module.KernelLayer.__annotations__) <= set(dir(module.Layer()))


def test_differences_are_found() -> None:
    def wanted(self: Any, first: int, second: int = ..., *, third: int) -> None: ...

    def differences(signature: str) -> str:
        compiled = type("Compiled", (), {"__nb_signature__": ((signature, None, None),)})
        return refused(wanted, arguments(compiled))

    for arguments_, difference in (
        ("first, second=0, *, third, fourth=0", ""),
        ("first, second=0, third=0", ""),
        ("first, second, *, third", "second has no default"),
        ("second, first=0, *, third", "first is not argument 1"),
        ("first, second=0", "third is not an argument"),
        ("first, second=0, *, third, fourth", "fourth: needed, and not in the interface"),
        ("first, second=0, *, fourth, third", "fourth: needed, and not in the interface"),
    ):
        assert differences(f"def f(self, {arguments_}) -> None") == difference

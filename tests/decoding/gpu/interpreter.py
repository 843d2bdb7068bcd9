"""Make Triton's interpreter faster, and its products as independent of other rows as those of a GPU."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

from tests.decoding.gpu.watch import Watch


def run_checks(checks: Mapping[str, Callable[[], None]]) -> None:
    """Run the checks that the command line names, or all, on one thread; print the seconds of each.

    With `--watch` the kernels' accesses of memory are watched (watch.py).
    """
    torch.set_num_threads(1)
    patch_once()
    names = sys.argv[1:]
    if "--watch" in names:
        names.remove("--watch")
        Watch()
    for name in names or checks:
        began = time.process_time()
        checks[name]()
        print(f"{name}: {time.process_time() - began:.1f} s", flush=True)


def patch_once() -> None:
    """Make the interpreter faster: nearly all of its time goes into the types of operands, which come again and again.

    A kernel's functions use what its launch has patched in `triton.language`, types of blocks are made once, operands
    of one type are not converted, and what NumPy holds is not checked against types. Sums of 32-bit integers are not
    computed in 64 bits, too, to find overflows, which small models do not have.
    """
    patch, number_type = interpreter._patch_lang, interpreter._get_np_dtype
    shapes: dict[int, tuple[Any, ...]] = {}
    blocks: dict[tuple[Any, ...], Any] = {}
    number_types: dict[str, np.dtype] = {}
    broadcasts: dict[tuple[int, int], tuple[Any, ...]] = {}
    block, initialize_block = tl.block_type, tl.block_type.__init__
    initialize, unwrap = tl.tensor.__init__, tl.core._unwrap_if_constexpr
    check_types = TritonSemantic.binary_op_type_checking_impl
    broadcast, cast = TritonSemantic.broadcast_impl_value, TritonSemantic.cast

    def patch_lang(fn: Any) -> Any:
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        is_patched = not any(tl.core.is_builtin(language.load) for language in languages)
        return interpreter._LangPatchScope() if is_patched else patch(fn)

    def patch_attr(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        def call(*given: Any, _semantic: Any = None, **named: Any) -> Any:
            return member(*given, **named, _semantic=interpreter.interpreter_semantic)

        scope.set_attr(place, name, call)

    def quick_number_type(kind: Any) -> np.dtype:
        if kind.name not in number_types:
            number_types[kind.name] = number_type(kind)
        return number_types[kind.name]

    def quick_initialize(tensor: Any, handle: Any, kind: Any) -> None:
        known = shapes.get(id(kind))
        if known is None:
            initialize(tensor, handle, kind)
            # With the type, whose number no other then gets.
            shapes[id(kind)] = tensor.shape, tensor.numel, tensor.dtype, kind
            return
        tensor.handle, tensor.type = handle, kind
        tensor.shape, tensor.numel, tensor.dtype, _ = known

    def quick_unwrap(value: Any) -> Any:
        kind = type(value)
        if kind is tl.constexpr:
            return value.value
        return value if kind is int or kind is tl.tensor or kind is tl.dtype else unwrap(value)

    def quick_check_types(self: Any, left: Any, right: Any, *allowed: Any, **how: Any) -> Any:
        if not how.get("div_or_mod") and type(left) is type(right) is tl.tensor and left.type is right.type:
            if len(allowed) < 4 and not left.dtype.is_ptr():
                return left, right
        return check_types(self, left, right, *allowed, **how)

    def spread(operand: Any, kind: Any) -> Any:
        if operand.type is kind:
            return operand
        data = np.broadcast_to(operand.handle.data, tuple(kind.shape))
        return tl.tensor(interpreter.TensorHandle(data, operand.handle.dtype.scalar), kind)

    def quick_broadcast(self: Any, left: Any, right: Any) -> Any:
        if left.type is right.type:
            return left, right
        key = id(left.type), id(right.type)
        if key not in broadcasts:
            result = broadcast(self, left, right)
            broadcasts[key] = result[0].type, result[1].type, left.type, right.type
            return result
        return spread(left, broadcasts[key][0]), spread(right, broadcasts[key][1])

    def quick_cast(self: Any, value: Any, kind: Any, *rounding: Any) -> Any:
        return value if value.dtype is kind else cast(self, value, kind, *rounding)

    def make_block_once(cls: Any, element: Any, shape: Any) -> Any:
        key = element.name, *map(quick_unwrap, shape)
        if key not in blocks:
            blocks[key] = object.__new__(cls)
            initialize_block(blocks[key], element, shape)
        return blocks[key]

    interpreter._patch_lang, interpreter._patch_attr = patch_lang, patch_attr
    interpreter._get_np_dtype = quick_number_type
    interpreter.TensorHandle.__post_init__ = lambda handle: None
    block.__new__, block.__init__ = staticmethod(make_block_once), lambda *_: None
    tl.core._unwrap_if_constexpr, tl.tensor.__init__ = quick_unwrap, quick_initialize
    TritonSemantic.binary_op_type_checking_impl = quick_check_types
    TritonSemantic.broadcast_impl_value, TritonSemantic.cast = quick_broadcast, quick_cast
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda *_: None
    interpreter.ReduceOps.apply_impl = _reduce


def _reduce(self: Any, given: Any) -> Any:
    """Reduce as a GPU: among numbers and others, any index is the best one, here the last."""
    data, how = given[0].handle.data, {"axis": self.axis, "keepdims": self.keep_dims}
    if self.combine_fn is tl.standard._sum_combine:
        return self.sum(given[0])
    if self.combine_fn in (tl.standard._elementwise_max, tl.standard._elementwise_min):
        choose = np.fmax if self.combine_fn is tl.standard._elementwise_max else np.fmin
        return self.to_tensor(choose.reduce(data, **how), given[0].dtype)
    assert self.combine_fn is tl.standard._argmax_combine_tie_break_left
    best, index = data.max(**how), data.argmax(**how)
    index = np.where(np.isnan(best), data.shape[self.axis] - 1, index)
    return self.to_tensor(best, given[0].dtype), self.to_tensor(index, tl.int32)


def multiply_by_rows() -> None:
    """Multiply row by row: numpy's product of several rows may add a row's terms in another order.

    The interpreter holds bfloat16 as integers, which it would multiply as such.
    """

    def create_dot(self: Any, left: Any, right: Any, total: Any, *others: Any) -> Any:
        if left.dtype.scalar == tl.bfloat16:
            left, right = (self.cast_impl(operand, tl.float32) for operand in (left, right))
        rows = [np.matmul(row[None], right.data, dtype=total.data.dtype) for row in left.data]
        return interpreter.TensorHandle(np.concatenate(rows) + total.data, total.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = create_dot

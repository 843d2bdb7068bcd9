"""Make Triton's interpreter faster, and its products as independent of other rows as those of a GPU."""

import itertools
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def patch_once() -> None:
    """Make the interpreter faster, for good: nearly all of its time goes into the types of operands.

    `triton.language` is patched once, not for each launch. Operators of numbers of one type go to NumPy at once. Types
    of blocks are made once, and what NumPy holds is not checked against types. Sums of 32-bit integers are not computed
    in 64 bits, too, to find overflows, which small models do not have.
    """
    number_type = interpreter._get_np_dtype
    shapes: dict[int, tuple[Any, ...]] = {}
    blocks: dict[tuple[Any, ...], Any] = {}
    number_types: dict[str, np.dtype] = {}
    broadcasts: dict[tuple[int, int], tuple[Any, ...]] = {}
    initialize_block = tl.block_type.__init__
    initialize, unwrap = tl.tensor.__init__, tl.core._unwrap_if_constexpr
    check_types = TritonSemantic.binary_op_type_checking_impl
    broadcast, cast = TritonSemantic.broadcast_impl_value, TritonSemantic.cast

    def patch_attr(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        function = getattr(member, "__wrapped__", member)

        def call(*given: Any, _semantic: Any = None, **named: Any) -> Any:
            return function(*given, **named, _semantic=interpreter.interpreter_semantic)

        setattr(place, name, call)

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
            initialize_block(blocks[key], element, [*shape])
        return blocks[key]

    interpreter._patch_attr, interpreter._get_np_dtype = patch_attr, quick_number_type
    interpreter.TensorHandle.__post_init__ = lambda handle: None
    tl.block_type.__new__, tl.block_type.__init__ = staticmethod(make_block_once), lambda *_: None
    tl.core._unwrap_if_constexpr, tl.tensor.__init__ = quick_unwrap, quick_initialize
    TritonSemantic.binary_op_type_checking_impl = quick_check_types
    TritonSemantic.broadcast_impl_value, TritonSemantic.cast = quick_broadcast, quick_cast
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda *_: None
    interpreter.ReduceOps.apply_impl = _reduce
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter.GridExecutor.__call__ = _launch
    interpreter.InterpretedFunction.__call__ = lambda self, *given, **named: self.rewrite()(*given, **named)
    for name, how in _OPERATORS.items():
        _make_quick(name, *how)
    general = tl.tensor.__getitem__

    def quick_index(tensor: Any, index: Any) -> Any:
        """Add dimensions to a block."""
        if type(index) is not tuple or not tensor.type.is_block():
            return general(tensor, index)
        data = tensor.handle.data[index]
        handle = interpreter.TensorHandle(data, tensor.dtype)
        return tl.tensor(handle, tl.block_type(tensor.dtype, data.shape))

    tl.tensor.__getitem__ = quick_index


# Without divisions of integers, which are not NumPy's. Each has the types of its operands.
_WHOLE = {"int32": (int,), "int64": (int,), "uint32": (int,)}
_NUMBERS = {**_WHOLE, "fp32": (int, float)}
_ADDITIONS = {
    "__add__": np.add, "__radd__": np.add, "__sub__": np.subtract, "__mul__": np.multiply, "__rmul__": np.multiply,
    "__rsub__": lambda right, left: left - right,
}  # fmt: skip
_BITWISE = {"__and__": np.bitwise_and, "__or__": np.bitwise_or, "__xor__": np.bitwise_xor}
_COMPARISONS = {
    "__lt__": np.less, "__le__": np.less_equal, "__gt__": np.greater, "__ge__": np.greater_equal,
    "__eq__": np.equal, "__ne__": np.not_equal,
}  # fmt: skip
_OPERATORS: dict[str, tuple[Callable[..., np.ndarray], dict[str, tuple[type, ...]]]] = {
    **{name: (operator, _NUMBERS) for name, operator in _ADDITIONS.items()},
    **{name: (operator, {**_WHOLE, "int1": ()}) for name, operator in _BITWISE.items()},
    **{name: (operator, {**_NUMBERS, "int1": ()}) for name, operator in _COMPARISONS.items()},
    "__truediv__": (np.divide, {"fp32": (int, float)}),
}


def _make_quick(name: str, operator: Callable[..., np.ndarray], kinds: dict[str, tuple[type, ...]]) -> None:
    """Give operands of one type, numbers of Python and offsets of pointers to NumPy at once."""
    general, is_added = getattr(tl.tensor, name), name == "__add__"

    def operate(left: Any, right: Any) -> Any:
        if type(right) is tl.constexpr:
            right = right.value
        kind, data, is_block = left.dtype, left.handle.data, left.type.is_block()
        numbers = kinds.get(kind.name)
        if type(right) is tl.tensor:
            other, is_block = right.handle.data, is_block or right.type.is_block()
            if numbers is not None and right.dtype is kind:
                data = operator(data, other)
            elif is_added and kind.is_ptr() and right.dtype.name in ("int32", "int64"):
                data = data + max(1, kind.element_ty.primitive_bitwidth // 8) * other.astype(np.uint64)
            else:
                return general(left, right)
        elif numbers is not None and type(right) in numbers:
            data = operator(data, right)
        else:
            return general(left, right)
        if data.dtype == np.bool_:
            kind = tl.int1
        return tl.tensor(interpreter.TensorHandle(data, kind), tl.block_type(kind, data.shape) if is_block else kind)

    setattr(tl.tensor, name, operate)


@lru_cache(maxsize=None, typed=True)
def _argument(value: int) -> Any:
    return interpreter._implicit_cvt(value)


def _launch(executor: Any, *given: Any, **named: Any) -> None:
    """Run the programs of a launch one by one."""
    parameters = dict(zip(executor.arg_names, given, strict=False))
    parameters |= {name: value for name, value in named.items() if name in executor.arg_names}
    for name, value in parameters.items():
        if name not in executor.constexprs:
            parameters[name] = _argument(value) if type(value) in (int, bool) else interpreter._implicit_cvt(value)
    builder, grid = interpreter.interpreter_builder, (*executor.grid, 1, 1)[:3]
    builder.set_grid_dim(*grid)
    for place in itertools.product(*map(range, grid)):
        builder.set_grid_idx(*place)
        executor.fn(**parameters)


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

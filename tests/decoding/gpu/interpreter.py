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
    """Make the interpreter faster: a kernel's functions use what its launch has patched in `triton.language`.

    Sums of 32-bit integers are not computed in 64 bits, too, to find overflows, which small models do not have.
    """
    patch = interpreter._patch_lang

    def patch_lang(fn: Any) -> Any:
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        is_patched = not any(tl.core.is_builtin(language.load) for language in languages)
        return interpreter._LangPatchScope() if is_patched else patch(fn)

    interpreter._patch_lang = patch_lang
    interpreter.ReduceOps.apply_impl = _reduce
    TritonSemantic.binary_op_sanitize_overflow_impl = lambda *_: None


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

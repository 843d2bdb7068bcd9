"""Round weights for `--fp16` and `--bf16`.

Weights are rounded as by `model.half()`. A GPU computes with them in half precision. A CPU computes with the rounded
values in fp32, which is faster there and is the type that the compiled kernels read.
"""

import copy
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import nn

from fairseq_plugins.decoding.method import MethodContext
from fairseq_plugins.models.block_nat import BlockNat

HALF_DTYPES = (torch.float16, torch.bfloat16)


def precision_of(models: Sequence[nn.Module], bf16: bool) -> torch.dtype:
    """Return the weights' type: that of the models, or bfloat16 for `--bf16`, which fairseq-generate ignores."""
    dtype = next(models[0].parameters()).dtype
    return torch.bfloat16 if bf16 and dtype == torch.float32 else dtype


def with_rounded_weights(
    context: MethodContext, dtype: torch.dtype, copies: MutableMapping[nn.Module, nn.Module]
) -> MethodContext:
    """Return the context with weights rounded to `dtype`; generators of the same models share the `copies`."""
    models = [_rounded(model, dtype, copies) for model in context.models]
    drafter = None if context.drafter is None else _rounded(context.drafter, dtype, copies)
    assert drafter is None or isinstance(drafter, BlockNat)
    return replace(context, models=models, drafter=drafter)


def _rounded(model: nn.Module, dtype: torch.dtype, copies: MutableMapping[nn.Module, nn.Module]) -> nn.Module:
    parameter = next(model.parameters())
    stored = torch.float32 if dtype in HALF_DTYPES and parameter.device.type == "cpu" else dtype
    if parameter.dtype == dtype == stored:
        return model
    # No inference tensors: a later validation may write to them.
    with torch.inference_mode(False), torch.no_grad():
        held = next(copies[model].parameters()) if model in copies else None
        is_alike = held is not None and (held.device, held.dtype) == (parameter.device, stored)
        if not is_alike or _settings(copies[model]) != _settings(model):
            copies[model] = copy.deepcopy(model).to(stored)
        values = model.state_dict().values()
        for target, value in zip(copies[model].state_dict().values(), values, strict=True):
            target.copy_(value.to(dtype) if value.is_floating_point() else value)
    return copies[model]


def _settings(model: nn.Module) -> list[tuple[type, dict[str, Any]]]:
    """Return the class of each part, with its numbers and functions, which are the same in a copy."""
    kinds = (int, float, str, FunctionType, BuiltinFunctionType)
    return [
        (type(part), {name: value for name, value in vars(part).items() if isinstance(value, kinds)})
        for part in model.modules()
    ]

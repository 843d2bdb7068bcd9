"""What `--fp16` and `--bf16` compute with.

Weights are rounded as `model.half()` rounds them. On a GPU they are what products read. A CPU computes in fp32 with
their values: it is faster there than half precision, and the kernels read fp32.
"""

import copy
from collections.abc import MutableMapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from fairseq_plugins.decoding.method import MethodContext
from fairseq_plugins.models.block_nat import BlockNat

HALVES = (torch.float16, torch.bfloat16)


def precision_of(models: Sequence[nn.Module], bf16: bool) -> torch.dtype:
    """The type of the weights: that of the models, or bfloat16 for `--bf16`, which fairseq-generate does not heed."""
    dtype = next(models[0].parameters()).dtype
    return torch.bfloat16 if bf16 and dtype == torch.float32 else dtype


def computed(context: MethodContext, dtype: torch.dtype, copies: MutableMapping[nn.Module, nn.Module]) -> MethodContext:
    """The same context with the models that are computed with, where these are others.

    Args:
        context: of a method.
        dtype: of the weights, see `precision_of`.
        copies: of each model the one that is computed with; kept, so that generators of the same models share them.
    """
    models = [_computed(model, dtype, copies) for model in context.models]
    drafter = None if context.drafter is None else _computed(context.drafter, dtype, copies)
    assert drafter is None or isinstance(drafter, BlockNat)
    return replace(context, models=models, drafter=drafter)


def _computed(model: nn.Module, dtype: torch.dtype, copies: MutableMapping[nn.Module, nn.Module]) -> nn.Module:
    parameter = next(model.parameters())
    wanted = torch.float32 if dtype in HALVES and parameter.device.type == "cpu" else dtype
    if parameter.dtype == dtype == wanted:
        return model
    # Not part of a computation that is not recorded: a later validation may write to them.
    with torch.inference_mode(False), torch.no_grad():
        if model not in copies:
            copies[model] = copy.deepcopy(model).to(wanted)
        values = model.state_dict().values()
        for target, value in zip(copies[model].state_dict().values(), values, strict=True):
            target.copy_(value.to(dtype) if value.is_floating_point() else value)
    return copies[model]

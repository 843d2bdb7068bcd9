"""Find parts of a model that compute something else than fairseq's own: subclasses, hooks, replaced methods.

The engine reads weights and runs its own operations. Whatever a part adds to its weights would be lost silently.
"""

import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

import fairseq
import torch
from fairseq.modules import (
    FairseqDropout,
    LayerDropModuleList,
    LearnedPositionalEmbedding,
    MultiheadAttention,
    SinusoidalPositionalEmbedding,
    layer_norm,
)
from fairseq.modules.checkpoint_activations import _checkpointed_forward
from torch import nn

# Modules without weights, or of which the engine knows what they do with theirs.
_EXACT: set[type[nn.Module]] = {
    *(nn.Linear, nn.LayerNorm, nn.Embedding, nn.ModuleList, nn.ModuleDict, nn.Dropout, nn.Identity, nn.GRU),
    *(FairseqDropout, LayerDropModuleList, LearnedPositionalEmbedding, MultiheadAttention),
    SinusoidalPositionalEmbedding,
}
if layer_norm.has_fused_layernorm:
    _EXACT.add(layer_norm.FusedLayerNorm)
# Methods that build a module, or read its weights; all others take part in computing.
_BUILDING = ("__init__", "build_", "upgrade_state_dict", "load_state_dict", "_load_from_state_dict", "max_positions")


def changed_part(root: nn.Module, classes: Iterable[type[nn.Module]], equivalent: Iterable[Any] = ()) -> str | None:
    """Return what an encoder or decoder has, in any of its modules, that does not compute as fairseq's own, or None.

    Subclasses of the `classes` of fairseq may change how they are built. Methods of theirs that are `equivalent`
    compute the same.
    """
    for kind in dict.fromkeys(map(type, root.modules())):
        replaced_method = replaced_in_class(kind)
        if replaced_method is not None:
            return f"its class {kind.__name__} has a replaced {replaced_method}()"
    for name, module in root.named_modules():
        kind, place = type(module), f" ({name})" if name else ""
        base = next((known for known in classes if isinstance(module, known)), None)
        if base is not None:
            changed = _changed_method(kind, base, equivalent)
            if changed is not None:
                return f"its {kind.__name__}{place} changes {changed}()"
        elif kind not in _EXACT and not kind.__module__.startswith("fairseq_plugins."):
            return f"it has a {kind.__module__.partition('.')[0]} {kind.__name__}{place}, which is not fairseq's own"
        for replaced, value in vars(module).items():
            if callable(getattr(kind, replaced, None)) and not _is_checkpointed(value):
                return f"its {kind.__name__}{place} has a replaced {replaced}()"
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            # fairseq's own do nothing outside of training.
            if getattr(hook, "__module__", None) != "fairseq.modules.quant_noise":
                return f"its {kind.__name__}{place} has a forward hook"
        reason = _unusual_settings(module)
        if reason is not None:
            return f"its {kind.__name__}{place} {reason}"
    return None


def replaced_in_class(kind: type[nn.Module], names: Collection[str] | None = None) -> str | None:
    """Return a method of fairseq's or torch's classes under `kind` that a program has replaced by its own; or None.

    `names`: only these methods; None for all that take part in computing.
    """
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in ("fairseq", "torch"):
            continue
        for name, value in vars(base).items():
            if names is None and (name.startswith(_BUILDING) or (base is nn.Module and name not in _CALLING)):
                continue
            if (names is None or name in names) and callable(value) and not isinstance(value, type):
                code = getattr(getattr(value, "__func__", value), "__code__", None)
                if code is None or not code.co_filename.startswith(_FOLDERS):
                    return name
    return None


_CALLING = ("__call__", "_wrapped_call_impl", "_call_impl")
_FOLDERS = tuple(os.path.dirname(str(package.__file__)) + os.sep for package in (fairseq, torch))


def shared_part(layers: nn.ModuleList) -> str | None:
    """Return which attention several places of a decoder share, with one cache in fairseq; None if none is shared."""
    seen: dict[int, str] = {}
    for name, module in layers.named_modules(remove_duplicate=False):
        if isinstance(module, MultiheadAttention) and seen.setdefault(id(module), name) != name:
            return f"its layers.{name} and layers.{seen[id(module)]} are one attention"
    return None


def _changed_method(kind: type[nn.Module], base: type[nn.Module], equivalent: Iterable[Any]) -> str | None:
    """Return a method by which a subclass computes something else than `base`."""
    allowed = list(equivalent)
    for name in dir(base):
        own, original = getattr(kind, name, None), getattr(base, name)
        if own is original or not isinstance(original, Callable) or name.startswith(_BUILDING):  # type: ignore[arg-type]
            continue
        is_data = name.startswith("__") and name not in ("__call__", "__getattr__", "__getattribute__")
        if (
            not is_data
            and own not in allowed
            and getattr(own, "__func__", own) is not getattr(original, "__func__", original)
        ):
            return name
    return None


def _is_checkpointed(value: Any) -> bool:
    """Return whether this is what --checkpoint-activations puts in the place of `forward`."""
    return getattr(value, "func", None) is _checkpointed_forward


def _unusual_settings(module: nn.Module) -> str | None:
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "has max_norm"
    if isinstance(module, nn.LayerNorm) and (module.weight is None or module.bias is None):
        return "has no weight or no bias"
    if isinstance(module, MultiheadAttention):
        if module.scaling != module.head_dim**-0.5:
            return "has another scaling"
        if module.bias_k is not None or module.add_zero_attn or module.use_xformers:
            return "uses bias_kv, add_zero_attn or xformers"
    return None

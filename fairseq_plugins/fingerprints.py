"""Numbers that tell dictionaries and weights apart, kept in checkpoints so that what does not fit can be refused."""

import zlib
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

_KEPT = "fingerprint_before_rounding"


def keep_fingerprint(*modules: nn.Module) -> None:
    """Let modules keep the fingerprint of their weights, before these are rounded to bf16 and cannot be told."""
    for module in modules:
        setattr(module, _KEPT, weights_fingerprint(module))


def fingerprint(*parts: Any) -> Tensor:
    """A number [1] that tells dictionaries (or weights) apart, to be kept in a checkpoint."""
    value = 0
    for part in parts:
        value = zlib.crc32(part if isinstance(part, bytes) else str(part).encode(), value)
    return torch.tensor([value])


def dictionary_fingerprint(dictionary: Dictionary) -> Tensor:
    """Fingerprint [1] of the symbols of a dictionary, in order."""
    return fingerprint("\n".join(dictionary.symbols))


def weights_fingerprint(module: nn.Module) -> Tensor:
    """Fingerprint [1] of a module's weights in half precision, so that fp16 copies of a model count as the same.

    Of a module that was rounded further, what `keep_fingerprint` kept.
    """
    kept = getattr(module, _KEPT, None)
    return state_fingerprint(module.state_dict()) if kept is None else kept


def state_fingerprint(state: dict[str, Tensor]) -> Tensor:
    """The same of a module's state, as a checkpoint of it has it."""
    weights = (value for name, value in state.items() if not name.endswith("version"))
    return fingerprint(*(value.detach().half().cpu().numpy().tobytes() for value in weights))

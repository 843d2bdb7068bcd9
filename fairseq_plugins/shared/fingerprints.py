"""Fingerprints of dictionaries and weights, saved in checkpoints to refuse models and data that do not fit."""

import zlib

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

_KEPT = "fingerprint_before_rounding"


def keep_fingerprint(*modules: nn.Module) -> None:
    """Store the fingerprint of the modules' weights before these are rounded to bf16, which changes it."""
    for module in modules:
        setattr(module, _KEPT, weights_fingerprint(module))


def dictionary_fingerprint(dictionary: Dictionary) -> Tensor:
    """Return the fingerprint [1], a CRC-32, of the symbols of a dictionary, in order."""
    return torch.tensor([zlib.crc32("\n".join(dictionary.symbols).encode())])


def weights_fingerprint(module: nn.Module) -> Tensor:
    """Return the fingerprint [1] of a module's weights in half precision, which is the same for fp16 copies.

    For a module rounded to bf16 this is the one stored by `keep_fingerprint`.
    """
    stored = getattr(module, _KEPT, None)
    return state_fingerprint(module.state_dict(keep_vars=True)) if stored is None else stored


def state_fingerprint(state: dict[str, Tensor]) -> Tensor:
    """Return the fingerprint [1] of a module's state, as saved in a checkpoint."""
    value = 0
    for name, weight in state.items():
        if not name.endswith("version"):
            # Not an operation on a `CompactWeight` (checkpoint/compact_weights.py): the first one is slow.
            whole = weight.restored() if hasattr(weight, "restored") else weight
            value = zlib.crc32(whole.detach().half().cpu().contiguous().numpy().data, value)
    return torch.tensor([value])

"""Load a drafter for a verifier, and find the drafter of a training."""

from typing import Any

from torch import nn

from fairseq_plugins.checkpoint.loading import build_model, read_checkpoint, unwrap
from fairseq_plugins.checkpoint.mapped_weights import TakeWeights
from fairseq_plugins.checkpoint.settings import model_name
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.models.block_nat import BlockNat


def drafter_in(model: nn.Module) -> BlockNat | None:
    """Return the drafter inside of fairseq's wrappers for distributed training, None for other models."""
    model = unwrap(model)
    return model if isinstance(model, BlockNat) else None


def load_drafter(path: str, verifier: nn.Module, task: Any) -> BlockNat:
    """Load a drafter for a verifier; raise ConfigurationError if they do not fit each other."""
    option = "--drafter-path"
    state, cfg = read_checkpoint(path, option)
    if model_name(cfg).startswith("block_nat"):
        if getattr(cfg, "tune_verifier", False):
            remedy = "part them with python -m train_scripts.tools split-verifier, and decode with both"
            raise ConfigurationError(option, path, "holds a verifier of its own ({--tune-verifier})", remedy)
        if getattr(cfg, "positions_every_layer", False):
            raise ConfigurationError(option, path, "was trained with --positions-every-layer, now gone", "train anew")
        try:
            # Before it is built: its options name layers and widths of its own verifier.
            BlockNat.check_verifier(state["model"], cfg, verifier)
        except ValueError as error:
            remedy = "give the verifier that it was trained with as {--path}, or train a drafter for this one"
            raise ConfigurationError(option, path, f"{error} than {{--path}}", remedy) from error
    with TakeWeights():
        drafter = build_model(state, cfg, path, task, option, required=BlockNat, verifier=verifier)
    assert isinstance(drafter, BlockNat)
    return drafter

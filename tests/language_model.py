"""A random language model of fairseq, for `--lm-path`."""

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer_lm import TransformerLanguageModel, base_lm_architecture
from omegaconf import OmegaConf

from fairseq_plugins.checkpoint.averaging import new_checkpoint
from fairseq_plugins.shared.parsing import as_config
from tests.support import liven, make_args


def make_language_model(dictionary: Dictionary, seed: int = 1, **options: Any) -> tuple[Any, Namespace]:
    """Return a model and its options."""
    torch.manual_seed(seed)
    args = make_args(decoder_layers=1, **{"tokens_per_sample": 64, **options})
    base_lm_architecture(args)
    args.decoder_output_dim = args.decoder_input_dim = args.decoder_embed_dim

    class Task:
        source_dictionary = target_dictionary = output_dictionary = dictionary

    return liven(TransformerLanguageModel.build_model(args, Task())), args


def write_language_model(folder: Path, dictionary_file: Path) -> Path:
    """Write a checkpoint and dict.txt to a folder; return the path of the checkpoint."""
    shutil.copy(dictionary_file, folder / "dict.txt")
    model, args = make_language_model(
        Dictionary.load(str(folder / "dict.txt")),
        max_target_positions=64, task="language_modeling",
        arch="transformer_lm", data=str(folder), criterion="cross_entropy", optimizer="adam",
    )  # fmt: skip
    cfg = OmegaConf.to_container(as_config(args), resolve=True, enum_to_str=True)
    torch.save(new_checkpoint(model.state_dict(), cfg=cfg), folder / "lm.pt")
    return folder / "lm.pt"

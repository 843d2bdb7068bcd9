"""A random language model of fairseq, for `--lm-path`."""

import shutil
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer_lm import TransformerLanguageModel, base_lm_architecture
from omegaconf import OmegaConf

from fairseq_plugins.checkpoint.averaging import new_checkpoint
from fairseq_plugins.shared.parsing import as_config
from tests.support import liven, make_args


def write_language_model(folder: Path, dictionary_file: Path, most_tokens: int = 64) -> Path:
    """Write a checkpoint and dict.txt to a folder; return the path of the checkpoint."""
    shutil.copy(dictionary_file, folder / "dict.txt")
    torch.manual_seed(1)
    args = make_args(
        decoder_layers=1, tokens_per_sample=most_tokens, max_target_positions=most_tokens, task="language_modeling",
        arch="transformer_lm", data=str(folder), criterion="cross_entropy", optimizer="adam",
    )  # fmt: skip
    base_lm_architecture(args)
    args.decoder_output_dim = args.decoder_input_dim = args.decoder_embed_dim
    dictionary = Dictionary.load(str(folder / "dict.txt"))

    class Task:
        source_dictionary = target_dictionary = output_dictionary = dictionary

    model = liven(TransformerLanguageModel.build_model(args, Task()))
    cfg = OmegaConf.to_container(as_config(args), resolve=True, enum_to_str=True)
    torch.save(new_checkpoint(model.state_dict(), cfg=cfg), folder / "lm.pt")
    return folder / "lm.pt"

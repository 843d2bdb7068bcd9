"""`load(lm_path=...)`: a language model joins beam search, as with fairseq-generate."""

import shutil
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.transformer_lm import TransformerLanguageModel, base_lm_architecture
from omegaconf import OmegaConf

import fairseq_plugins
from fairseq_plugins.checkpoint.averaging import write_checkpoint
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.parsing import as_config
from tests.support import REPOSITORY, liven, make_args

CLDR = REPOSITORY / "checkpoints" / "cldr.en-de"
TEXTS = ["Austrian German", "the day before yesterday", "in 3 months", "Chinese (Traditional)", "next week"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a random language model, lm.pt, and its dictionary, dict.txt."""
    folder = tmp_path_factory.mktemp("lm")
    for name in ("dict.en.txt", "dict.de.txt", "subwords.model", "verifier.pt"):
        shutil.copy(CLDR / name, folder)
    shutil.copy(CLDR / "dict.de.txt", folder / "dict.txt")
    torch.manual_seed(1)
    args = make_args(
        decoder_layers=1, tokens_per_sample=64, max_target_positions=64, task="language_modeling",
        arch="transformer_lm", data=str(folder), criterion="cross_entropy", optimizer="adam",
    )  # fmt: skip
    base_lm_architecture(args)
    args.decoder_output_dim = args.decoder_input_dim = args.decoder_embed_dim
    dictionary = Dictionary.load(str(folder / "dict.txt"))

    class Task:
        source_dictionary = target_dictionary = output_dictionary = dictionary

    model = liven(TransformerLanguageModel.build_model(args, Task()))
    state = {
        "args": None, "cfg": OmegaConf.to_container(as_config(args), resolve=True, enum_to_str=True),
        "model": model.state_dict(), "extra_state": {}, "last_optimizer_state": None,
        "optimizer_history": [{"num_updates": 0, "criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}}],
    }  # fmt: skip
    write_checkpoint(folder / "lm.pt", state, "OUT")
    return folder


def test_the_language_model_joins_both_searches(data: Path) -> None:
    options = {"lm_path": str(data / "lm.pt"), "lm_weight": 0.6}
    found = [
        fairseq_plugins.load(data, decoder=decoder, device="cpu", source_lang="en", target_lang="de", **more).translate(
            TEXTS, beam=3
        )
        for decoder, more in (("fast-beam", options), ("beam", options), ("beam", {}))
    ]
    assert found[0] == found[1] != found[2]


def test_other_decoders_refuse_it(data: Path) -> None:
    with pytest.raises(ConfigurationError, match="lm_path"):
        fairseq_plugins.load(
            data, decoder="greedy", device="cpu", source_lang="en", target_lang="de", lm_path=str(data / "lm.pt")
        )
    with pytest.raises(ConfigurationError, match="lm_path"):
        fairseq_plugins.load(
            data, decoder="fast-beam", device="cpu", source_lang="en", target_lang="de", lm_path=str(data / "none.pt")
        )

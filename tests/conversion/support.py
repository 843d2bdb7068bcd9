"""Random small models in Hugging Face's format, saved by `transformers`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import fairseq_plugins
from tests.support import both_sides


class Transformers(dict[str, Any]):
    """The classes of transformers by name, imported when they are asked for: that takes seconds."""

    def __missing__(self, name: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            # The torchaudio that fairseq brings may be of another torch; transformers imports it where it finds it.
            patch.setitem(sys.modules, "torchaudio", None)
            self[name] = getattr(pytest.importorskip("transformers"), name)
        return self[name]


CLASSES = TOKENIZERS = Transformers()

SIZE = 60
SIZES = both_sides(layers=2, attention_heads=4, ffn_dim=48)
MARIAN = {"pad_token_id": SIZE - 1, "eos_token_id": 0, "decoder_start_token_id": SIZE - 1, "bos_token_id": None}
# Name -> class, settings.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMTModel", {**MARIAN, "activation_function": "swish", "scale_embedding": True}),
    "marian-relu": ("MarianMTModel", {**MARIAN, "activation_function": "relu", "scale_embedding": True}),
    # transformers never trains the bias: that of a Marian model trained from scratch is zero.
    "marian-unbiased": ("MarianMTModel", {**MARIAN, "activation_function": "swish", "scale_embedding": True}),
    "marian-relu-unbiased": ("MarianMTModel", {**MARIAN, "activation_function": "relu", "scale_embedding": True}),
    "m2m100": ("M2M100ForConditionalGeneration", {}),
    "m2m100-swish": ("M2M100ForConditionalGeneration", {"activation_function": "swish"}),
    "nllb": ("M2M100ForConditionalGeneration", {"scale_embedding": True}),
    "mbart50": ("MBartForConditionalGeneration", {"decoder_start_token_id": 2, "scale_embedding": True}),
    "bart": ("BartForConditionalGeneration", {}),
    "bart-free": ("BartForConditionalGeneration", {"decoder_layers": 1}),
}
# Source and target language of multilingual models -> their tokens.
LANGUAGES = {
    "m2m100": {"en": "__en__", "de": "__de__"},
    "m2m100-swish": {"en": "__en__", "de": "__de__"},
    "nllb": {"eng_Latn": "eng_Latn", "deu_Latn": "deu_Latn"},
    "mbart50": {"en_XX": "en_XX", "de_DE": "de_DE"},
}


def languages(name: str) -> dict[str, str]:
    """Return the arguments of `load` for a model of `MODELS`."""
    return dict(zip(("source_lang", "target_lang"), LANGUAGES.get(name, ()), strict=False))


def first_tokens(name: str) -> tuple[int | None, int | None]:
    """Return the ids that sources and outputs of a model begin with."""
    if name in LANGUAGES:
        return SIZE - 2, SIZE - 3
    return {"bart": (0, 0), "bart-free": (0, None)}.get(name, (None, None))


def save_model(name: str, folder: Path, **changed: Any) -> Any:
    """Save a random model and its vocabulary; return it as it is read again, in eval mode."""
    kind, settings = MODELS[name]
    model_class = CLASSES[kind]
    config = model_class.config_class(
        vocab_size=SIZE, max_position_embeddings=64, **{"d_model": 32, **SIZES, **settings, **changed}
    )
    torch.manual_seed(3)
    model = model_class(config)
    liven(model, with_bias=not name.endswith("unbiased"))
    if name == "bart":
        model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in names(name).items()}))
    return model_class.from_pretrained(folder).eval()


def sources(count: int = 30) -> list[list[int]]:
    """Return random sentences of ids that are words in every model, without EOS."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return [torch.randint(4, SIZE - 3, (length,), generator=generator).tolist() for length in lengths]


@torch.no_grad()
def generated(model: Any, name: str, **options: Any) -> list[list[int]]:
    """Return the ids of words that Hugging Face's greedy search gives for `sources()`."""
    eos, pad = model.config.eos_token_id, model.config.pad_token_id
    first, forced = first_tokens(name)
    rows = pad_sequence(
        [torch.tensor([*([] if first is None else [first]), *ids, eos]) for ids in sources()], True, pad
    )
    if forced is not None:
        options["forced_bos_token_id"] = forced
    outputs = model.generate(
        rows,
        attention_mask=(rows != pad).long(),
        num_beams=1,
        do_sample=False,
        # fairseq never generates the padding.
        bad_words_ids=[[pad], *(model.generation_config.bad_words_ids or [])],
        **options,
    )
    ended = [ids[: ids.index(eos)] if eos in ids else ids for ids in outputs[:, 1:].tolist()]
    # fairseq takes the forced token for no text wherever it stands.
    return [[number for number in ids if number != forced] for ids in ended]


def converted(name: str, folder: Path, decoder: str = "greedy", **options: Any) -> list[list[int]]:
    """Return the outputs of a converted model for `sources()` as Hugging Face's ids."""
    model, token = (
        fairseq_plugins.load(folder, decoder=decoder, device="cpu", **languages(name), **options),
        names(name),
    )
    numbers = {text: number for number, text in token.items()}
    search = {"beam": 1} if decoder == "beam" else {}
    outputs = model.translate_batch([[token[number] for number in one] for one in sources()], batch_size=16, **search)
    return [[numbers[text] for text in one.tokens] for one in outputs]


def names(name: str) -> dict[int, str]:
    """Return id -> token of a model of `MODELS`."""
    special = {0: "<s>", 1: "<pad>", 2: "</s>", 3: "<unk>"}
    if name.startswith("marian"):
        special = {0: "</s>", 1: "<unk>", SIZE - 1: "<pad>"}
    special |= dict(zip((SIZE - 2, SIZE - 3), LANGUAGES.get(name, {}).values(), strict=False))
    return {number: special.get(number, f"w{number}") for number in range(SIZE)}


@torch.no_grad()
def liven(model: Any, with_bias: bool = True) -> None:
    """Let outputs depend on source and place, and end after different numbers of tokens."""
    eos, has_bias = model.config.eos_token_id, with_bias and model.config.model_type in ("marian", "bart")
    for name, weight in model.named_parameters():
        if ".layers." in name and weight.dim() == 2:
            weight.normal_(std=2.0 if "q_proj" in name or "k_proj" in name else 0.25)
        elif "shared" in name:
            weight.normal_(std=0.1 if model.config.model_type == "m2m_100" else 0.4)
            if not has_bias:
                weight[eos] *= 4
        elif weight.dim() == 1:
            weight += 0.1 * torch.randn_like(weight)
        elif model.config.model_type != "marian":  # whose positions are sinusoids
            weight.normal_(std=0.5)
    if has_bias:
        model.final_logits_bias.normal_(std=0.1)
        model.final_logits_bias[0, eos] = 1.6

"""Convert a folder in Hugging Face's format, atomically: before it gets its name it must cut text, load and decode."""

import os
import re
from argparse import Namespace
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sentencepiece
import torch
from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_plugins.checkpoint.averaging import new_checkpoint, write_checkpoint
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.conversion.families import Config
from fairseq_plugins.conversion.generation import generation_options
from fairseq_plugins.conversion.settings import LoadSettings
from fairseq_plugins.conversion.vocabulary import Vocabulary, byte_level_bpe, marian_languages, text_files
from fairseq_plugins.conversion.weights import fairseq_weights, read_weights
from fairseq_plugins.errors import ConfigurationError, one_line
from fairseq_plugins.process.output import quiet_fairseq
from fairseq_plugins.shared.checksums import write_sums
from fairseq_plugins.shared.files import first_of, missing_folder, new_folder, write_atomically
from fairseq_plugins.shared.parsing import as_config

# Largest share of the subword model's pieces that the vocabulary may lack. Trained vocabularies lack a few.
_MOST_UNKNOWN = 0.1
# Language tokens in the vocabularies of M2M-100 (`__de__`), NLLB (`deu_Latn`) and mBART-50 (`de_DE`).
_LANGUAGE = re.compile(r"__([a-z]{2,3})__|[a-z]{3}_[A-Z][a-z]{3}|[a-z]{2}_[A-Z]{2}")


def convert(source: Path, target: Path, ignored: Collection[str] = ()) -> None:
    """Write verifier.pt, dictionaries, subwords, load.json and SHA256SUMS for a model in Hugging Face's format.

    Args:
        source: folder with config.json, weights and a tokenizer: Marian, M2M100, NLLB, mBART-50 or BART.
        target: new folder.
        ignored: names of settings of generation_config.json that shall not count.

    Raises ConfigurationError for an unsupported model, settings that cannot be honoured, missing files, a model that
    cannot be loaded or decode a sentence afterwards, or a folder that exists or cannot be written.
    """
    if not source.is_dir():
        raise missing_folder(None, source, "one that save_pretrained wrote")
    if os.path.lexists(target):
        raise ConfigurationError(None, target, "exists already", "give another folder")
    adapter = first_of(source, "adapter_config.json")
    if adapter is not None:
        problem = "is of an adapter (PEFT), which the output would lack"
        remedy = "merge it into its model with merge_and_unload, and save that into a folder without it"
        raise ConfigurationError(None, adapter, problem, remedy)
    config = Config(source)
    bpe = byte_level_bpe(source)
    vocabulary = Vocabulary(source, config, bpe)
    subwords = text_files(source, bpe, vocabulary.unmerged)
    settings = _settings_of(config, vocabulary, ignored)
    state = _state(source, config, vocabulary)
    with new_folder(target, "OUT") as folder:
        write_checkpoint(folder / "verifier.pt", state, "OUT")
        for side in ("src", "tgt"):
            write_atomically(folder / f"dict.{side}.txt", vocabulary.lines(), "OUT")
        for name, content in subwords.items():
            (folder / name).write_bytes(content)
        settings.write(folder)
        _check_subwords(folder, source, vocabulary.symbols)
        _check_decodes(folder, source, vocabulary.symbols)
        write_sums(folder)


def _state(source: Path, config: Config, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return fairseq's checkpoint."""
    weights = fairseq_weights(read_weights(source), config, vocabulary.order)
    args = config.fairseq_options(has_bias="decoder.output_projection.bias" in weights)
    weights = _in_fairseqs_order(weights, args)
    return new_checkpoint(weights, cfg=OmegaConf.to_container(as_config(args), resolve=True, enum_to_str=True))


def _in_fairseqs_order(weights: dict[str, Tensor], args: Namespace) -> dict[str, Tensor]:
    """Return weights in the order of fairseq's model, which its fingerprint depends on."""
    words = Dictionary()
    with torch.device("meta"):  # names alone
        model = ARCH_MODEL_REGISTRY[args.arch].build_model(
            Namespace(**vars(args)), SimpleNamespace(source_dictionary=words, target_dictionary=words)
        )
    place = {name: number for number, name in enumerate(model.state_dict())}
    return dict(sorted(weights.items(), key=lambda item: place.get(item[0], len(place))))


def _settings_of(config: Config, vocabulary: Vocabulary, ignored: Collection[str] = ()) -> LoadSettings:
    """Return the settings with which `load` decodes as Hugging Face's `generate` does by default.

    Raises ConfigurationError for a multilingual model without language tokens, and as `generation_options`.
    """
    options = generation_options(config, vocabulary.names, ignored)
    if config["model_type"] == "bart":
        options["source_first_token"] = "<s>"
    elif config["model_type"] == "marian":
        options |= marian_languages(config.file.parent)
    languages = {}
    if config["model_type"] in ("m2m_100", "mbart"):
        for symbol in vocabulary.symbols:
            match = _LANGUAGE.fullmatch(symbol)
            if match is not None:
                languages[match[1] or symbol] = symbol
        if not languages:
            problem = "has no language tokens (__de__, deu_Latn or de_DE), with which sources and outputs of a "
            problem += f"{config['model_type']} model begin"
            remedy = "save its tokenizer into it with save_pretrained"
            raise ConfigurationError(None, config.file.parent, problem, remedy)
    return LoadSettings(languages, options)


def _check_subwords(folder: Path, source: Path, symbols: Sequence[str]) -> None:
    """Raise ConfigurationError for a subword model that fits another vocabulary than the dictionary's `symbols`.

    `folder` has the converted model; the error names the `source`.
    """
    known = set(symbols)
    for name in ("subwords.model", "subwords.target.model"):
        if not (folder / name).is_file():
            continue
        model = sentencepiece.SentencePieceProcessor(model_proto=(folder / name).read_bytes())
        pieces = [
            model.id_to_piece(number)
            for number in range(len(model))
            if not (model.is_control(number) or model.is_unknown(number) or model.is_unused(number))
        ]
        unknown = sum(piece not in known for piece in pieces)
        if unknown > _MOST_UNKNOWN * len(pieces):
            of_side = " of the target" if "target" in name else ""
            problem = f"{unknown} of the {len(pieces)} pieces of its sentencepiece model{of_side} are not in its "
            problem += "vocabulary, so text would be unknown words"
            raise ConfigurationError(None, source, problem, "give the sentencepiece model that it was trained with")


def _check_decodes(folder: Path, source: Path, symbols: Sequence[str]) -> None:
    """Raise ConfigurationError if fairseq cannot load a converted model, or cannot decode a sentence with it.

    Arguments as for `_check_subwords`.
    """
    cfg = OmegaConf.structured(FairseqConfig())
    cfg.task = OmegaConf.structured(TranslationConfig(data=str(folder), source_lang="src", target_lang="tgt"))
    OmegaConf.set_struct(cfg, False)
    cfg.task._name = "translation"
    cfg.common.cpu = True
    cfg.common_eval.path = str(folder / "verifier.pt")
    try:
        with quiet_fairseq():
            session = TaskSession(cfg)
            dictionary = session.task.source_dictionary
            words = [dictionary.index(symbol) for symbol in symbols[:4]]
            tokens = torch.tensor([*words[: session.max_positions[0] - 1], dictionary.eos()])
            dataset = session.task.build_dataset_for_inference([tokens], [len(tokens)])
            hypotheses = session.decode(session.generator(beam=1, max_len_b=4), session.batch(dataset, [0]))
    except Exception as error:  # whatever is wrong with the folder, fairseq's errors do not name it
        cause: BaseException = error
        while cause.__cause__ is not None:  # without the options and paths of loading, which the user did not give
            cause = cause.__cause__
        reason = one_line(str(cause).replace(f"{folder}/", ""), 300) or type(cause).__name__
        problem = f"its files do not fit each other: converted, it cannot be loaded or decode ({reason})"
        raise ConfigurationError(None, source, problem, "copy the model again") from error
    if not all(bool(torch.isfinite(hypothesis["positional_scores"]).all()) for hypothesis in hypotheses[0]):
        remedy = "copy the model again"
        raise ConfigurationError(None, source, "its weights have values that are NaN or infinite", remedy)

"""Check a converted folder before it gets its name: it has to cut text, load and decode."""

from collections.abc import Sequence
from pathlib import Path

import sentencepiece
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf

from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.errors import ConfigurationError, one_line
from fairseq_plugins.process.output import quiet_fairseq

_MOST_UNKNOWN = 0.1
"""Largest share of the subword model's pieces that the vocabulary may lack. Trained vocabularies lack a few."""


def check_subwords(folder: Path, source: Path, symbols: Sequence[str]) -> None:
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


def check_decodes(folder: Path, source: Path, symbols: Sequence[str]) -> None:
    """Raise ConfigurationError if fairseq cannot load a converted model, or cannot decode a sentence with it.

    Arguments as for `check_subwords`.
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

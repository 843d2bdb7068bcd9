"""Choose what cuts raw text: a subword model, and before codes of subword-nmt or fastBPE perhaps Moses's tokenizer."""

import logging
import re
from functools import cache
from pathlib import Path

from fairseq.data.encoders.gpt2_bpe import GPT2BPE, GPT2BPEConfig
from fairseq.data.encoders.gpt2_bpe_utils import Encoder
from fairseq.data.encoders.moses_tokenizer import MosesTokenizerConfig
from fairseq.data.encoders.sentencepiece_bpe import SentencepieceConfig
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPEConfig
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.api.files import GPT2_FILES, ModelFiles
from fairseq_plugins.checkpoint.session import TaskSession
from fairseq_plugins.data.fastbpe_codes import is_fastbpe
from fairseq_plugins.errors import ConfigurationError, one_line, spelled

logger = logging.getLogger(__name__)

# What Moses writes for an apostrophe, quotes, & | < > [ ], and for a hyphen inside a word.
_ESCAPED = re.compile(rb"&(apos|quot|amp|lt|gt|#124|#91|#93);?")
_DASH = re.compile(rb"^(\xe2\x96\x81)?@-@ ", re.MULTILINE)  # after sentencepiece's mark of a word


def set_text_tools(cfg: DictConfig, files: ModelFiles, tokenizer: str | None) -> None:
    """Set subwords and tokenizer in fairseq's configuration.

    The tokenizer is "moses", "none", or None to choose by subwords and dictionary; the choice is logged once. Moses
    escapes characters and splits hyphens only if the dictionary has its marks. Raises ConfigurationError for another
    tokenizer, or a file that is no subword model.
    """
    if tokenizer not in (None, "moses", "none"):
        raise ConfigurationError("--tokenizer", tokenizer, remedy="choose moses or none, or leave it out")
    if files.subwords is None:
        tokenizer = tokenizer or "none"
    elif files.subwords.endswith(".model"):
        cfg.bpe = OmegaConf.structured(SentencepieceConfig(_name="sentencepiece", sentencepiece_model=files.subwords))
    elif Path(files.subwords).is_dir():
        encoder, merges = (str(Path(files.subwords, name)) for name in GPT2_FILES)
        cfg.bpe = OmegaConf.structured(GPT2BPEConfig(_name="gpt2", gpt2_encoder_json=encoder, gpt2_vocab_bpe=merges))
    else:
        kind = "fastbpe_codes" if is_fastbpe(Path(files.subwords)) else "subword_nmt"
        cfg.bpe = OmegaConf.structured(SubwordNMTBPEConfig(_name=kind, bpe_codes=files.subwords))
        tokenizer = tokenizer or _by_marks(_dictionary(files))
    if tokenizer == "moses":
        escapes, splits_dashes = marks_of_moses(_dictionary(files))
        cfg.tokenizer = OmegaConf.structured(
            MosesTokenizerConfig(
                _name="moses",
                source_lang=files.source_lang,
                target_lang=files.target_lang,
                moses_no_escape=not escapes,
                moses_no_dash_splits=not splits_dashes,
            )
        )


def check_text_tools(session: TaskSession, subwords: str | None) -> None:
    """Raise ConfigurationError for subwords that cannot be read or cut no text, before the first sentence."""
    try:
        _, bpe = session.text_tools
        if bpe is not None:
            bpe.encode("A dog.")
            subwords = session.target_subwords or subwords
            session.target_bpe.encode("A dog.")
        if isinstance(bpe, GPT2BPE):
            _check_bytes(bpe.bpe, session)
    except (Exception, SystemExit) as error:  # subword-nmt ends the process
        said: object = error
        remedy = "copy the file again"
        if isinstance(error, ConfigurationError):
            said, remedy = error.problem, error.remedy
        reason = one_line(said, 200) or type(error).__name__
        raise ConfigurationError("--subwords", subwords, f"cannot be read ({reason})", remedy) from error


def _check_bytes(encoder: Encoder, session: TaskSession) -> None:
    """Raise ValueError if some text would have no ids, or most ids of the dictionary no text (few are added tokens)."""
    pieces = {*encoder.byte_encoder.values(), *map("".join, encoder.bpe_ranks)}
    if not pieces <= encoder.encoder.keys():
        raise ValueError(f"encoder.json has no {min(pieces - encoder.encoder.keys())!r}")
    ids = {int(symbol) for symbol in session.task.target_dictionary.symbols if symbol.isdecimal()}
    missing = ids - encoder.decoder.keys()
    if 2 * len(missing) > len(ids):
        raise ValueError(f"encoder.json has no id {min(missing)} of the dictionary")


def _dictionary(files: ModelFiles) -> Path:
    named = Path(files.data, f"dict.{files.source_lang}.txt")
    return named if named.is_file() else Path(files.data, "dict.txt")


def marks_of_moses(dictionary: Path) -> tuple[bool, bool]:
    """Return whether a dictionary has characters that Moses escapes, and hyphens that it splits off."""
    content = dictionary.read_bytes() if dictionary.is_file() else b""
    return _ESCAPED.search(content) is not None, _DASH.search(content) is not None


def _by_marks(dictionary: Path) -> str:
    """Return the tokenizer of a dictionary; log the choice once."""
    escapes, splits_dashes = marks_of_moses(dictionary)
    found = " and ".join([*(["&apos; or the like"] if escapes else []), *(["@-@"] if splits_dashes else [])])
    choice = f"moses, since {dictionary} has {found}" if found else f"none, since {dictionary} has no &apos; and no @-@"
    other = "none" if found else "moses"
    _warn_once(spelled(f"tokenizer: {choice}; {{--tokenizer {other}}} says otherwise (check model.tokenize)"))
    return "moses" if found else "none"


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)

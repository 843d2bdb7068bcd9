"""The vocabulary of a model in Hugging Face's format: names of its ids, and their order in fairseq's dictionary."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import sentencepiece
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from fairseq_plugins.conversion.families import Config, TokenId
from fairseq_plugins.conversion.sentencepiece_model import Tokenizer, pairs_of, sentencepiece_model
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import first_of, read_file
from fairseq_plugins.shared.typed_values import read_json

ByteLevelBPE = tuple[dict[str, int], list[str]]
"""Vocabulary and merges of GPT-2's byte-level subwords."""


class _Content(TypedDict):
    content: str


class _TokenizerSettings(TypedDict, total=False):
    """Types of special_tokens_map.json and tokenizer_config.json, as far as they are read."""

    added_tokens_decoder: dict[str, _Content]
    additional_special_tokens: list[str | _Content] | None
    extra_special_tokens: list[str | _Content] | None
    mask_token: str | _Content | None
    language_codes: str | None
    source_lang: str | None
    target_lang: str | None


_LANGUAGE_NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""Names of the ids 0 to 3 in fairseq's dictionaries."""

# Languages of M2M-100 in the order of their ids; some versions of its tokenizer do not save them.
_M2M100_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
).split()


class Vocabulary:
    """Names and order of a model's tokens; `bpe` is its `byte_level_bpe`.

    Attributes:
        order: the model's id for each id of fairseq's dictionary; None for tokens that the model lacks (Marian has no
            `<s>`).
        symbols: symbols of fairseq's dictionary from id 4 on.
        names: the symbol of each of the model's ids.
        unmerged: name -> id of the tokens that byte-level subwords lack; empty for other subwords.

    Raises:
        ConfigurationError: for a missing vocabulary, or one that does not fit the configuration.
    """

    def __init__(self, folder: Path, config: Config, bpe: ByteLevelBPE | None) -> None:
        names = read_names(folder)
        ids = {name: number for number, name in reversed(names.items())}
        for name, key in (("<pad>", "pad_token_id"), ("</s>", "eos_token_id"), ("<unk>", None)):
            if name not in ids or (key is not None and ids[name] != config[key]):
                with_id = "" if key is None else f" with the id {config[key]} of {config.file.name}'s {key}"
                raise ConfigurationError(None, folder, f"its vocabulary has no {name}{with_id}", "copy the model again")
        size = config["vocab_size"]
        if max(names) >= size:
            problem = f"its vocabulary has ids up to {max(names)}, and vocab_size is {size}"
            raise ConfigurationError(None, folder, problem)
        special = [ids.get(name) for name in SPECIAL]
        self.order = [*special, *(number for number in range(size) if number not in special)]
        # fairseq's dictionary of BART has numbers of byte-level subwords as symbols.
        names = {number: f"madeupword{number}" for number in range(size)} | names
        self.symbols = [
            names[number] if bpe is None or names[number] == "<mask>" else str(number)
            for number in self.order[len(SPECIAL) :]
            if number is not None
        ]
        merged = set() if bpe is None else set(bpe[0].values())
        self.unmerged = {} if bpe is None else {names[number]: number for number in range(size) if number not in merged}
        _check_symbols(folder, self.symbols)
        symbols = zip(self.order, [*SPECIAL, *self.symbols], strict=True)
        self.names = {number: symbol for number, symbol in symbols if number is not None}

    def lines(self) -> str:
        """Return the text of fairseq's dictionary."""
        return "".join(f"{symbol} 1\n" for symbol in self.symbols)


def _check_symbols(folder: Path, symbols: Sequence[str]) -> None:
    seen = set(SPECIAL)
    for symbol in symbols:
        if symbol in seen or not symbol or not {" ", "\n", "\r"}.isdisjoint(symbol):
            raise ConfigurationError(None, folder, f"its token {symbol!r} cannot stand in fairseq's dictionary")
        seen.add(symbol)


def byte_level_bpe(folder: Path) -> ByteLevelBPE | None:
    """Return vocabulary and merges of GPT-2's byte-level subwords, None for other subwords."""
    vocabulary, merges, tokenizer = (first_of(folder, name) for name in ("vocab.json", "merges.txt", "tokenizer.json"))
    if vocabulary is not None and merges is not None:
        try:
            lines = read_file(merges).decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ConfigurationError(None, merges, f"is not text in UTF-8 ({error.reason})", "copy it again") from error
        known: dict[str, int] = read_json(vocabulary, dict[str, TokenId])
        pairs = pairs_of(merges, [line for line in lines if line and not line.startswith("#version")], known)
        return known, [" ".join(pair) for pair in pairs]
    values: Tokenizer = {} if tokenizer is None else read_json(tokenizer, Tokenizer)
    if tokenizer is None or (values.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    own = values.get("model", {})
    pieces = own.get("vocab")
    if not isinstance(pieces, dict):
        raise ConfigurationError(None, tokenizer, "has no vocabulary of byte-level subwords", "copy it again")
    return pieces, [" ".join(pair) for pair in pairs_of(tokenizer, own.get("merges", []), pieces)]


def text_files(folder: Path, bpe: ByteLevelBPE | None, unmerged: Mapping[str, int]) -> dict[str, bytes]:
    """Return the subword model's files for `load`, name -> content; empty for a model without a tokenizer.

    Marian's has another model for target text: drafts and constraints. Outputs show the names of the tokens that are
    `unmerged` (see `Vocabulary`). Raises ConfigurationError for a tokenizer without its sentencepiece model, which
    cannot be made from it either.
    """
    if bpe is not None:
        vocabulary, merges = bpe
        letters = bytes_to_unicode()
        named = {"".join(letters[byte] for byte in name.encode()): number for name, number in unmerged.items()}
        missing = sorted(set(letters.values()) - (named | vocabulary).keys())
        if missing:
            problem = f"its subwords of bytes lack {missing[0]!r}, so that some text has no ids"
            remedy = (
                "copy the model again if it is damaged; a tokenizer that was trained without all bytes is not supported"
            )
            raise ConfigurationError(None, folder, problem, remedy)
        lines = "\n".join(["#version: 0.2", *merges, ""])
        return {"encoder.json": json.dumps(named | vocabulary).encode(), "vocab.bpe": lines.encode()}
    file = first_of(folder, "source.spm", "sentencepiece.bpe.model")
    tokenizer = first_of(folder, "tokenizer.json")
    if file is not None:
        content = read_file(file)
    elif tokenizer is not None:
        file, content = tokenizer, sentencepiece_model(tokenizer)
    else:
        return {}
    _sentencepiece(file, content)
    target = first_of(folder, "target.spm") if file.name == "source.spm" else None
    if target is None:
        return {"subwords.model": content}
    of_target = read_file(target)
    _sentencepiece(target, of_target)
    return {"subwords.model": content, "subwords.target.model": of_target}


def read_names(folder: Path) -> dict[int, str]:
    """Return id -> name of the tokens of a folder; raise ConfigurationError for a folder without a vocabulary."""
    names: dict[int, str]
    file = first_of(folder, "tokenizer.json", "vocab.json", "sentencepiece.bpe.model")
    if file is None:
        problem = "has no vocabulary (tokenizer.json, vocab.json or sentencepiece.bpe.model)"
        raise ConfigurationError(None, folder, problem, "save the tokenizer into it with save_pretrained")
    if file.name == "tokenizer.json":
        tokenizer: Tokenizer = read_json(file, Tokenizer)
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        # A list of (piece, score) for unigram models, else piece -> id.
        if isinstance(vocabulary, list):
            names = {number: piece for number, (piece, _) in enumerate(vocabulary)}
        else:
            names = {number: piece for piece, number in vocabulary.items()}
        names |= {token["id"]: token["content"] for token in tokenizer.get("added_tokens", ())}
    elif file.name == "vocab.json":
        pieces_of_ids: dict[str, int] = read_json(file, dict[str, TokenId])
        names = {number: piece for piece, number in pieces_of_ids.items()}
    else:
        pieces = _sentencepiece(file, read_file(file))
        # The tokenizers of mBART and NLLB replace the first three pieces by fairseq's four special symbols.
        names = dict(enumerate([*SPECIAL, *(pieces.id_to_piece(number) for number in range(3, len(pieces)))]))
    return _with_added_tokens(folder, names)


def _with_added_tokens(folder: Path, names: dict[int, str]) -> dict[int, str]:
    """Add tokens that other files number, then languages and the mask after all others."""
    numbered = first_of(folder, "added_tokens.json")
    if numbered is not None:
        added: dict[str, int] = read_json(numbered, dict[str, TokenId])
        names = names | {number: name for name, number in added.items()}
    listed = (first_of(folder, name) for name in ("special_tokens_map.json", "tokenizer_config.json"))
    files = [file for file in listed if file is not None]
    tokenizer_settings: list[_TokenizerSettings] = [read_json(file, _TokenizerSettings) for file in files]
    for file, settings in zip(files, tokenizer_settings, strict=True):
        for number, token in settings.get("added_tokens_decoder", {}).items():
            if not number.isdecimal() or len(number) > 8:
                raise ConfigurationError(None, file, f"added_tokens_decoder has the id {number!r}", "copy it again")
            names = names | {int(number): _content(token)}
    if not names:
        raise ConfigurationError(None, folder, "its vocabulary is empty", "copy the model again")
    known = set(names.values())
    for settings in tokenizer_settings:
        for name in _languages_and_mask(settings):
            if name not in known:
                names[max(names) + 1] = name
                known.add(name)
    return names


def marian_languages(folder: Path) -> dict[str, str]:
    """Return the languages that Marian's tokenizer names, as options of `load`; empty if it does not name both."""
    file = first_of(folder, "tokenizer_config.json")
    settings: _TokenizerSettings = {} if file is None else read_json(file, _TokenizerSettings)
    named = {"source_lang": settings.get("source_lang"), "target_lang": settings.get("target_lang")}
    languages = {side: name for side, name in named.items() if name and _LANGUAGE_NAME.fullmatch(name)}
    return languages if len(languages) == len(named) else {}


def _languages_and_mask(settings: _TokenizerSettings) -> Iterator[str]:
    for tokens in (settings.get("additional_special_tokens"), settings.get("extra_special_tokens")):
        yield from map(_content, tokens or ())
    mask = settings.get("mask_token")
    if mask:
        yield _content(mask)
    if settings.get("language_codes") == "m2m100":
        yield from (f"__{language}__" for language in _M2M100_LANGUAGES)


def _content(token: str | _Content) -> str:
    return token if isinstance(token, str) else token["content"]


def _sentencepiece(file: Path, content: bytes) -> sentencepiece.SentencePieceProcessor:
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(content)
    except RuntimeError as error:
        raise ConfigurationError(None, file, "not a model of sentencepiece", "copy it again") from error
    return model

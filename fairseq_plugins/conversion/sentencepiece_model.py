"""Make a model of sentencepiece from tokenizer.json: transformers 5 saves that alone for NLLB and mBART-50."""

import base64
import binascii
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypedDict

from msgspec import Meta
from sentencepiece import sentencepiece_model_pb2

from fairseq_plugins.conversion.families import TokenId
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.typed_values import read_json

_SPACE = "\u2581"


class _Step(TypedDict, total=False):
    """A normalizer, a pre-tokenizer, or a list of them."""

    type: str
    normalizers: list["_Step"]
    pretokenizers: list["_Step"]
    precompiled_charsmap: str | None
    pattern: dict[str, str]
    content: str
    replacement: str
    prepend_scheme: str


class _Model(TypedDict, total=False):
    type: str
    vocab: dict[str, TokenId] | list[tuple[str, float]]
    merges: list[str | tuple[str, str]]
    dropout: float | None
    unk_token: str | None
    unk_id: Annotated[int, Meta(ge=0)] | None
    continuing_subword_prefix: str | None
    end_of_word_suffix: str | None
    byte_fallback: bool
    ignore_merges: bool


class _Added(TypedDict):
    id: TokenId
    content: str


class Tokenizer(TypedDict, total=False):
    """Types of tokenizer.json, as far as it is read."""

    model: _Model
    normalizer: _Step | None
    pre_tokenizer: _Step | None
    decoder: _Step | None
    added_tokens: list[_Added]


def sentencepiece_model(file: Path) -> bytes:
    """Return a model of sentencepiece that cuts text as a tokenizer.json does.

    Its pieces have the names of the tokenizer, without special tokens. Its ids are others. Raises ConfigurationError
    for a tokenizer that sentencepiece cannot imitate.
    """
    tokenizer: Tokenizer = read_json(file, Tokenizer)
    model = tokenizer.get("model", {})
    special = {"<s>", "<pad>", "</s>", "<unk>"} | {token["content"] for token in tokenizer.get("added_tokens", [])}
    _check_words(file, tokenizer.get("pre_tokenizer") or {})
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges"):
        if model.get(name):
            _refuse(file, f"its subwords have {name}")
    vocabulary = model.get("vocab", {})
    is_bpe = isinstance(vocabulary, dict)
    if isinstance(vocabulary, dict):
        scores = _scores_of_bpe(file, vocabulary, model.get("merges", []), special)
    else:
        scores = dict(vocabulary)
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    kinds = proto.SentencePiece
    for name, kind in (("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)):
        proto.pieces.add(piece=name, score=0, type=kind)
    for piece, score in scores.items():
        if piece and piece not in special:
            proto.pieces.add(piece=piece, score=score)
    proto.trainer_spec.model_type = proto.trainer_spec.BPE if is_bpe else proto.trainer_spec.UNIGRAM
    proto.normalizer_spec.name = "tokenizer.json"
    proto.normalizer_spec.precompiled_charsmap = _charsmap(file, tokenizer.get("normalizer"))
    serialized: bytes = proto.SerializeToString()
    return serialized


def pairs_of(file: Path, merges: Sequence[str | tuple[str, str]], vocabulary: Container[str]) -> list[tuple[str, str]]:
    """Return the pairs that merges join, best first; raise ConfigurationError unless they join tokens to tokens."""
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
        if any(piece not in vocabulary for piece in (left, right, left + right)):
            problem = f"its merge {left + ' ' + right!r:.60} does not join two tokens to one of the vocabulary"
            raise ConfigurationError(None, file, problem, "copy the model again")
        pairs.append((left, right))
    return pairs


def _scores_of_bpe(
    file: Path, vocabulary: dict[str, int], merges: list[str | tuple[str, str]], special: set[str]
) -> dict[str, float]:
    """Return the score of each piece: sentencepiece joins the pair first whose piece has the highest one.

    A tokenizer joins the pair first that comes first in its list. That is the same if the list has all pairs of a
    piece, one after the other, as those have that are made from a model of sentencepiece.
    """
    pairs = pairs_of(file, merges, vocabulary)
    listed = set(pairs)
    scores: dict[str, float] = {}
    last = None
    for left, right in pairs:
        piece = left + right
        if piece != last and piece in scores:
            _refuse(file, f"its merges of {piece!r} are apart")
        scores.setdefault(piece, -float(len(scores)))
        last = piece
    for piece in vocabulary.keys() - special:
        scores.setdefault(piece, -float(len(scores)))
        for end in range(1, len(piece)):
            pair = piece[:end], piece[end:]
            if pair not in listed and pair[0] in vocabulary and pair[1] in vocabulary:
                _refuse(file, f"its merges lack {' '.join(pair)!r}")
    return scores


def _check_words(file: Path, step: _Step) -> None:
    """Raise ConfigurationError unless words begin with sentencepiece's mark of a space, the first one, too."""
    if (step.get("type"), step.get("replacement"), step.get("prepend_scheme")) != ("Metaspace", _SPACE, "always"):
        _refuse(file, f"its words are cut by {step.get('type')}")


def _charsmap(file: Path, normalizer: _Step | None) -> bytes:
    """Return sentencepiece's table of characters, empty for none; sentencepiece joins several spaces itself."""
    table = b""
    for step in (normalizer or {}).get("normalizers", [normalizer] if normalizer else []):
        is_of_spaces = step.get("pattern") == {"Regex": " {2,}"} and step.get("content") == " "
        if step.get("type") == "Precompiled" and not table:
            try:
                table = base64.b64decode(step.get("precompiled_charsmap") or "", validate=True)
            except binascii.Error:
                _refuse(file, "its precompiled_charsmap is not base64")
        elif step.get("type") != "Replace" or not is_of_spaces:
            _refuse(file, f"its text is changed by {step.get('type')}")
    return table


def _refuse(file: Path, reason: str) -> NoReturn:
    problem = f"has no sentencepiece.bpe.model, and its tokenizer.json cannot become one ({reason})"
    remedy = "copy sentencepiece.bpe.model from the folder that the tokenizer was loaded from"
    raise ConfigurationError(None, file.parent, problem, remedy)

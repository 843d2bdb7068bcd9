"""Binarised files: their languages, and whether they are whole."""

import struct
from contextlib import suppress
from pathlib import Path

import numpy
from fairseq.data.data_utils import infer_language_pair
from fairseq.data.indexed_dataset import MMapIndexedDataset, _code_to_dtype

from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.languages import find_languages

_MAGIC: bytes = MMapIndexedDataset.Index._HDR_MAGIC
_OLDER = b"TNTIDX\x00\x00"
_HEADER = struct.Struct("<QBQ")  # version, type of the tokens, sentences
_OF_SENTENCE = 4 + 8  # its length in tokens, and where it begins


def infer_languages(data: str) -> tuple[str | None, str | None]:
    """Return the languages of a folder, None if they are unknown. fairseq, asked first, cuts dict.pt-BR.txt in two."""
    source, target = infer_language_pair(data)
    if not all(Path(data, f"dict.{language}.txt").exists() for language in (source, target)):
        with suppress(ConfigurationError):
            return find_languages(Path(data))
    return source, target


def check_binarised(data: str, subset: str) -> None:
    """Raise ConfigurationError for files of a subset that are truncated, of another program or without sentences.

    fairseq maps files into memory, and crashes at a truncated one.

    `data` is a folder of fairseq-preprocess, or several with colons between. Files of fairseq's older formats are
    skipped.
    """
    for folder in data.split(":"):
        for index in sorted(Path(folder).glob(f"{subset}.*.idx")):
            bad = _bad_file(index)
            if bad is not None:
                problem = "cut off, or not a file of fairseq-preprocess"
                raise ConfigurationError(None, bad, problem, "copy it again or binarise the data anew")


def _bad_file(index: Path) -> Path | None:
    tokens = index.with_suffix(".bin")
    with index.open("rb") as file:
        magic = file.read(len(_MAGIC))
        if magic.startswith(_OLDER):
            return None
        header = file.read(_HEADER.size)
    if magic != _MAGIC or len(header) < _HEADER.size:
        return index
    _, kind, count = _HEADER.unpack(header)
    begin = len(_MAGIC) + _HEADER.size
    if kind not in _code_to_dtype or index.stat().st_size != begin + count * _OF_SENTENCE:
        return index
    if count == 0:  # for which fairseq prints two errors
        raise ConfigurationError(None, index, "has no sentences", "binarise it again from text that has some")
    if not tokens.is_file():
        return None
    tokens.open("rb").close()  # an error of its permissions here, not in fairseq, which prints another after it
    lengths = numpy.memmap(index, numpy.int32, "r", begin, (count,))
    expected_bytes = int(lengths.sum(dtype=numpy.int64)) * numpy.dtype(_code_to_dtype[kind]).itemsize
    return None if tokens.stat().st_size == expected_bytes else tokens

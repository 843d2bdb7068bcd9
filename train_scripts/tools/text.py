"""Prepare parallel text: one sentence a line, line n of the target translates line n of the source."""

import gzip
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/cldr.en-de"
OPENERS = {".gz": gzip.open, ".xz": lzma.open}
TED_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def refuse(option: str | None, value: object, problem: str, remedy: str = "") -> NoReturn:
    """Raise the plugin's ConfigurationError, imported here because its import takes seconds.

    Raises:
        ConfigurationError: always.
    """
    from fairseq_plugins.errors import ConfigurationError

    raise ConfigurationError(option, value, problem, remedy)


def read_lines(file: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file (.gz, .xz: compressed), without a byte order mark, with white space as one space.

    Only a line feed ends a line. Other separators, such as U+2028, would misalign source and target.

    Raises:
        ConfigurationError: for text that is not UTF-8.
    """
    try:
        with OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8-sig", newline="\n") as lines:
            for line in lines:
                yield " ".join(line.split())
    except UnicodeDecodeError:
        refuse(None, file, "not UTF-8", "convert it: iconv -f OLD -t UTF-8")


def write_lines(file: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each ended by a line feed."""
    with open(file, "w", encoding="utf-8", newline="\n") as out:
        out.writelines(line + "\n" for line in lines)


def file_pairs(files: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Split IN OUT [IN OUT ...] into pairs.

    Raises:
        ConfigurationError: for a missing OUT.
    """
    if len(files) % 2:
        refuse(None, files[-1], "has no file to write to after it", "give IN OUT [IN OUT ...]")
    return list(zip(files[::2], files[1::2], strict=True))


def clean_lines(files: Sequence[Path]) -> None:
    """Copy text with runs of white space as one space.

    Args:
        files: pairs of text (.gz, .xz: compressed) and output: IN OUT [IN OUT ...].
    """
    for source, target in file_pairs(files):
        write_lines(target, read_lines(source))


def example_text(out: Path, *, train: int = 24000, valid: int = 500, test: int = 500) -> None:
    """Write the first sentences of the English-German text in `examples`.

    Args:
        out: folder for {train,valid,test}.{en,de}.
        train, valid, test: number of pairs in each set.

    Raises:
        ConfigurationError: if `examples` has fewer pairs.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, size in (("train", train), ("valid", valid), ("test", test)):
        for language in ("en", "de"):
            lines = list(read_lines(EXAMPLE / f"{name}.{language}.xz"))
            if not 1 <= size <= len(lines):
                refuse(f"--{name}", size, f"must be from 1 to {len(lines)}, the pairs in examples/{EXAMPLE.name}")
            write_lines(out / f"{name}.{language}", lines[:size])


def clean_pairs(prefix: str, out: str, *, languages: tuple[str, str], max_length: int = 0, max_ratio: float = 0) -> str:
    """Copy the sentence pairs of two files; drop pairs that are too long or have an empty side.

    Args:
        prefix: prefix of the files, whose tokens are separated by spaces.
        out: prefix of the output.
        languages: suffixes of the files.
        max_length: maximum number of tokens of either side; 0 for no limit.
        max_ratio: maximum ratio of the longer side to the shorter; 0 for no limit.

    Returns:
        a line with the number of pairs kept.

    Raises:
        ConfigurationError: for files with different numbers of lines.
    """
    kept = total = 0
    sources, targets, *outs = (Path(f"{side}.{language}") for side in (prefix, out) for language in languages)
    with ExitStack() as stack:
        files = [stack.enter_context(open(file, encoding="utf-8", newline="\n")) for file in (sources, targets)]
        written = [stack.enter_context(open(file, "w", encoding="utf-8", newline="\n")) for file in outs]
        for pair in zip_longest(*files):
            if None in pair:
                refuse(None, sources, f"not as many lines as {targets}", "line n of one belongs to line n of the other")
            total += 1
            shorter, longer = sorted(len(line.split()) for line in pair)
            fits = (not max_length or longer <= max_length) and (not max_ratio or longer <= max_ratio * shorter)
            if shorter > 0 and fits:
                kept += 1
                for file, line in zip(written, pair, strict=True):
                    file.write(line)
    return f"       {kept} of {total} training pairs kept"


def hold_out(prefix: Path, valid: Path, train: Path, *, languages: tuple[str, str], one_in: int) -> None:
    """Split a text: hold out one source sentence in `one_in`, with all its targets, for validation.

    The choice depends on the sentence's text only, so that repeated sentences stay together.

    Args:
        prefix: prefix of the two files.
        valid: prefix of the validation set.
        train: prefix of the training set.
        languages: suffixes of source and target.
        one_in: N, to hold out about one sentence in N.

    Raises:
        ConfigurationError: if one of the sets would be empty.
    """
    sides = {side: list(read_lines(Path(f"{prefix}.{side}"))) for side in languages}
    held = [zlib.crc32(line.encode()) % one_in == 0 for line in sides[languages[0]]]
    if all(held) or not any(held):
        remedy = f"{'raise' if all(held) else 'lower'} HOLD_OUT"
        refuse(None, f"{prefix}.{languages[0]}", f"too little text to hold out one sentence in {one_in}", remedy)
    for side, lines in sides.items():
        for name, wanted in ((valid, True), (train, False)):
            picked = (line for line, is_held in zip(lines, held, strict=True) if is_held == wanted)
            write_lines(Path(f"{name}.{side}"), picked)


def ted_talks(folder: Path, out: Path) -> None:
    """Write the sets of fairseq's IWSLT 2014 recipe, in lower case; every 23rd training line is for validation.

    Args:
        folder: folder of the unpacked archive.
        out: folder for {train,valid,test}.{de,en}.
    """
    for language in ("de", "en"):
        lines = list(read_lines(folder / f"train.tags.de-en.{language}"))
        lines = [line for line in lines if not re.search("<(url|talkid|keywords)>", line)]
        lines = [re.sub("</?(title|description)>", "", line) for line in lines]
        tests = [(folder / f"IWSLT14.{name}.de-en.{language}.xml").read_text(encoding="utf-8") for name in TED_TESTS]
        sets = {
            "train": [line for number, line in enumerate(lines, 1) if number % 23],
            "valid": lines[22::23],
            "test": [line for test in tests for line in re.findall(r"<seg id=.*?>(.*?)</seg>", test)],
        }
        for name, text in sets.items():
            cleaned = (" ".join(line.split()).lower().replace("’", "'") for line in text)
            write_lines(out / f"{name}.{language}", cleaned)

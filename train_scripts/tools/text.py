"""Raw text: one sentence a line, line n of one side belongs to line n of the other."""

import gzip
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/cldr.en-de"
OPENERS = {".gz": gzip.open, ".xz": lzma.open}
TED_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")


def refuse(message: str) -> NoReturn:
    """Raise the plugin's one-line error, which is imported only now: it takes seconds.

    Raises:
        ConfigurationError: always.
    """
    from fairseq_plugins.errors import ConfigurationError

    raise ConfigurationError(message)


def read_lines(file: Path) -> Iterator[str]:
    """The lines of a UTF-8 file (.gz, .xz: compressed), with every kind of white space as one blank.

    Only a line feed ends a line: what else looks like a line end, such as U+2028, would break pairs.

    Raises:
        ConfigurationError: where it is not UTF-8.
    """
    try:
        with OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                yield " ".join(line.split())
    except UnicodeDecodeError:
        refuse(f"{file}: not UTF-8; convert it: iconv -f OLD -t UTF-8")


def write_lines(file: Path, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each with a line feed."""
    with open(file, "w", encoding="utf-8", newline="\n") as out:
        out.writelines(line + "\n" for line in lines)


def clean_lines(source: Path, target: Path) -> None:
    """Copy a file with its white space made regular (see `read_lines`)."""
    write_lines(target, read_lines(source))


def example_text(out: Path, sizes: dict[str, int]) -> None:
    """Write the first sentences of the English-German text in `examples`.

    Args:
        out: folder for {train,valid,test}.{en,de}; it is made where it is missing.
        sizes: number of pairs of each set.

    Raises:
        ConfigurationError: where a set has fewer pairs.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, size in sizes.items():
        for language in ("en", "de"):
            lines = list(read_lines(EXAMPLE / f"{name}.{language}.xz"))
            if not 1 <= size <= len(lines):
                refuse(f"--{name} {size}: must be from 1 to {len(lines)}, the pairs in examples/{EXAMPLE.name}")
            write_lines(out / f"{name}.{language}", lines[:size])


def clean_pairs(
    sources: Path, targets: Path, outs: tuple[Path, Path], max_length: int, max_ratio: float
) -> tuple[int, int]:
    """Copy the pairs of two files that a model can learn from.

    Args:
        sources: file of sentences, as tokens with blanks between.
        targets: the other side.
        outs: where the pairs go that are kept.
        max_length: most tokens of either side; 0 for any number.
        max_ratio: most tokens of one side for each of the other; 0 for any number.

    Returns:
        how many were kept, of how many. Those with an empty side are always left out.

    Raises:
        ConfigurationError: when the files have different numbers of lines.
    """
    kept = total = 0
    with ExitStack() as stack:
        files = [stack.enter_context(open(file, encoding="utf-8", newline="\n")) for file in (sources, targets)]
        written = [stack.enter_context(open(file, "w", encoding="utf-8", newline="\n")) for file in outs]
        for pair in zip_longest(*files):
            if None in pair:
                refuse(f"{sources}: not as many lines as {targets}; line n of one belongs to line n of the other")
            total += 1
            shorter, longer = sorted(len(line.split()) for line in pair)
            fits = (not max_length or longer <= max_length) and (not max_ratio or longer <= max_ratio * shorter)
            if shorter > 0 and fits:
                kept += 1
                for file, line in zip(written, pair, strict=True):
                    file.write(line)
    return kept, total


def hold_out(prefix: Path, source: str, target: str, one_in: int, valid: Path, train: Path) -> None:
    """Divide a text: one source sentence in `one_in`, with all its targets, is for validation, the rest for training.

    Which ones depends on their text alone, so that a sentence that occurs twice is on one side.

    Args:
        prefix: of the two files, which end in `source` and `target`.
        source: suffix of the source side.
        target: suffix of the target side.
        one_in: about how many sentences there are for one that is held out.
        valid: prefix of what is held out.
        train: prefix of the rest.

    Raises:
        ConfigurationError: when one of both would be empty.
    """
    sides = {side: list(read_lines(Path(f"{prefix}.{side}"))) for side in (source, target)}
    held = [zlib.crc32(line.encode()) % one_in == 0 for line in sides[source]]
    if all(held) or not any(held):
        refuse(f"{prefix}.{source}: too little text to hold out one sentence in {one_in}; set HOLD_OUT to less")
    for side, lines in sides.items():
        for name, wanted in ((valid, True), (train, False)):
            picked = (line for line, is_held in zip(lines, held, strict=True) if is_held == wanted)
            write_lines(Path(f"{name}.{side}"), picked)


def ted_talks(folder: Path, out: Path) -> None:
    """Write the sets that fairseq makes of IWSLT 2014, in lower case; every 23rd training line is for validation.

    Args:
        folder: the unpacked archive.
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

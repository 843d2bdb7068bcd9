"""A generated English-German corpus for demos and tests: real language, no download, the same for everyone.

The sentences are made from Unicode CLDR (dates, times, numbers, money, units, countries, languages, lists),
numbers in words, and a hand-written grammar of German with case, gender, adjective endings and its orders of
words. A minority of English words and phrases has several German translations, one of which is chosen at
random, so that the raw corpus has what distillation removes.

    python -m fairseq_plugins.demo_corpus.corpus --out data-bin/demo/raw
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from random import Random

from babel import core as babel_core
from tqdm import tqdm

from fairseq_plugins.demo_corpus.sentences import sentence

MAX_PAIRS = 1_000_000  # more is refused: the patterns would repeat themselves too much
SHORTEST, LONGEST = 4, 40  # words in a sentence of either language
PARAMETERS_FILE = "corpus.json"
README = """\
# Generated English-German corpus

{train} training, {valid} validation and {test} test sentence pairs, one sentence a line,
neither tokenised nor lowercased. No English and no German sentence occurs in more than one of them.

Made by `python -m fairseq_plugins.demo_corpus.corpus` with
`--train {train} --valid {valid} --test {test} --seed {seed}`,
babel {babel} (Unicode CLDR {cldr}) and num2words {num2words}.
The same versions and numbers make the same files.

Dates, numbers, units, names of countries and languages are from the Unicode Common Locale Data
Repository, which is under the Unicode License v3 (https://www.unicode.org/license.txt).
Sentence patterns and lexicon are part of this project.
"""


def generate_pairs(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Generate sentence pairs, all different in English and all different in German.

    :param count: how many
    :param seed: equal seeds give equal pairs, and a smaller count the beginning of a larger one
    :return: iterator of (English, German)
    :raises ValueError: if ``count`` is negative, or larger than what the patterns can give
    """
    if count < 0:
        raise ValueError(f"cannot generate {count} sentences")
    if count > MAX_PAIRS:
        raise ValueError(f"{count} sentences are more than the patterns are made for (at most {MAX_PAIRS})")
    return _distinct_pairs(count, Random(seed))


def _distinct_pairs(count: int, rng: Random) -> Iterator[tuple[str, str]]:
    sources: set[str] = set()
    targets: set[str] = set()
    repeated = 0
    while len(sources) < count:
        english, german = sentence(rng)
        lengths = len(english.split()), len(german.split())
        if min(lengths) < SHORTEST or max(lengths) > LONGEST or english in sources or german in targets:
            repeated += 1
            if repeated > 10_000:
                raise ValueError(f"the patterns give no more than {len(sources)} sentences, {count} were asked for")
            continue
        repeated = 0
        sources.add(english)
        targets.add(german)
        yield english, german


def _cldr_version() -> str:
    """The version of CLDR, where babel knows it (2.18 does)."""
    return babel_core.get_cldr_version() if hasattr(babel_core, "get_cldr_version") else "of that babel"


def _parameters(train: int, valid: int, test: int, seed: int) -> dict[str, int | str]:
    """What decides the content of a corpus."""
    return {
        "train": train,
        "valid": valid,
        "test": test,
        "seed": seed,
        "babel": version("babel"),
        "cldr": _cldr_version(),
        "num2words": version("num2words"),
    }


def is_complete(folder: Path, train: int, valid: int, test: int, seed: int) -> bool:
    """Whether ``folder`` already holds the corpus that ``write_corpus`` with these arguments would write."""
    try:
        recorded = json.loads((folder / PARAMETERS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    files = (folder / f"{split}.{language}" for split in ("train", "valid", "test") for language in ("en", "de"))
    return recorded == _parameters(train, valid, test, seed) and all(file.is_file() for file in files)


def write_corpus(folder: Path, train: int = 24000, valid: int = 500, test: int = 500, seed: int = 1) -> None:
    """Write a corpus: ``train.en``, ``train.de``, ``valid.en`` and so on, a README, and the parameters as
    JSON.

    The test and validation sentences come first from the generator, so that they stay the same for any
    ``train``. Files get their names only when all are complete. Shows a progress bar.

    :param folder: where; it is made if need be
    :param train: number of training pairs, as ``valid`` and ``test``: at least 1
    :raises ValueError: if a number is below 1, or their sum more than the patterns can give
    :raises OSError: if the folder cannot be written
    """
    sizes = {"test": test, "valid": valid, "train": train}
    for split, size in sizes.items():
        if size < 1:
            raise ValueError(f"--{split} {size}: must be at least 1")
    pairs = generate_pairs(sum(sizes.values()), seed)
    folder.mkdir(parents=True, exist_ok=True)
    parameters = _parameters(train, valid, test, seed)
    files: dict[Path, Path] = {}  # temporary name: final name

    def create(name: str, text: str) -> None:
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        files[temporary] = folder / name
        temporary.write_text(text, encoding="utf-8", newline="\n")

    try:
        create(PARAMETERS_FILE, json.dumps(parameters, indent=2) + "\n")
        create("README.md", README.format(**parameters))
        with tqdm(total=sum(sizes.values()), unit=" pairs", desc="generating", disable=None) as progress:
            for split, size in sizes.items():
                lines: tuple[list[str], list[str]] = ([], [])
                for _ in range(size):
                    for side, text in zip(lines, next(pairs), strict=True):
                        side.append(text + "\n")
                    progress.update()
                for side, language in zip(lines, ("en", "de"), strict=True):
                    create(f"{split}.{language}", "".join(side))
        (folder / PARAMETERS_FILE).unlink(missing_ok=True)
        for temporary, final in reversed(files.items()):  # the parameters last: they say that all is there
            os.replace(temporary, final)
    finally:
        for temporary in files:
            temporary.unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """The command line (see ``--help``).

    :return: 0, or 2 after one line on stderr for input that cannot be used
    """
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.demo_corpus.corpus",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Generate an English-German corpus (train, valid and test) without any download.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to write the files")
    parser.add_argument("--train", type=int, default=24000, metavar="N", help="number of training pairs")
    parser.add_argument("--valid", type=int, default=500, metavar="N", help="number of validation pairs")
    parser.add_argument("--test", type=int, default=500, metavar="N", help="number of test pairs")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="another seed gives other sentences")
    options = parser.parse_args(arguments)
    corpus = (options.out, options.train, options.valid, options.test, options.seed)
    if is_complete(*corpus):
        print(f"{options.out} already holds this corpus, nothing to do")
        return 0
    try:
        write_corpus(*corpus)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.train} train, {options.valid} valid and {options.test} test pairs to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

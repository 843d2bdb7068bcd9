"""Find, copy, split and binarise the text of a recipe."""

import glob
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from train_scripts.runner.settings import Settings
from train_scripts.runner.stages import (
    CommandFailed,
    RecipeError,
    finish_writing,
    is_dry_run,
    remove_written,
    run,
    started,
    write_anew,
)

TOOL = "python -m train_scripts.tools"
WRONG_NAME = "or end NAME with the right languages"
BATCH = 8  # of --required-batch-size-multiple: fairseq leaves out the rest, and fails where that is all


def find_sets(s: Settings) -> dict[str, Path]:
    """Return the file prefix of each set in DATA=folder; with HOLD_OUT the validation set comes from the training set.

    Raises:
        RecipeError: for a missing set, or text that cannot be used.
    """
    folder, languages, tests = Path(s.DATA), (s.src, s.tgt), [s.TEST or "test"]
    if not s.TEST and not any((folder / f"test.{language}").exists() for language in languages):
        tests = sorted(file.name.removesuffix(f".{s.src}") for file in folder.glob(f"test*.{s.src}")) or tests
    if len(tests) > 1:
        raise RecipeError(f"{folder}: several test sets ({' '.join(tests)}); choose one: TEST={tests[0]}")
    names = {"train": ["train"], "valid": ["valid", "val", "dev", "tune"], "test": tests}
    if s.HOLD_OUT:
        del names["valid"]
    if not folder.is_dir():  # with --dry-run
        return {name: folder / prefixes[0] for name, prefixes in names.items()}
    sets = {name: find_set(folder, languages, prefixes) for name, prefixes in names.items()}
    for name, prefix in sets.items():
        source, target = (Path(f"{prefix}.{language}") for language in languages)
        lines = count_lines(source), count_lines(target)
        if lines[0] != lines[1]:
            numbers = f"{source} has {lines[0]} lines but {target} has {lines[1]}"
            raise RecipeError(f"{numbers}; line n of one must be the translation of line n of the other")
        if name == "valid" and lines[0] < BATCH:
            remedy = f"give at least {BATCH}, or hold out sentences of the training set (HOLD_OUT=30)"
            raise RecipeError(f"{source}: fairseq cannot validate on {lines[0]} lines; {remedy}")
        for ending in numbered_references(prefix, s.tgt) if name == "test" else ():
            reference = Path(f"{prefix}.{ending}")
            if (count := count_lines(reference)) != lines[0]:
                raise RecipeError(f"{source} has {lines[0]} lines but {reference} has {count}; give one for each")
    return sets


def numbered_references(test: Path, language: str) -> list[str]:
    """Return what follows the prefix of a test set in the names of its references: tgt.0, tgt.1 ...; empty if one."""
    files = test.parent.glob(f"{glob.escape(test.name)}.{language}.[0-9]*")
    return sorted(file.name.removeprefix(f"{test.name}.") for file in files)


def find_set(folder: Path, languages: Sequence[str], names: Sequence[str]) -> Path:
    """Return the first prefix in `names` with files; raise RecipeError if it has no file in one of the languages."""
    for name in names:
        files = [folder / f"{name}.{language}" for language in languages]
        there = [file for file in files if file.exists()]
        if len(there) == 1:
            missing = next(file for file in files if file not in there)
            raise RecipeError(f"{missing}: no such file, but {there[0].name} is there; add it, {WRONG_NAME}")
        if there:
            return folder / name
    looked_for = f"(looked for: {' '.join(names)})"
    remedy = "hold out sentences of the training set (HOLD_OUT=30)" if names[0] == "valid" else "put it there"
    raise RecipeError(f"{folder}/{names[0]}.{languages[0]}: no such file {looked_for}; {remedy}, {WRONG_NAME}")


def count_up_to(most: int, file: Path) -> int:
    """Return the number of lines of a file, or `most` if it has more: a training set may not fit into memory."""
    with open(file, "rb") as lines:
        return sum(1 for _ in islice(lines, most))


def count_lines(file: Path) -> int:
    """Return the number of lines of a text; raise RecipeError if it is empty or not UTF-8."""
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as lines:
            are_empty = Counter(line.isspace() for line in lines)
    except UnicodeDecodeError:
        raise RecipeError(f"{file}: not UTF-8; convert it: iconv -f OLD -t UTF-8") from None
    except OSError:
        raise RecipeError(f"{file}: not a readable file; give plain text, one sentence per line") from None
    if not are_empty[False]:
        raise RecipeError(f"{file}: has no text; put one sentence on each line")
    return are_empty.total()


def call_recipe(function: str, *arguments: object) -> None:
    """Call a shell function if the recipe exports it; with --dry-run it prints its commands."""
    if f"BASH_FUNC_{function}%%" in os.environ:
        words = ["bash", "-euo", "pipefail", "-c", f'{function} "$@"', "bash", *map(str, arguments)]
        with started(shlex.join(words)) as shell:
            if status := shell.wait():
                raise CommandFailed(status, None)


def make_text(s: Settings, raw: Path, sets: dict[str, Path]) -> None:
    """Write {train,valid,test}.LANGUAGE from FROM, from DATA (`sets`) or with the recipe's function `get_text`."""
    part, languages = Path(f"{raw}.partial"), (s.src, s.tgt)
    write_anew(part)
    run(f"mkdir -p {part}")
    if s.FROM:
        run(f"cp -r data-bin/{s.FROM}/raw/. {part}")
    elif s.DATA:
        cut = {"train": "whole"} if s.HOLD_OUT else {}
        cut |= {"test": "all"} if s.TEST_SENTENCES else {}
        copies = {prefix: part / cut.get(name, name) for name, prefix in sets.items()}
        more = numbered_references(sets["test"], s.tgt)
        endings = {prefix: [*languages, *(more if name == "test" else ())] for name, prefix in sets.items()}
        files = [f"{file}.{ending}" for pair in copies.items() for ending in endings[pair[0]] for file in pair]
        run(f"{TOOL} clean-lines {shlex.join(files)}")
        for ending in endings[sets["test"]] if s.TEST_SENTENCES else ():
            run(f"head -n {s.TEST_SENTENCES} {part}/all.{ending}", out=part / f"test.{ending}")
        if s.HOLD_OUT:
            divided = f"{part}/whole {part}/valid {part}/train --languages {s.src} {s.tgt}"
            run(f"{TOOL} hold-out {divided} --one-in {s.HOLD_OUT}")
            if not is_dry_run() and (held := count_lines(part / f"valid.{s.src}")) < BATCH:
                raise RecipeError(f"HOLD_OUT={s.HOLD_OUT}: holds out {held} lines, of at least {BATCH}; lower it")
    else:
        call_recipe("get_text", part)
    finish_writing(part, raw)


def tokenise(s: Settings, raw: Path, out: Path) -> None:
    """Tokenise a text, NAME.LANGUAGE, as fairseq's WMT scripts do: punctuation normalised, hyphens apart."""
    moses = f"sacremoses --quiet --language {raw.suffix[1:]} --processes {s.WORKERS}"
    run(f"{moses} normalize -c tokenize -a", source=raw, out=out)


def apply_subwords(s: Settings, data: Path, files: Sequence[tuple[Path, Path]]) -> None:
    """Cut texts into the subwords of a recipe.

    Args:
        s: its settings.
        data: folder of its subword model.
        files: pairs of text and output; tokenised text with SUBWORDS=moses.
    """
    if s.SUBWORDS == "moses":
        for text, out in files:
            run(f"subword-nmt apply-bpe --codes {data}/bpe.codes --input {text} --output {out}")
        return
    apply = f"apply-gpt2-bpe {shlex.quote(s.BART)}" if s.SUBWORDS == "gpt2" else f"apply-subwords {data}/subwords.model"
    run(f"{TOOL} {apply} {' '.join(f'{text} {out}' for text, out in files)}")


def binarise(s: Settings, data: Path, logs: Path) -> None:
    """Split the text into subwords and binarise it. The target dictionary is moved last: it marks the end."""
    part, text, bart = data / "binarised.partial", data / "raw", shlex.quote(s.BART)
    files = [f"{name}.{language}" for name in ("train", "valid", "test") for language in (s.src, s.tgt)]
    model, codes, dictionary = data / "subwords.model", data / "bpe.codes", "--joined-dictionary"
    write_anew(part)
    run(f"mkdir -p {part}/tokens {part}/text")
    if s.FROM:  # its models need their own subwords and dictionary
        before = Path("data-bin", s.FROM)
        for name in (model.name, codes.name):
            if (before / name).exists():
                run(f"cp {before}/{name} {data}")
        dictionary += f" --srcdict {before}/dict.{s.src}.txt"
    if s.SUBWORDS == "moses":
        for file in files:
            tokenise(s, text / file, part / "tokens" / file)
        text = part / "tokens"
        if not codes.exists():  # joint BPE (Sennrich et al. 2016)
            run(f"cat {text}/train.{s.src} {text}/train.{s.tgt}", out=text / "both")
            learn = f"learn-bpe --symbols {s.VOCABULARY} --num-workers {s.WORKERS} --input {text}/both"
            run(f"subword-nmt {learn} --output {codes}.partial", log=logs / "subwords.log")
            run(f"mv {codes}.partial {codes}")
    elif s.SUBWORDS == "gpt2":
        dictionary = f"--srcdict {bart}/dict.txt --tgtdict {bart}/dict.txt"
    elif not model.exists():
        learn = f"learn-subwords {model} --kind {s.SUBWORDS} --size {s.VOCABULARY}"
        run(f"{TOOL} {learn} {text}/train.{s.src} {text}/train.{s.tgt}", log=logs / "subwords.log")
    apply_subwords(s, data, [(text / file, part / "text" / file) for file in files])
    limits = f"--languages {s.src} {s.tgt} --max-length {s.MAX_LENGTH} --max-ratio {s.MAX_RATIO}"
    run(f"{TOOL} clean-pairs {part}/text/train {part}/text/clean {limits}")
    if not is_dry_run() and (kept := count_up_to(BATCH, part / f"text/clean.{s.src}")) < BATCH:
        too_few = f"{kept} training pairs are left, and fairseq needs at least {BATCH}"
        remedy = f"give more text, or leave out MAX_LENGTH={s.MAX_LENGTH} and MAX_RATIO={s.MAX_RATIO}"
        raise RecipeError(f"{s.DATA or s.NAME}: {too_few}; {remedy}")
    sets = f"--trainpref {part}/text/clean --validpref {part}/text/valid --testpref {part}/text/test"
    options = f"--source-lang {s.src} --target-lang {s.tgt} {dictionary} --workers {s.WORKERS} --destdir {part}"
    run(f"fairseq-preprocess {options} {sets}", log=logs / "preprocess.log")
    made = [f"{part}/{file.replace('.', f'.{s.src}-{s.tgt}.')}.{end}" for file in files for end in ("bin", "idx")]
    run(f"mv {' '.join(made)} {part}/dict.{s.src}.txt {data}")
    run(f"mv {part}/dict.{s.tgt}.txt {data}")
    remove_written(part)

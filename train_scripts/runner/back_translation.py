"""Back-translation (Edunov et al. 2018, arXiv 1808.09381): a model of the other direction samples sources for MONO.

mono -> reverse -> sample -> pairs

MONO is text of the target language, a sentence a line. Teacher, or verifier without a teacher, then train on the
parallel text and on the sampled pairs. UPSAMPLE=N repeats the parallel text N times.
"""

import shlex
from pathlib import Path

from train_scripts.runner.pipeline import Pipeline
from train_scripts.runner.settings import batch
from train_scripts.runner.stages import RecipeError, finish_writing, is_dry_run, run, write_anew
from train_scripts.runner.text import TOOL, apply_subwords, count_lines, tokenise


def check_mono(recipe: Pipeline) -> None:
    """Raise RecipeError for a MONO that is no text, before anything is trained; the text stage may yet write it."""
    mono = Path(recipe.settings.MONO)
    is_written_later = mono.parent == recipe.raw and not recipe.raw.exists()
    if "mono" not in recipe.wanted or (recipe.data / "mono").exists() or is_written_later or is_dry_run():
        return
    try:
        count_lines(mono)
    except RecipeError as error:
        raise RecipeError(f"MONO={error}") from None


def back_translate(recipe: Pipeline, dictionary: Path) -> Path:
    """Run the stages; return the folder of the parallel text and, as a further part of its training set, the pairs.

    Args:
        recipe: with the setting MONO.
        dictionary: file that says that the parallel text is binarised.
    """
    s, data = recipe.settings, recipe.data
    mono, pairs, both = data / "mono", data / "back-translated", data / "with-mono"
    reverse, languages = recipe.models / "reverse.pt", f"--source-lang {s.tgt} --target-lang {s.src}"
    recipe.step(
        "mono", mono, f"cut {s.MONO} into subwords and binarise it", lambda: _binarise(recipe, mono), dictionary
    )
    options = recipe.verifier_options
    if s.TEACHERS != "0":  # the verifier's options may name its teacher
        options = f"--seed {s.SEED} {s.teacher_options} {batch(s, s.TEACHER_TOKENS, s.MAX_TOKENS)}"
    recipe.train_model("reverse", "reverse", data, options, dictionary, languages=languages)
    shards = Path(f"{pairs}-shards")
    search = f"--decoder greedy --sampling --beam 1 --seed {s.SEED}"
    sample = f"{mono} {languages} --gen-subset train --path {reverse} {search}"
    recipe.decode_into(shards, "sample", pairs, f"sample sources for {s.MONO}", sample, mono, reverse)
    merge = f"spec-dec-distill merge {mono} {languages} --gen-subset train --max-length-ratio {s.BACK_RATIO}"
    merge += f" --shards {shards} --destdir {pairs} --workers {s.WORKERS}"
    recipe.step("pairs", pairs, "check and binarise the sampled pairs", lambda: run(merge), shards)
    recipe.step("pairs", both, "join parallel text and sampled pairs", lambda: _join(recipe, pairs, both), pairs)
    return both


def _binarise(recipe: Pipeline, mono: Path) -> None:
    """Binarise MONO as the source side of the reverse model, with the subwords and dictionaries of the recipe."""
    s, part = recipe.settings, Path(f"{mono}.partial")
    clean, cut = (part / f"text/{name}.{s.tgt}" for name in ("mono", "train"))
    write_anew(part)
    run(f"mkdir -p {part}/text {part}/tokens")
    run(f"{TOOL} clean-lines {shlex.quote(s.MONO)} {clean}")
    if s.SUBWORDS == "moses":
        tokenise(s, clean, part / "tokens" / clean.name)
        clean = part / "tokens" / clean.name
    apply_subwords(s, recipe.data, [(clean, cut)])
    dictionaries = [f"{recipe.data}/dict.{language}.txt" for language in (s.tgt, s.src)]
    options = f"--source-lang {s.tgt} --target-lang {s.src} --only-source --srcdict {dictionaries[0]}"
    command = f"fairseq-preprocess {options} --trainpref {part}/text/train --workers {s.WORKERS} --destdir {part}"
    run(command, log=recipe.logs / "preprocess.log")
    run(f"cp {dictionaries[1]} {part}")
    run(f"rm -r {part}/text {part}/tokens")
    finish_writing(part, mono)


def _join(recipe: Pipeline, pairs: Path, both: Path) -> None:
    """Link the parallel text, and the pairs as `train1`, which fairseq-train adds to `train`."""
    s, part = recipe.settings, Path(f"{both}.partial")
    write_anew(part)
    run(f"mkdir -p {part}")
    for language in (s.src, s.tgt):
        run(f"ln -s ../dict.{language}.txt {part}")
        for end in ("bin", "idx"):
            files = (f"../{name}.{s.src}-{s.tgt}.{language}.{end}" for name in ("train", "valid"))
            run(f"ln -s {' '.join(files)} {part}")
            sampled = f".{s.tgt}-{s.src}.{language}.{end}"
            run(f"ln -s ../{pairs.name}/train{sampled} {part}/train1{sampled}")
    finish_writing(part, both)

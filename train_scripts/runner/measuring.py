"""The stages that measure a drafter: sweep -> test -> table -> card."""

import json
import shlex
from pathlib import Path

from train_scripts.runner.pipeline import Pipeline
from train_scripts.runner.settings import Settings
from train_scripts.runner.stages import finish_writing, is_dry_run, is_older, run, say, write_anew
from train_scripts.runner.text import TOOL, numbered_references


def measure(recipe: Pipeline, dictionary: Path) -> None:
    """Run the stages, and print the table if there is one.

    `dictionary` is the file that says that the text is binarised.
    """
    results = recipe.results
    table, card, scores = results / "table.md", recipe.models / "README.md", results / "test"
    needs = dictionary, recipe.verifier, recipe.drafter
    title = "choose k, β and τ on the validation set"
    recipe.step("sweep", results / "sweep/sweep.json", title, lambda: _sweep(recipe), *needs)
    recipe.step("test", scores, "translate the test set and score it", lambda: _test(recipe), *needs)
    recipe.step("table", table, "compare decoders on the test set", lambda: _compare(recipe), *needs)
    last = scores if is_older(table, scores) else table
    recipe.step("card", card, "write the model card", lambda: _write_card(recipe), table, newer=last)
    if not is_dry_run() and table.exists():
        say()
        run(f"{TOOL} short-table {table}")
        say(advice(results / "table.json", recipe.settings))
        say(f"\nAll columns are in {table} and table.json; remove table.md to measure again.")


def _decoding_options(recipe: Pipeline) -> str:
    """Return the options of every decoding of the test and validation set."""
    s, bart = recipe.settings, shlex.quote(recipe.settings.BART)
    to_text = {
        "moses": "--remove-bpe --tokenizer moses",
        "gpt2": f"--bpe gpt2 --gpt2-encoder-json {bart}/encoder.json --gpt2-vocab-bpe {bart}/vocab.bpe",
    }.get(s.SUBWORDS, "--remove-bpe sentencepiece")
    options = f"--skip-invalid-size-inputs-valid-test {s.task_options} {s.search_options} {s.DECODING_OPTIONS}"
    return f"{recipe.languages} --task spec_dec --path {recipe.verifier} {to_text} {options} {recipe.precision}"


def _sweep(recipe: Pipeline) -> None:
    """Measure settings of gad and gad++ on the validation set."""
    s = recipe.settings
    some = f"--sentences {s.SWEEP_SENTENCES}" if s.SWEEP_SENTENCES else ""
    grid = f"--block-sizes {s.BLOCK_SIZES} --top-betas {s.TOP_BETAS} --taus {s.TAUS} {some}"
    sets = f"--drafter-path {recipe.drafter} --gen-subset valid --reference {recipe.raw}/valid.{s.tgt}"
    command = f"spec-dec-sweep {recipe.data} {_decoding_options(recipe)} {sets} {grid} --output {recipe.results}/sweep"
    run(command, log=recipe.logs / "sweep.log")


def _test(recipe: Pipeline) -> None:
    """Write output and scores of each decoder: tokenised BLEU as in the papers, and sacreBLEU."""
    s, part, drafter = recipe.settings, Path(f"{recipe.results}/test.partial"), f"--drafter-path {recipe.drafter}"
    rows = {"beam": "--decoder fast-beam --beam 5", "greedy": "--decoder greedy", "gad": f"--decoder gad {drafter}"}
    found = recommended(recipe.results / "sweep/sweep.json")
    rows |= {name: f"{options} {drafter}" for name, options in found.items()}
    rows |= {name: f"--decoder {name}" for name in s.decoders.split()}
    compared = f"--references {' '.join(_references(recipe))}"
    write_anew(part)
    run(f"mkdir -p {part}")
    generate = f"fairseq-generate {recipe.data} --user-dir fairseq_plugins {_decoding_options(recipe)}"
    limits = f"--gen-subset test --max-tokens {s.DISTIL_MAX_TOKENS}"
    for name, options in rows.items():
        run(f"{generate} {limits} {options}", out=part / f"{name}.out")
        scores = f"spec-dec-metrics --hypotheses {part}/{name}.out {compared} --lang {s.LANGUAGE_OF_TARGET}"
        run(f"{scores} {s.metric_options} --json {part}/{name}.json", out=part / f"{name}.txt")
    finish_writing(part, recipe.results / "test")


def _references(recipe: Pipeline) -> list[str]:
    """Return the files of the test set's references."""
    tgt = recipe.settings.tgt
    endings = numbered_references(recipe.sets.get("test", recipe.raw / "test"), tgt) or [tgt]
    return [f"{recipe.raw}/test.{ending}" for ending in endings]


def _compare(recipe: Pipeline) -> None:
    """Write the table that compares decoders."""
    s = recipe.settings
    threads = f"env OMP_NUM_THREADS={s.DECODING_THREADS} " if s.DECODING_THREADS else ""
    rows = f"--decoders {shlex.quote(s.COMPARED)} " if s.COMPARED else ""
    heads = recipe.models / "blockwise.pt"
    has_heads = s.BLOCKWISE_HEADS != "0" and ("blockwise" in recipe.wanted or heads.exists())
    rows += f"--blockwise-path {heads}" if has_heads else ""
    references = " ".join(f"--reference {file}" for file in _references(recipe))
    models = f"{_decoding_options(recipe)} --drafter-path {recipe.drafter} {references}"
    timing = f"--repeats {s.REPEATS} --timing-sentences {s.TIMING_SENTENCES} --results {recipe.results}"
    run(f"{threads}spec-dec-bench {recipe.data} {models} {rows} {timing}", out=recipe.logs / "compare.log")


def _write_card(recipe: Pipeline) -> None:
    """Write the model card, and copy the dictionaries and subwords that the models need in decoding."""
    s = recipe.settings
    files = [recipe.data / f"dict.{s.src}.txt", recipe.data / f"dict.{s.tgt}.txt"]
    if s.SUBWORDS == "gpt2":
        files += [Path(s.BART, name) for name in ("encoder.json", "vocab.bpe")]
    else:
        files.append(recipe.data / ("bpe.codes" if s.SUBWORDS == "moses" else "subwords.model"))
    run(f"cp {shlex.join(map(str, files))} {recipe.models}")
    script = shlex.quote((f"FROM={s.FROM} " if s.FROM else "") + s.recipe)
    card = f"model-card {s.NAME} --languages {s.src} {s.tgt}"
    run(f"{TOOL} {card} --licence {shlex.quote(s.licence)} --recipe {script}")


def advice(table: Path, s: Settings) -> str:
    """Return advice if gad is hardly faster than greedy, with settings of the recipe; else an empty text.

    Args:
        table: table.json of spec-dec-bench.
        s: settings of the recipe.
    """
    rows = {row["name"]: row for row in json.loads(table.read_text(encoding="utf-8"))["rows"]}
    greedy, gad = (rows.get(name, {}).get("sentences_per_second", {}).get("1") for name in ("greedy", "gad"))
    if not greedy or not gad or gad >= 1.1 * greedy:
        return ""
    epochs = {f"{model}_EPOCHS": f"{model}_UPDATES" for model in ("VERIFIER", "DRAFTER")}
    trained = [name if getattr(s, name) else updates for name, updates in epochs.items()]
    longer, larger = (
        " ".join(f"{name}={times * int(getattr(s, name))}" for name in names if getattr(s, name).isdecimal())
        for names, times in ((trained, 3), (("WIDTH", "FFN_WIDTH"), 2))
    )
    return (
        f"\nDrafts save little time here: gad has {gad / greedy:.2f} times the speed of greedy. With more text and\n"
        f"longer training, more drafted tokens are accepted{longer and f' ({longer})'}. With a\n"
        f"larger verifier, each accepted token saves more time{larger and f' ({larger})'}. Give another NAME.\n"
        "If the output repeats the input, iad drafts without a model: docs/decoders.md, docs/drafters.md."
    )


def recommended(sweep: Path) -> dict[str, str]:
    """Return the options of each setting that a sweep recommends; none without a sweep."""
    if is_dry_run():
        return dict.fromkeys(("no_quality_loss", "within_tolerance"), "--decoder gad++ CHOSEN_BY_SWEEP")
    found = json.loads(sweep.read_text(encoding="utf-8"))["recommended"] if sweep.exists() else {}
    return {name: options for name, options in found.items() if options}

"""The recipes in `train_scripts/`, each from text to model card with models of a few weights; and what they refuse."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.sharing import made_once
from tests.support import REPOSITORY, run_in_process

WORDS = "ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
RECIPES = ["multi30k", "back_translation", "iwslt14", "wmt14", "wmt16", "cnn_dm", "gec", "ua_gec", "simplification"]
LANGUAGES = {
    "multi30k": "en de", "back_translation": "en de",
    "iwslt14": "de en", "wmt14": "en de", "wmt16": "ro en", "cnn_dm": "source target",
    "gec": "src tgt", "ua_gec": "src tgt", "simplification": "src tgt",
}  # fmt: skip

# What another recipe shows as well: nothing in the sweep is of one recipe alone. After training, recipes differ by
# their subwords, which wmt14 and cnn_dm show, and by their scores, which cnn_dm, ua_gec and simplification show.
LEFT_OUT = {
    **dict.fromkeys(("iwslt14", "wmt16", "gec", "gec-bart"), "sweep,test,table,card"), "wmt14": "sweep,test",
    "back_translation": "decode,merge,drafter,sweep,test,table,card",
    **dict.fromkeys(("cnn_dm", "ua_gec", "simplification"), "sweep"),
}  # fmt: skip

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

SIZES = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16 --encoder-ffn-embed-dim 16 "
    "--decoder-ffn-embed-dim 16 --encoder-attention-heads 2 --decoder-attention-heads 2 "
)
TINY = {
    "VOCABULARY": "60", "AVERAGE": "2", "SAVE_INTERVAL_UPDATES": "1", "LOG_INTERVAL": "1", "BLOCK_SIZE": "3",
    "BLOCK_SIZES": "3", "TOP_BETAS": "3", "TAUS": "1", "REPEATS": "1", "TIMING_SENTENCES": "2", "GPUS": "0",
    "HOLD_OUT": "5", "WORKERS": "1",
    "TRAINING_OPTIONS": SIZES + "--max-update 2 --max-tokens 100 --update-freq 1 --warmup-updates 1 "
    "--num-workers 0",  # starting and ending them takes seconds
    "DECODING_OPTIONS": "--max-len-b 8 --max-len-a 0 --min-len 1 --num-workers 0",
}  # fmt: skip


def write_text(folder: Path, languages: str) -> None:
    """Sets of text in which the target is nearly the source."""
    generator = random.Random(1)
    folder.mkdir()
    for name, count in (("train", 60), ("val", 8), ("test", 6)):
        lines = [[generator.choice(WORDS) for _ in range(generator.randint(2, 5))] for _ in range(count)]
        sides = [lines, [[word.capitalize() for word in line] for line in lines]]
        for language, side in zip(languages.split(), sides, strict=True):
            text = "".join(" ".join(line) + " .\n" for line in side)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    mono = (generator.choice(WORDS).capitalize() + " .\n" for _ in range(40))
    (folder / "mono").write_text("".join(mono), encoding="utf-8")


def environment(programs: Path | None = None, **variables: str) -> dict[str, str]:
    """Return the variables of a script; `programs` is a folder of quick commands (see `command_server`)."""
    path = [*([] if programs is None else [str(programs)]), str(Path(sys.executable).parent), os.environ["PATH"]]
    inherited = {name: value for name, value in os.environ.items() if name not in ("DATA", "NAME", "TEST", "BART")}
    more = {"PATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    return {**inherited, **more, **variables}


def run(
    checkout: Path,
    recipe: str,
    *arguments: str,
    programs: Path | None = None,
    folder: Path | None = None,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a recipe of a checkout, in its folder or another."""
    return subprocess.run(
        ["bash", str(checkout / f"train_scripts/{recipe}.sh"), *arguments], cwd=folder or checkout,
        env=environment(programs, **variables), capture_output=True, text=True, timeout=500,
    )  # fmt: skip


@pytest.fixture(scope="session")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like BART's: byte-level subwords without merges, a dictionary, and an untrained model."""
    return made_once(tmp_path_factory, "bart", _make_bart)


def _make_bart(folder: Path) -> None:
    characters = [chr(n) for n in range(33, 127)] + [chr(n) for n in range(161, 324)]
    encoder = {character: number for number, character in enumerate(characters)}
    (folder / "encoder.json").write_text(json.dumps(encoder))
    (folder / "vocab.bpe").write_text("#version: 0.2\n")
    (folder / "dict.txt").write_text("".join(f"{number} 1\n" for number in range(len(characters))))
    (folder / "text.source").write_text("1 2 3\n" * 8)
    (folder / "text.target").write_text("1 2\n" * 8)
    run_in_process(
        "preprocess",
        f"--source-lang source --target-lang target --srcdict {folder}/dict.txt --tgtdict {folder}/dict.txt "
        f"--trainpref {folder}/text --destdir {folder}/data",
    )
    run_in_process(
        "train",
        f"{folder}/data --task translation --arch bart_base {SIZES} --decoder-layers 3 --share-all-embeddings --cpu "
        "--criterion cross_entropy --optimizer adam --lr 0.01 --max-update 1 --max-tokens 100 --disable-validation "
        f"--save-dir {folder} --num-workers 0",
        plugin=False,
    )
    (folder / "checkpoint_last.pt").rename(folder / "model.pt")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*RECIPES, "gec-bart"])
def test_recipe(checkout: Path, programs: Path, bart: Path, recipe: str) -> None:
    """From text to the card: lossless, complete, and nothing to do the second time."""
    skipped = LEFT_OUT.get(recipe, "")
    recipe, _, model = recipe.partition("-")
    write_text(checkout / "text", LANGUAGES[recipe])
    pair = "-".join(LANGUAGES[recipe].split())
    name = recipe if recipe == "cnn_dm" else f"tiny.{pair}"  # their own NAME tells no languages
    variables = {**TINY, "DATA": "text", "NAME": name, "TEST": "test"}
    if recipe == "cnn_dm" or model:
        variables |= {"BART": str(bart), "TEACHER": str(bart / "model.pt") if recipe == "cnn_dm" else ""}
        variables |= {"MODEL": model, "BART_LAYERS": "0,2", "SUMMARY_LENGTHS": "--max-len-b 8 --min-len 1"}
        variables["TRAINING_OPTIONS"] += " --decoder-layers 3" if recipe == "cnn_dm" else " --decoder-layers 2"
    if recipe == "back_translation":
        variables |= {"MONO": "text/mono", "UPSAMPLE": "2", "BACK_RATIO": "9"}
    if recipe == "simplification":
        for number in range(2):
            shutil.copy(checkout / "text/test.tgt", checkout / f"text/test.tgt.{number}")
    models, results = checkout / "checkpoints" / name, checkout / "results" / name
    if recipe == "multi30k":
        variables["BLOCKWISE_HEADS"] = "3"
        # Models and card that come with the repository are not those of this run.
        models.mkdir(parents=True)
        for file in ("verifier.pt", "drafter.pt", "README.md"):
            (models / file).write_text("old")
            os.utime(models / file, (0, 0))
    if skipped:
        # Rows and curves, too, the others have.
        variables |= {"COMPARED": "greedy,gad", "TENSORBOARD": "0"}
    result = run(checkout, recipe, *(["--skip", skipped] if skipped else []), programs=programs, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    for file in ["verifier.pt", *([] if "drafter" in skipped else ["drafter.pt"])]:
        state = torch.load(models / file)
        assert state["last_optimizer_state"] is None and len(state["extra_state"]["averaged"]) == 2
        assert {value.dtype for value in state["model"].values() if value.is_floating_point()} == {torch.float16}
    assert not [str(path) for path in checkout.rglob("*.partial*")]
    if recipe == "back_translation":
        sampled = checkout / f"data-bin/{name}/back-translated"
        counts = json.loads((sampled / "distilled.json").read_text())["counts"]["train"]
        log = (models / "logs/verifier.log").read_text()
        assert counts["sentences"] == 40 and counts["kept"] > 20
        assert re.search(rf"{counts['kept']} examples from: \S+/with-mono/train1.de-en.en", log)
        shard = next((checkout / f"data-bin/{name}/back-translated-shards").glob("train*"))
        assert '"sampling":true' in shard.read_text(encoding="utf-8").splitlines()[0]
    if "table" in skipped:
        return
    rows = json.loads((results / "table.json").read_text())["rows"]
    identical = {row["name"]: row["identical"] for row in rows}
    assert identical["gad"] == 6 and identical.get("blockwise") == (6 if recipe == "multi30k" else None)
    metrics = {"rouge": "cnn_dm", "SARI": "simplification", "F0.5": "gec"}
    assert (results / "test").exists() == ("test" not in skipped)
    if "test" not in skipped:
        scores = (results / "test/gad.txt").read_text()
        assert all((text in scores) == (used in recipe) for text, used in metrics.items() if text != "rouge"), scores
        assert ("6 sentences, 2 references each" in scores) == (recipe == "simplification"), scores
    assert (results / "sweep/sweep.md").exists() == ("sweep" not in skipped)
    card = (models / "README.md").read_text(encoding="utf-8")
    assert f"train_scripts/{recipe}.sh" in card and "| gad" in card
    if recipe == "ua_gec":
        raw = checkout / f"data-bin/{name}/raw"
        train, valid = ((raw / f"{side}.src").read_text().splitlines() for side in ("train", "valid"))
        assert len(train) + len(valid) == 60 and not set(train) & set(valid)
    if recipe == "cnn_dm":
        _translates_what_is_typed(card, checkout, programs)
    if recipe == "multi30k":
        second = run(checkout, recipe, programs=programs, **variables)
        assert second.returncode == 0 and "[....]" not in second.stdout
        os.utime(results / "test")  # measured again
        assert "[done] write the model card" in run(checkout, recipe, programs=programs, **variables).stdout
        _translates_what_is_typed(card, checkout, programs)
        _goes_on(name, checkout, programs, variables)


def _goes_on(name: str, checkout: Path, programs: Path, variables: dict[str, str]) -> None:
    """A second round: the same text and subwords, and a verifier that was trained with its drafter."""
    second = {**variables, "NAME": "second.en-de", "FROM": name, "DATA": "", "BLOCKWISE_HEADS": "0", "TENSORBOARD": "0"}
    result = run(checkout, "multi30k", "--skip", "sweep,test,table,card", programs=programs, **second)
    assert result.returncode == 0, result.stdout + result.stderr
    folders = [checkout / "data-bin" / part for part in (name, "second.en-de")]
    for file in ("dict.de.txt", "subwords.model", "raw/train.de"):
        assert (folders[0] / file).read_bytes() == (folders[1] / file).read_bytes()
    shard = next((folders[1] / "taught-shards").glob("train*")).read_text(encoding="utf-8").splitlines()[0]
    assert '"decoder":"fast-beam"' in shard
    models = [checkout / "checkpoints" / part / "verifier.pt" for part in (name, "second.en-de")]
    assert models[0].read_bytes() != models[1].read_bytes()


def _translates_what_is_typed(card: str, checkout: Path, programs: Path) -> None:
    command = re.search(r"    (spec-dec-translate .*)", card)
    assert command is not None
    output = subprocess.run(
        ["bash", "-c", f"PATH={programs}:$PATH; {command.group(1)}"],
        input="ein zwei\n", cwd=checkout, capture_output=True, text=True,
    )  # fmt: skip
    assert output.returncode == 0 and output.stdout.count("\n") == 1, output.stdout + output.stderr


def files_in(checkout: Path) -> list[Path]:
    """Everything but what Python compiles."""
    return sorted(path for path in checkout.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("recipe", RECIPES)
def test_dry_run_prints_every_command_and_does_nothing(checkout: Path, recipe: str) -> None:
    write_text(checkout / "text", LANGUAGES[recipe])
    before = files_in(checkout)
    mono = {"MONO": "text/mono"} if recipe == "back_translation" else {}
    for variables in ({"DATA": "text", **mono}, {}):
        if not variables and recipe in ("cnn_dm", "gec", "ua_gec", "simplification"):
            continue  # their text cannot be downloaded
        name = {"NAME": "wmt16.ro-en"} if recipe == "wmt16" else {}
        # LANGUAGE is for translated messages (GNU gettext), not for us.
        result = run(checkout, recipe, "--dry-run", GPUS="8", TEST="test", LANGUAGE="fr_CA:fr", **variables, **name)
        assert result.returncode == 0, result.stderr
        for command in (
            "fairseq-preprocess ", "torchrun --standalone --nproc-per-node 8 --no-python fairseq-train ",
            "spec-dec-distill decode ", "spec-dec-distill merge ", "spec-dec-average ",
            "spec-dec-sweep ", "fairseq-generate ", "spec-dec-metrics ",
            "--tensorboard-logdir", "--fp16", "model-card ",
        ):  # fmt: skip
            assert command in result.stdout, command
        assert ("curl " in result.stdout) == (not variables or recipe == "cnn_dm")
        # Of a language that it does not know Moses breaks apostrophes apart and cannot undo this.
        assert set(re.findall(r"sacremoses .*--language (\w+)", result.stdout)) <= {"en", "de", "ro"}
        assert set(re.findall(r"--lang (\S+)", result.stdout)) < {"en", "de", "uk"}
    assert files_in(checkout) == before


@pytest.mark.parametrize(
    ("recipe", "end"), [("demo", "UPDATES_OF_20_EPOCHS"), ("back_translation", "4500"), ("ua_gec", "4500")]
)
def test_a_second_round_has_the_sizes_of_the_first_and_an_end(checkout: Path, recipe: str, end: str) -> None:
    """A learning-rate schedule needs the end; the first round may have had other settings."""
    languages = LANGUAGES.get(recipe, "en fr").replace(" ", "-")
    names = {"NAME": f"second.{languages}", "FROM": f"first.{languages}", "BLOCKWISE_HEADS": "0", "GPUS": "0"}
    result = run(checkout, recipe, "--dry-run", **names)
    assert result.returncode == 0, result.stderr
    trainings = re.findall("^fairseq-train .*", result.stdout, re.MULTILINE)
    assert ["--tune-verifier" in training for training in trainings] == [True, False]
    for training in trainings:
        assert re.findall(r"--max-update (\S+)", training)[-1] == end
        assert not re.search(r"--(en|de)coder-(embed|ffn-embed)-dim|--decoder-layers", training)


@pytest.mark.parametrize("left_out, is_compared", [("sweep", True), ("blockwise", False)])
def test_heads_that_are_left_out_are_not_compared(checkout: Path, left_out: str, is_compared: bool) -> None:
    result = run(checkout, "multi30k", "--dry-run", "--skip", left_out, BLOCKWISE_HEADS="4", GPUS="0")
    assert result.returncode == 0, result.stderr
    assert ("--blockwise-path " in result.stdout) == is_compared


def test_the_batch_of_the_paper_is_kept(checkout: Path) -> None:
    for gpus, most in ((8, 8192), (3, 5000), (1, 4096), (64, 20000)):
        result = run(checkout, "wmt14", "--dry-run", GPUS=str(gpus), MAX_TOKENS=str(most), DRAFTER_MAX_TOKENS=str(most))
        commands = re.findall(r"fairseq-train .*--max-tokens (\d+) --update-freq (\d+)", result.stdout)
        batches = [int(tokens) * int(frequency) * gpus for tokens, frequency in commands]
        for batch, expected in zip(batches, (3584 * 16 * 8, 20000 * 4 * 8, 4096 * 4 * 8), strict=True):
            assert batch == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize(
    ("recipe", "arguments", "variables", "message"),
    [
        ("multi30k", ["--only", "train"], {}, "--only train: no such stage; choose from text,"),
        ("multi30k", ["--fast"], {}, "--fast: no such option"),
        ("multi30k", [], {"DATA": "none"}, "DATA=none: no such folder"),
        ("multi30k", [], {"FROM": "first.en-de"}, "FROM=first.en-de: checkpoints/first.en-de/verifier.pt is missing;"),
        ("multi30k", [], {"FROM": "first.en-de", "DRAFTER": "tokens"}, "FROM=first.en-de: trains verifier and drafter"),
        ("multi30k", [], {"FROM": "multi30k.en-de"}, "FROM=multi30k.en-de: is the NAME of this run, too; "),
        ("multi30k", [], {"FROM": "first.en-de", "DATA": "/"}, "DATA=/: FROM=first.en-de continues with its own text"),
        ("back_translation", [], {"FROM": "first.en-de", "MONO": "x"}, "MONO=x: FROM=first.en-de continues with"),
        ("multi30k", [], {"SHAPE": "huge"}, "SHAPE=huge: choose from tiny, base"),
        ("multi30k", [], {"AVERAGE": "some"}, "AVERAGE=some: give a number"),
        ("multi30k", [], {"DRAFTER_MINUTES": "1h"}, "DRAFTER_MINUTES=1h: give a number"),
        ("multi30k", [], {"VERIFIER_UPDATES": "1e4"}, "VERIFIER_UPDATES=1e4: give a number"),
        ("multi30k", [], {"MAX_TOKENS": "0"}, "MAX_TOKENS=0: give a number above 0"),
        ("multi30k", [], {"BLOCK_SIZE": "human-readable"}, "BLOCK_SIZE=human-readable: give a number above 0"),
        ("multi30k", [], {"HOLD_OUT": "0"}, "HOLD_OUT=0: give a number above 0"),
        ("multi30k", [], {"SUBWORDS": "none"}, "SUBWORDS=none: choose from"),
        ("multi30k", [], {"DRAFTER_DATA": "both"}, "DRAFTER_DATA=both: choose from teacher, verifier"),
        ("multi30k", [], {"BLOCK_SIZES": "5;10"}, "BLOCK_SIZES=5;10: give numbers above 0 with commas"),
        ("multi30k", [], {"TAUS": "1,,2"}, "TAUS=1,,2: give numbers with commas"),
        ("multi30k", [], {"DRAFTER_LR": "fast"}, "DRAFTER_LR=fast: give a number, such as 5e-4"),
        ("multi30k", [], {"VERIFIER_DROPOUT": "1.5"}, "VERIFIER_DROPOUT=1.5: give a number from 0 to 1"),
        ("multi30k", [], {"DISTIL_RATIO": "0.5"}, "DISTIL_RATIO=0.5: give a number from 1, or 0 for no limit"),
        ("multi30k", [], {"FP16": "no"}, "FP16=no: give 1 or 0"),
        ("multi30k", [], {"TENSORBOARD": "false"}, "TENSORBOARD=false: give 1 or 0"),
        ("multi30k", [], {"KEEP_RAW": "no", "SHAPE": "base"}, "KEEP_RAW=no: give 1 or 0"),
        ("demo", [], {"DECODING_BLOCK_SIZE": "4.5"}, "DECODING_BLOCK_SIZE=4.5: give a number above 0"),
        ("quick_demo", [], {"TIMING_SECONDS": "1s"}, "TIMING_SECONDS=1s: give a number"),
        ("quick_demo", [], {"SENTENCES": "all"}, "SENTENCES=all: give a number above 0"),
        ("bench", [], {"BATCH_SIZES": "1 4"}, "BATCH_SIZES=1 4: give numbers above 0 with commas"),
        ("bench", [], {"THREADS": "0"}, "THREADS=0: give a number above 0"),
        ("wmt14", [], {"NAME": "x.en-fr"}, "NAME=x.en-fr: does not end in en-de or de-en"),
        ("wmt14", [], {"SIZE": "huge"}, "SIZE=huge: choose from base, big, 12-2"),
        ("gec", [], {}, "DATA is missing"),
        ("gec", [], {"DATA": "text", "MODEL": "gpt"}, "MODEL=gpt: choose from big, bart"),
        ("gec", [], {"DATA": "text", "BLOCKWISE_HEADS": "4"}, "BLOCKWISE_HEADS=4: this recipe has no options"),
        ("cnn_dm", [], {"DATA": "text", "BART": "text"}, "TEACHER is missing"),
        ("back_translation", [], {"DATA": "text"}, "MONO is missing; give a file of text in de"),
        ("multi30k", [], {"DATA": "text", "MONO": "nofile"}, "MONO=nofile: not a readable file; give plain text"),
        ("wmt14", [], {"MONO": "mono", "TEACHER": "x.pt"}, "MONO=mono: trains the teacher, and TEACHER=x.pt"),
    ],
)
def test_refusals(checkout: Path, recipe: str, arguments: list[str], variables: dict[str, str], message: str) -> None:
    write_text(checkout / "text", LANGUAGES.get(recipe, "en de"))
    result = run(checkout, recipe, *arguments, **variables)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith(f"error: {message}") and len(result.stderr.strip().splitlines()) == 1


def test_numbers_that_fairseq_takes_are_taken(checkout: Path) -> None:
    """Without an interval it saves at the end of each epoch."""
    taken = {"SAVE_INTERVAL_UPDATES": "0", "VERIFIER_MINUTES": "0.5", "AVERAGE": "0", "HOLD_OUT": "", "GPUS": "0"}
    taken |= {"VERIFIER_LR": "1.e-3", "DRAFTER_DROPOUT": ".1", "TAUS": "0,1.5", "TEACHER": str(checkout / "x.pt")}
    taken |= {"SHAPE": "base", "KEEP_RAW": "0", "DISTIL_RATIO": "0", "REQUEUE": "yes"}
    result = run(checkout, "multi30k", "--dry-run", **taken)
    assert "--save-interval-updates 0 " in result.stdout and "--stop-time-hours 0.00833333 " in result.stdout
    assert "spec-dec-distill merge " in result.stdout and "--lr 1.e-3 " in result.stdout, result.stderr
    assert "--keep-raw" not in result.stdout and "--max-length-ratio" not in result.stdout
    processor = Path("/proc/cpuinfo").read_text()
    assert ("--cpu-bf16" in result.stdout) == ("avx512_bf16" in processor or "amx_bf16" in processor)
    result = run(checkout, "multi30k", "--dry-run", **{**taken, "GPUS": "", "CUDA_VISIBLE_DEVICES": "0"})
    assert "--fp16" in result.stdout and "--cpu-bf16" not in result.stdout


def test_downloads_are_checked(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("not found")

    def shell(script: str) -> subprocess.CompletedProcess[str]:
        sourced = f"script=x; source train_scripts/recipe.sh; source train_scripts/downloads.sh; cd {tmp_path}"
        return subprocess.run(["bash", "-c", f"{sourced}; {script}"], cwd=REPOSITORY, capture_output=True, text=True)

    def fetch(*arguments: str) -> subprocess.CompletedProcess[str]:
        return shell(f"fetch file://{tmp_path}/page out {' '.join(arguments)}")

    assert "has 9 bytes, expected at least 1000; remove it" in fetch("1000").stderr
    assert "its checksum is not the published one" in fetch("5", "0" * 64).stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "out.partial").unlink()
    assert fetch("5").returncode == 0 and (tmp_path / "out").read_text() == "not found"
    # An archive that was half unpacked is unpacked anew.
    (tmp_path / "downloads/bart").mkdir(parents=True)
    (tmp_path / "downloads/bart/model.pt").write_text("whole")
    subprocess.run("tar -czf bart.tar.gz bart && rm -r bart", shell=True, check=True, cwd=tmp_path / "downloads")
    half = shell('tar() { mkdir -p "$4/bart"; echo half >"$4/bart/model.pt"; return 1; }; unpack bart')
    assert half.returncode == 1 and not (tmp_path / "downloads/bart/model.pt").exists()
    assert shell("unpack bart; unpack bart").returncode == 0
    assert (tmp_path / "downloads/bart/model.pt").read_text() == "whole"
    assert [path.name for path in sorted((tmp_path / "downloads").iterdir())] == ["bart", "bart.tar.gz"]
    offline = shell("sacrebleu() { echo no network >&2; return 1; }; from_sacrebleu wmt13 en-de src text")
    message = "sacrebleu --test-set wmt13: could not be downloaded; see above, or give local text with DATA=folder"
    assert (offline.returncode, offline.stderr) == (2, f"no network\nerror: {message}\n")


def test_help_is_the_head_of_the_recipe(checkout: Path) -> None:
    result = run(checkout, "wmt14", "--help")
    assert result.stdout.startswith("WMT14 English to German") and "SBATCH" not in result.stdout

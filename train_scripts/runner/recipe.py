"""The stages of a recipe, from text to a measured drafter.

text -> binarise -> [mono -> reverse -> sample -> pairs ->] [teacher -> decode -> merge ->] verifier
-> [decode -> merge ->] drafter [-> blockwise] -> sweep -> test -> table -> card

With a teacher, verifier and drafter both train on its translations (Seq-KD with a shared teacher, GAD section 5.1).
Without one, or with DRAFTER_DATA=verifier, the drafter trains on the verifier's translations.

FROM=NAME starts a second round from the finished run NAME. Its verifier and drafter first train together on the
verifier's beam-search translations, so that the verifier's hidden states predict more of the next tokens. Then the
drafter trains on translations of the new verifier.
"""

import shlex
import time
from collections.abc import Callable, Collection
from pathlib import Path

from train_scripts.runner.back_translation import back_translate, check_mono
from train_scripts.runner.measuring import measure
from train_scripts.runner.settings import Settings, batch, trainer
from train_scripts.runner.stages import RecipeError, is_dry_run, is_older, lock, minutes, run, say, stage
from train_scripts.runner.text import TOOL, binarise, call_recipe, find_sets, make_text
from train_scripts.runner.training import remove_numbered, to_average, train

TITLES = {"blockwise": "blockwise heads", "reverse": "model of the other direction"}


class Recipe:
    """Settings, folders and stages of a recipe.

    Args:
        settings: settings of the recipe.
        wanted: names of the stages to run.
    """

    def __init__(self, settings: Settings, wanted: Collection[str]) -> None:
        s = self.settings = settings
        self.wanted = wanted
        self.data, self.models = Path("data-bin", s.NAME), Path("checkpoints", s.NAME)
        self.logs, self.runs = self.models / "logs", self.models / "training"
        self.results, self.raw = Path("results", s.NAME), self.data / "raw"
        self.verifier, self.drafter = self.models / "verifier.pt", self.models / "drafter.pt"
        self.base = self.verifier  # checkpoint that initialises the drafter's decoder
        self.languages = f"--source-lang {s.src} --target-lang {s.tgt}"
        self.precision = "--fp16" if s.GPUS != "0" and s.FP16 != "0" else ""
        self.verifier_options = f"--seed {s.SEED} {s.verifier_options} {batch(s, s.VERIFIER_TOKENS, s.MAX_TOKENS)}"
        self.made_by: dict[Path, str] = {}  # the stage that writes each output
        self.sets: dict[str, Path] = {}  # where the text stage reads DATA

    def step(
        self, name: str, output: Path, message: str, make: Callable[[], None], *needs: Path, newer: Path | None = None
    ) -> None:
        """Run a stage unless --skip or --only excludes it; raise RecipeError if a file that it needs is missing.

        An output older than the file `newer` is written again: the repository has models and cards of other runs.
        """
        self.made_by[output] = name
        if name not in self.wanted:
            return
        if newer and not is_dry_run() and is_older(output, newer):
            output.unlink()
        if not output.exists():
            self.check_needs(name, *needs)
        stage(output, message, make)

    def check_needs(self, name: str, *needs: Path) -> None:
        """Raise RecipeError if a file that a stage reads is missing."""
        for file in needs:
            if not file.exists() and not is_dry_run():
                before = self.made_by.get(file)
                remedy = f"the stage {before} comes first: --only {before}" if before else "give another TEACHER"
                raise RecipeError(f"stage {name}: {file} is missing; {remedy}")

    def run_all(self) -> None:
        """Run all wanted stages that are not finished."""
        start, s = time.monotonic(), self.settings
        if s.FROM:
            self.check_second_round()
        if s.MONO and s.TEACHER:
            raise RecipeError(f"MONO={s.MONO}: trains the teacher, and TEACHER={s.TEACHER} is trained; leave one out")
        if s.MONO:
            check_mono(self)
        if not s.FROM and s.DATA and "text" in self.wanted and (is_dry_run() or not self.raw.exists()):
            self.sets = find_sets(s)
        if not is_dry_run():
            for folder in (self.data, self.models, self.logs, self.runs, self.results):
                folder.mkdir(parents=True, exist_ok=True)
            if self.wanted != {"decode"}:  # the jobs of an array decode at the same time
                lock(self.models / ".lock")
            self.check_origin()
        say(f"Recipe {s.NAME}, {s.GPUS} GPUs: models and logs in {self.models}, results in {self.results}.")
        call_recipe("get_models")
        self.step("text", self.raw, "get the text", lambda: make_text(s, self.raw, self.sets))
        dictionary, cut = self.data / f"dict.{s.tgt}.txt", "cut into subwords and binarise"
        self.step("binarise", dictionary, cut, lambda: binarise(s, self.data, self.logs), self.raw)
        self.train_all(dictionary)
        measure(self, dictionary)
        say(f"Finished in {minutes(time.monotonic() - start)} min.")

    def check_origin(self) -> None:
        """Raise RecipeError if this run began with another text."""
        file, origin = self.data / "origin.txt", self.settings.origin
        if not file.exists():
            partial = file.with_name(file.name + ".partial")
            partial.write_text(origin + "\n", encoding="utf-8")
            partial.rename(file)
        if (before := file.read_text(encoding="utf-8").rstrip("\n")) != origin:
            folders = f"{self.data}, {self.models} and {self.results}"
            moved = f"write {origin} into {file} if it is the same, moved"
            remedy = f"continue with that one, {moved}, choose another NAME, or remove {folders}"
            raise RecipeError(f"NAME={self.settings.NAME}: its text is {before}, not {origin}; {remedy}")

    def check_second_round(self) -> None:
        """Set the settings that FROM implies; raise RecipeError if its models are missing."""
        s = self.settings
        if s.DRAFTER != "features":
            cannot = f"trains verifier and drafter together, which DRAFTER={s.DRAFTER} cannot"
            raise RecipeError(f"FROM={s.FROM}: {cannot}; leave DRAFTER out")
        s.TEACHERS, s.TEACHER, s.DRAFTER_DATA = "0", f"checkpoints/{s.FROM}/verifier.pt", "verifier"
        for file in (s.TEACHER, f"checkpoints/{s.FROM}/drafter.pt", f"data-bin/{s.FROM}/raw"):
            if not Path(file).exists() and not is_dry_run():
                raise RecipeError(f"FROM={s.FROM}: {file} is missing; run the recipe with NAME={s.FROM} first")

    def train_all(self, dictionary: Path) -> None:
        """Train teachers, verifier, drafter and blockwise heads, each on its data."""
        s, taught, distilled = self.settings, self.data / "taught", self.data / "distilled"
        data, more = self.data, ""
        if s.MONO:
            data, more = back_translate(self, dictionary), f" --upsample-primary {s.UPSAMPLE}"
        teachers = [f"teacher{number}" for number in range(1, int(s.TEACHERS) + 1)]
        for number, name in enumerate(teachers, 1):
            options = f"--seed {int(s.SEED) + number} {s.teacher_options} {batch(s, s.TEACHER_TOKENS, s.MAX_TOKENS)}"
            self.train_model("teacher", name, data, options + more, dictionary, data)
        teacher = ":".join(f"{self.models}/{name}.pt" for name in teachers) or s.TEACHER
        if not teacher:
            self.train_model("verifier", "verifier", data, self.verifier_options + more, dictionary, data)
            self.distil(str(self.verifier), s.DISTIL_DECODER, distilled)
        elif s.DRAFTER_DATA == "verifier":
            self.distil(teacher, s.DISTIL_DECODER, taught, s.DISTIL_RATIO, s.KEEP_RAW)
            if s.FROM:
                self.tune_verifier(taught)
            else:
                self.train_model("verifier", "verifier", taught, self.verifier_options, taught)
            # With --only decode before the first merge, the new verifier, which translates here, does not exist yet.
            if self.wanted != {"decode"} or taught.exists() or is_dry_run():
                self.distil(str(self.verifier), "greedy", distilled)
        else:
            self.distil(teacher, s.DISTIL_DECODER, distilled, s.DISTIL_RATIO, s.KEEP_RAW)
            self.train_model("verifier", "verifier", distilled, self.verifier_options, distilled)
        self.train_drafter("drafter", "drafter", self.verifier, distilled, self.drafter_updates(distilled))
        if s.BLOCKWISE_HEADS != "0":
            self.train_blockwise(distilled)

    def train_model(self, name: str, model: str, data: Path, options: str, *needs: Path, languages: str = "") -> None:
        """Train `model` on `data` in the stage `name`, and write MODEL.pt: an average, or the best checkpoint.

        `languages` are options that replace those of the recipe.
        """
        folder, file, log = self.runs / model, self.models / f"{model}.pt", self.logs / f"{model}.log"
        title, keep = TITLES.get(model, model), int(self.settings.AVERAGE)
        command = self.training_command(model, data, options, languages or self.languages)
        limit, later = float(getattr(self.settings, f"{name.upper()}_MINUTES")), later_work(self.settings, name)
        self.step(name, folder, f"train the {title}", lambda: train(folder, log, limit, command, keep, later), *needs)

        def average() -> None:
            command = f"spec-dec-average {to_average(folder, keep)} --output {file}"
            run(command, log=self.logs / f"average-{model}.log")
            remove_numbered(folder)

        what = "average the last checkpoints" if keep else "take the best checkpoint"
        self.step(name, file, f"{what} of the {title}", average, folder, newer=folder / "checkpoint_last.pt")

    def training_command(self, model: str, data: Path, options: str, languages: str) -> str:
        """Return the command that trains a model."""
        s = self.settings
        logs = f"--tensorboard-logdir {self.models}/tensorboard/{model}" if s.TENSORBOARD != "0" else ""
        saved = f"--save-interval-updates {s.SAVE_INTERVAL_UPDATES} --skip-invalid-size-inputs-valid-test"
        task = f"--user-dir fairseq_plugins {languages} {s.task_options} {self.precision}"
        return f"{trainer(s, data)} {task} {logs} {saved} {options} {s.TRAINING_OPTIONS}"

    def train_drafter(self, name: str, model: str, verifier: Path, data: Path, options: str) -> None:
        """Train a drafter for a verifier, as `train_model` does.

        With DRAFTER=features it has few layers, reads the verifier's hidden states and trains without glancing. With
        DRAFTER=tokens it is the papers' drafter, a decoder that reads the output so far, but shares the verifier's
        encoder.
        """
        s, kind = self.settings, "--share-encoder"
        if s.DRAFTER == "features":
            kind = f"--drafter-context features --drafter-layers {s.DRAFTER_LAYERS} --position-decay 3"
            kind += " --glancing-start 0 --glancing-end 0"
        self.train_model(name, model, data, (
            f"--seed {s.SEED} --task spec_dec --criterion glat_loss --verifier-path {verifier} "
            f"--block-size {s.BLOCK_SIZE} {s.drafter_training} {batch(s, s.DRAFTER_TOKENS, s.DRAFTER_MAX_TOKENS)} "
            f"--init-decoder-from {self.base} --activation-fn {s.ACTIVATION} --src-embedding-copy "
            f"--blocks-per-sentence {s.BLOCKS_PER_SENTENCE} "
            "--best-checkpoint-metric tokens_per_iteration --maximize-best-checkpoint-metric "
            f"{kind} {s.DRAFTER_OPTIONS} {options}"
        ), verifier, data)  # fmt: skip

    def drafter_updates(self, data: Path) -> str:
        """Return DRAFTER_EPOCHS as --max-update, which the drafter's learning-rate schedule may need."""
        s, counted = self.settings, self.logs / "drafter-updates.txt"
        if not s.DRAFTER_EPOCHS or "drafter" not in self.wanted or (self.runs / "drafter").exists():
            return ""
        if is_dry_run():
            return f"--max-update UPDATES_OF_{s.DRAFTER_EPOCHS}_EPOCHS"
        self.check_needs("drafter", self.verifier, data)
        count = f"count-updates {data} --languages {s.src} {s.tgt} --epochs {s.DRAFTER_EPOCHS}"
        run(f"{TOOL} {count} --tokens {s.DRAFTER_TOKENS}", out=counted)
        return f"--max-update {counted.read_text()}"

    def tune_verifier(self, data: Path) -> None:
        """Train the verifier of FROM together with its drafter, and keep that drafter to initialise the next one."""
        s, both, tuned = self.settings, self.models / "verifier-with-drafter.pt", self.models / "tuned.pt"
        before = Path("checkpoints", s.FROM)
        self.base = before / "drafter.pt"
        updates = f"--max-update {s.TUNE_UPDATES}" if s.TUNE_UPDATES else ""
        self.train_drafter("verifier", both.stem, before / "verifier.pt", data, f"--tune-verifier {updates}")
        split = f"{TOOL} split-verifier {both} {before}/verifier.pt {self.verifier} {tuned}"
        self.step("verifier", self.verifier, "separate verifier and drafter", lambda: run(split), both, newer=both)
        self.base = tuned

    def train_blockwise(self, data: Path) -> None:
        """Train heads on the frozen verifier, which keeps its output (Stern et al. 2018, footnote 1)."""
        s = self.settings
        self.train_model("blockwise", "blockwise", data, (
            f"--seed {s.SEED} --task spec_dec --arch blockwise_transformer --base-path {self.verifier} --freeze-base "
            f"--identity-first-head --blockwise-heads {s.BLOCKWISE_HEADS} --criterion blockwise_loss "
            "--best-checkpoint-metric tokens_per_iteration --maximize-best-checkpoint-metric "
            f"{s.blockwise_training} {batch(s, s.VERIFIER_TOKENS, s.MAX_TOKENS)}"
        ), self.verifier, data)  # fmt: skip

    def distil(self, teacher: str, decoder: str, output: Path, ratio: str = "0", keep_raw: str = "0") -> None:
        """Translate the training and validation set, and merge the translations into a data set.

        `ratio`, unless 0, drops pairs whose lengths differ by more. The verifier's own translations are all kept: the
        drafter should also learn outputs that repeat without end, where drafts save most. `keep_raw` adds the original
        pairs.
        """
        s, shards = self.settings, Path(f"{output}-shards")
        sets, path = f"{self.languages} --gen-subset train,valid", shlex.quote(teacher)
        search = f"--decoder {decoder} --beam {s.DISTIL_BEAM} {s.distil_options}"
        needs = self.data / f"dict.{s.tgt}.txt", *map(Path, teacher.split(":"))
        decode = f"{self.data} {sets} --path {path} {search}"
        self.decode_into(shards, "decode", output, f"translate the training set with {teacher}", decode, *needs)
        limits = ("" if ratio == "0" else f"--max-length-ratio {ratio} ") + ("--keep-raw" if keep_raw == "1" else "")
        merge = f"spec-dec-distill merge {self.data} {sets} {limits} --shards {shards} --destdir {output}"
        title = "check, merge and binarise the translations"
        self.step("merge", output, title, lambda: run(f"{merge} --workers {s.WORKERS}"), shards)

    def decode_into(self, shards: Path, stage: str, output: Path, title: str, options: str, *needs: Path) -> None:
        """Decode into a folder of shards, which an interrupted run goes on with, unless their `output` is there."""
        s = self.settings
        self.made_by[shards] = stage
        if stage in self.wanted and not output.exists():
            self.check_needs(stage, *needs)
            say(f"[....] {title}")
            start = time.monotonic()
            more = f"--max-tokens {s.DISTIL_MAX_TOKENS} {s.task_options} {s.DECODING_OPTIONS} {self.precision}"
            run(f"spec-dec-distill decode {options} --output {shards} {more}")
            say(f"[done] {title}: {shards}, {minutes(time.monotonic() - start)} min")


def later_work(s: Settings, name: str) -> float:
    """Estimate the time of the stages after a training, as a multiple of its own time; 0 if it is not known.

    Assumes that an epoch takes the same time for all models. Decoding the training set and comparing decoders count as
    one more epoch.
    """
    order = ["verifier", "drafter", "blockwise"]
    if name not in order or not getattr(s, f"{name.upper()}_EPOCHS"):
        return 0
    models = [model.upper() for model in order[order.index(name) :]]
    epochs, clock = ([float(getattr(s, f"{model}_{unit}") or 0) for model in models] for unit in ("EPOCHS", "MINUTES"))
    this, *later = clock if all(clock) else epochs
    return sum(later) / this + 1 / epochs[0]

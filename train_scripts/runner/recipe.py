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
from collections.abc import Collection
from pathlib import Path

from train_scripts.runner.back_translation import back_translate, check_mono
from train_scripts.runner.measuring import measure
from train_scripts.runner.pipeline import Pipeline
from train_scripts.runner.settings import Settings, batch
from train_scripts.runner.stages import RecipeError, is_dry_run, lock, minutes, run, say
from train_scripts.runner.text import TOOL, binarise, call_recipe, find_sets, make_text


class Recipe(Pipeline):
    """The stages of a recipe, in their order; see `Pipeline`."""

    def __init__(self, settings: Settings, wanted: Collection[str]) -> None:
        super().__init__(settings, wanted)
        self.base = self.verifier  # checkpoint that initialises the drafter's decoder

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
        if s.FROM == s.NAME:
            raise RecipeError(f"FROM={s.FROM}: is the NAME of this run, too; give the second round a NAME of its own")
        for name in ("DATA", "MONO"):
            if given := getattr(s, name):
                raise RecipeError(f"{name}={given}: FROM={s.FROM} continues with its own text; leave {name} out")
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
        updates = self.drafter_updates("drafter", "drafter", self.verifier, distilled)
        self.train_drafter("drafter", "drafter", self.verifier, distilled, updates)
        if s.BLOCKWISE_HEADS != "0":
            self.train_blockwise(distilled)

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

    def drafter_updates(self, name: str, model: str, verifier: Path, data: Path) -> str:
        """Return DRAFTER_EPOCHS as --max-update, which the drafter's learning-rate schedule may need.

        Arguments as for `train_drafter`.
        """
        s, counted = self.settings, self.logs / f"{model}-updates.txt"
        if not s.DRAFTER_EPOCHS or name not in self.wanted or (self.runs / model).exists():
            return ""
        if is_dry_run():
            return f"--max-update UPDATES_OF_{s.DRAFTER_EPOCHS}_EPOCHS"
        self.check_needs(name, verifier, data)
        count = f"count-updates {data} --languages {s.src} {s.tgt} --epochs {s.DRAFTER_EPOCHS}"
        run(f"{TOOL} {count} --tokens {s.DRAFTER_TOKENS}", out=counted)
        return f"--max-update {counted.read_text()}"

    def tune_verifier(self, data: Path) -> None:
        """Train the verifier of FROM together with its drafter, and keep that drafter to initialise the next one."""
        s, both, tuned = self.settings, self.models / "verifier-with-drafter.pt", self.models / "tuned.pt"
        before = Path("checkpoints", s.FROM)
        self.base = before / "drafter.pt"
        verifier = before / "verifier.pt"
        updates = self.drafter_updates("verifier", both.stem, verifier, data)
        if s.TUNE_UPDATES:
            updates = f"--max-update {s.TUNE_UPDATES}"
        self.train_drafter("verifier", both.stem, verifier, data, f"--tune-verifier {updates}")
        split = f"{TOOL} split-verifier {both} {verifier} {self.verifier} {tuned}"
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

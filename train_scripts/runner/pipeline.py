"""The base of a recipe: its settings and folders, and how a stage trains a model or decodes."""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from train_scripts.runner.settings import Settings, batch, trainer
from train_scripts.runner.stages import RecipeError, is_dry_run, is_older, minutes, run, say, stage
from train_scripts.runner.training import remove_numbered, to_average, train

TITLES = {"blockwise": "blockwise heads", "reverse": "model of the other direction"}


class Pipeline:
    """Settings and folders of a recipe, and methods that run one stage of it.

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

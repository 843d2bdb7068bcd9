"""`python -m train_scripts.runner`: stages, locks, training with its progress, settings, and what comes first."""

import errno
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command_server import REPOSITORY
from tests.test_recipes import run as recipe
from train_scripts.runner.back_translation import check_mono
from train_scripts.runner.measuring import advice, recommended
from train_scripts.runner.pipeline import later_work
from train_scripts.runner.recipe import Recipe
from train_scripts.runner.settings import Settings, batch, read_settings, trainer
from train_scripts.runner.stages import RecipeError
from train_scripts.runner.text import find_sets, make_text, numbered_references
from train_scripts.runner.training import Progress, ends_of, mend_checkpoints, to_average

COMMAND = [sys.executable, "-m", "train_scripts.runner"]


def environment(**variables: str) -> dict[str, str]:
    """Variables with which the runner is found from another folder."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the runner, as a script does."""
    return subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env=environment(**variables), capture_output=True, text=True, timeout=300
    )


def test_a_stage_runs_once(tmp_path: Path) -> None:
    """And does not use what an interrupted one left."""
    (tmp_path / "out.partial").write_text("half\n")
    (tmp_path / "out.partial.begun").touch()
    make = ["stage", "out", "make it", "log", "bash", "-c", "echo made >>out.partial"]
    said = [run(tmp_path, *make).stdout, run(tmp_path, *make).stdout]
    assert (tmp_path / "out").read_text() == "made\n" and not (tmp_path / "out.partial").exists()
    assert [line[:6] for line in "".join(said).splitlines()] == ["[....]", "[done]", "[have]"]


@pytest.mark.parametrize("stage", [["stage", "out", "make it", "log"], ["train", "out", "train", "log", "0"]])
def test_a_file_that_no_stage_has_written_is_kept(stage: list[str], tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "checkpoint_1.pt").write_text("mine")
    result = run(tmp_path, *stage, "bash", "-c", "echo made >out")
    assert result.returncode != 0 and "out.partial: is there, and no stage has written it" in result.stderr
    assert (tmp_path / "out.partial" / "checkpoint_1.pt").read_text() == "mine"


def test_a_failing_stage_shows_the_end_of_its_log(tmp_path: Path) -> None:
    result = run(tmp_path, "stage", "out", "try", "log", "bash", "-c", "echo H-1; echo reason; exit 3")
    assert result.returncode == 3
    assert "reason" in result.stderr and "H-1" not in result.stderr
    assert "its whole log is log" in result.stderr
    assert "[done]" not in result.stdout


def test_other_failures_are_one_line(tmp_path: Path) -> None:
    result = run(tmp_path, "stage", "out", "try", "log", "true")
    assert (result.returncode, result.stderr) == (2, "error: try: out was not written\n")
    result = run(tmp_path, "log", "log", "no-such-program")
    assert result.returncode == 2 and result.stderr.startswith("error: no-such-program: no such program; ")
    result = run(tmp_path, "train", "model", "train", "/dev/full", "0", "echo", "a line for the log")
    full = "error: a file: cannot be written (No space left on device); free disk space\n"
    assert (result.returncode, result.stderr) == (2, full)


@pytest.fixture
def sleeping(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """A runner in the middle of a stage that writes its process id and waits."""
    script = ["stage", "out", "sleep", "log", "bash", "-c",
              "echo $$ >started.partial; mv started.partial started; exec sleep 500"]  # fmt: skip
    runner = subprocess.Popen(
        [*COMMAND, *script], cwd=tmp_path, env=environment(LOCK="models.lock"), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (tmp_path / "started").exists():
        assert runner.poll() is None
        time.sleep(0.02)
    yield runner
    runner.kill()
    runner.wait()


SAID = {
    signal.SIGTERM: "",
    signal.SIGINT: "\nInterrupted. The same command resumes here.\n",
    signal.SIGUSR1: "Stopped by SIGUSR1. The same command resumes here.\n",
}


@pytest.mark.parametrize("sent", SAID)
def test_an_ended_runner_ends_its_command(sleeping: subprocess.Popen, tmp_path: Path, sent: signal.Signals) -> None:
    child = int((tmp_path / "started").read_text())
    sleeping.send_signal(sent)
    _, said = sleeping.communicate(timeout=200)
    assert sleeping.returncode == 128 + sent
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert said == SAID[sent]


def test_nohup_keeps_a_runner(tmp_path: Path) -> None:
    """After a log-out, too."""
    script = "kill -HUP $PPID; sleep 1; echo made >out.partial"
    command = ["nohup", *COMMAND, "stage", "out", "make it", "log", "bash", "-c", script]
    result = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0 and (tmp_path / "out").read_text() == "made\n", result.stderr


def test_only_one_run_at_a_time(sleeping: subprocess.Popen, tmp_path: Path) -> None:
    """The command of a runner that was killed holds the lock, too."""
    locked = {"LOCK": "models.lock", "LOCK_SECONDS": "0.1"}
    refused = "error: another run is writing to .; wait for it or end it first\n"
    assert run(tmp_path, "log", "log", "true", **locked).stderr == refused
    sleeping.kill()
    sleeping.wait()
    assert run(tmp_path, "log", "log", "true", **locked).stderr == refused
    os.kill(int((tmp_path / "started").read_text()), signal.SIGKILL)
    assert run(tmp_path, "log", "log", "true", LOCK="models.lock").returncode == 0


def test_a_half_written_checkpoint_is_mended(tmp_path: Path) -> None:
    last = tmp_path / "checkpoint_last.pt"
    for file, text in ((tmp_path / "checkpoint_best.pt", "best"), (last, "last")):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data", text * 1000)
    whole = last.read_bytes()
    mend_checkpoints(tmp_path)
    assert last.read_bytes() == whole
    last.write_bytes(whole[:-50])
    mend_checkpoints(tmp_path)
    assert last.read_bytes() == (tmp_path / "checkpoint_best.pt").read_bytes()


@pytest.mark.parametrize(
    ("left", "mended"),
    [
        ({"2_9": "new", "best": "old", "last": ""}, {"best": "old", "last": "new"}),  # while the last one was copied
        ({"1_3": "older", "2_9": "new", "best": "", "last": "old"}, {"best": "new", "last": "old"}),  # the best one
        ({"2_9": "new", "best": ""}, {"best": "new", "last": "new"}),  # after the first save
        ({"2_9": "new"}, {}),  # its best one is unknown
        ({"2_9": "new", "last": ""}, {"last": "new"}),  # --disable-validation
        ({"best": "", "last": ""}, {}),
    ],
)
def test_a_truncated_copy_is_made_again(left: dict[str, str], mended: dict[str, str], tmp_path: Path) -> None:
    """fairseq copies a numbered checkpoint to the best one, then to the last one. An older best has fewer updates."""
    for seconds, (name, text) in enumerate(left.items(), 1):
        file = tmp_path / f"checkpoint_{name}.pt"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data", text)
        if not text:
            file.write_bytes(file.read_bytes()[:-50])
        os.utime(file, (0, 0) if text == "old" else (seconds, seconds))
    (tmp_path / "checkpoint_3_9.pt.tmp").touch()
    mend_checkpoints(tmp_path)
    found = {file.name[11:-3]: zipfile.ZipFile(file).read("data").decode() for file in tmp_path.iterdir()}
    assert {name: text for name, text in found.items() if name in ("best", "last")} == mended


def test_a_short_training_leaves_fewer_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As with a small text, or MINUTES: the recipe goes on with those."""
    assert to_average(tmp_path, 0) == f"{tmp_path}/checkpoint_best.pt" and capsys.readouterr().out == ""
    assert to_average(tmp_path, 3) == f"{tmp_path}/checkpoint_best.pt"
    assert "has 0 of AVERAGE=3 checkpoints" in capsys.readouterr().out
    for name in ("checkpoint_1_5.pt", "checkpoint_2_10.pt", "checkpoint_last.pt"):
        (tmp_path / name).touch()
    assert to_average(tmp_path, 3) == f"{tmp_path} --last 2"
    assert "averages 2" in capsys.readouterr().out
    assert to_average(tmp_path, 1) == f"{tmp_path} --last 1" and capsys.readouterr().out == ""


def record(name: str, **values: object) -> str:
    """A line of fairseq's log."""
    return f"2026-11-21 12:00:00 | INFO | {name} | {json.dumps(values)}\n"


def test_progress_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    progress = Progress(4.5, {}, before=120, clock=lambda: now)
    now = 30.0
    inner = {"epoch": 2, "update": 1.119, "loss": "9.253", "wps": "3403.5", "num_updates": "375"}
    valid = {"epoch": 2, "valid_loss": "7.502", "valid_num_updates": "191", "valid_tokens_per_iteration": "3.21"}
    progress.read("2026-11-21 12:00:00 | INFO | fairseq.trainer | begin training epoch 1\n")
    progress.read(record("train_inner", **inner))
    progress.read(record("train_inner", **inner)[:60] + "}\n")
    progress.read(record("valid", **valid))
    assert capsys.readouterr().out.splitlines() == [
        "       2:30 min, about 2:00 left: epoch 2, update 375, loss 9.25, 3404 words/s",
        "       epoch 2, 191 updates: loss on the validation set 7.502, tokens per iteration 3.21",
    ]


def test_the_clock_goes_on(tmp_path: Path) -> None:
    """From where the training does: its last checkpoint."""
    seconds, line = tmp_path / "model.partial/seconds", record("train_inner", epoch=1, update=1, num_updates=5, loss=9)
    seconds.parent.mkdir()
    seconds.write_text("6000.4")
    (tmp_path / "model.partial.begun").touch()
    script = f"cat <<'END'\n{line}END\necho '| Saved checkpoint x'"
    said = run(tmp_path, "train", "model", "train", "log", "0", "bash", "-c", script).stdout
    assert "       100:" in said and 6000 <= int((tmp_path / "model/seconds").read_text()) < 6100


def test_a_training_sees_that_its_runner_was_killed(tmp_path: Path) -> None:
    """Its input ends, which srun passes on to all nodes."""
    script = "kill -KILL $PPID; cat; touch stopped"
    assert run(tmp_path, "train", "model", "train", "log", "0", "bash", "-c", script).returncode == -signal.SIGKILL
    while not (tmp_path / "stopped").exists():
        time.sleep(0.02)


def test_a_finished_training_is_not_resumed(tmp_path: Path) -> None:
    """One that a signal ends after its last checkpoint: fairseq would train an update more than --max-update."""
    updates, saved = "Stopping training due to num_updates: 6 >= max_update: {}", "echo '| Saved checkpoint x'; "
    patience = "early stop since valid performance hasn't improved for last 3 runs"  # --patience
    # After a request to stop, which lowers --max-update to 1; before the last checkpoint is saved; and after that.
    for number, end in enumerate((updates.format(6), patience)):
        runs = ((updates.format(1), saved, 1, 1), (end, "", 2, 1), (end, saved, 3, 1), (end, "", 3, 0))
        for said, saves, times, status in runs:
            script = f"echo begun >>begun{number}; echo {shlex.quote(f'| {said}')}; {saves}exit 1"
            trained = run(tmp_path, "train", f"model{number}", "train", "log", "0", "bash", "-c", script)
            assert trained.returncode == status, trained.stderr
            assert (tmp_path / f"begun{number}").read_text() == "begun\n" * times
        assert (tmp_path / f"model{number}").is_dir()


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("--max-epoch 4 --max-update 0", "epoch 2 of 4, update 130,"),
        ("--max-update 9 --max-update 400", "epoch 2, update 130 of 400"),
    ],
)
def test_time_that_is_left(options: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guessed from the progress since the first line that was seen, and shown every 20 seconds."""
    now, clock = 0, iter(range(0, 1000, 10))
    progress = Progress(0, ends_of(["fairseq-train", *options.split()]), later=1.5, clock=lambda: now)
    for updates in (50, 110, 130, 150):
        now = next(clock)
        values = {"epoch": 1 + updates // 100, "update": updates / 100, "num_updates": str(updates)}
        progress.read(record("train_inner", **values, loss="9.2", wps="34.5"))
    first, second = capsys.readouterr().out.splitlines()
    assert "update 50" in first and "left" not in first
    # 80 updates in 20 seconds, 270 to go.
    assert shown in second and " min, about 1:07 left, 3:18 with the later stages: epoch" in second


def test_time_that_is_left_for_all() -> None:
    """The verifier's 20 epochs are followed by 30 of other models, and about one for decoding; or clocks end all."""
    s = Settings(VERIFIER_EPOCHS="20", DRAFTER_EPOCHS="20", BLOCKWISE_EPOCHS="10")
    models = ("verifier", "drafter", "blockwise")
    assert [later_work(s, name) for name in models] == pytest.approx([31 / 20, 11 / 20, 1 / 10])
    s = Settings(**vars(s), VERIFIER_MINUTES="8", DRAFTER_MINUTES="4", BLOCKWISE_MINUTES="2")
    assert [later_work(s, name) for name in models] == pytest.approx([6 / 8 + 1 / 20, 2 / 4 + 1 / 20, 1 / 10])
    assert later_work(s, "teacher") == later_work(Settings(), "verifier") == 0


@pytest.mark.parametrize(("gad", "is_said"), [(90, True), (105, True), (150, False), (None, False)])
def test_advice_if_drafts_save_little_time(tmp_path: Path, gad: int | None, is_said: bool) -> None:
    rates = {"greedy": 100, "gad": gad}
    rows = [{"name": name, "sentences_per_second": {"1": rate}} for name, rate in rates.items() if rate]
    (tmp_path / "table.json").write_text(json.dumps({"rows": rows}))
    epochs, updates = {"VERIFIER_EPOCHS": "20", "DRAFTER_EPOCHS": "15"}, {"VERIFIER_UPDATES": "1500"}
    demo = Settings(VERIFIER_UPDATES="0", **epochs, WIDTH="128", FFN_WIDTH="512")
    for settings, named in (
        (demo, ("VERIFIER_EPOCHS=60 DRAFTER_EPOCHS=45", "WIDTH=256 FFN_WIDTH=1024")),
        (Settings(**updates, DRAFTER_UPDATES="4500"), ("VERIFIER_UPDATES=4500 DRAFTER_UPDATES=13500", "")),
        (Settings(), ("", "")),
    ):
        said = advice(tmp_path / "table.json", settings)
        assert ("Drafts save little time here" in said) == is_said
        assert re.findall(r"\((\w+=.*?)\)", said) == list(filter(None, named)) * is_said
        assert all(len(line) <= 105 for line in said.splitlines())


SOME = {"NAME": "x", "SUBWORDS": "bpe", "VERIFIER_TOKENS": "8000", "DRAFTER_TOKENS": "8000", "MAX_TOKENS": "4000"}


@pytest.mark.parametrize(
    ("variables", "name", "value"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, "GPUS", "2"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "GPUS", "0"),
        ({"SLURM_GPUS_ON_NODE": "4"}, "GPUS", "4"),
        ({"SLURM_CPUS_PER_TASK": "7"}, "WORKERS", "7"),
    ],
)
def test_processors_are_those_of_the_allocation(variables: dict[str, str], name: str, value: str) -> None:
    assert vars(read_settings({**SOME, **variables}))[name] == value
    assert vars(read_settings({**SOME, **variables, name: "1"}))[name] == "1"


@pytest.mark.parametrize(
    ("launcher", "program", "processes"),
    [
        ("", "torchrun --standalone --nproc-per-node 2", 2),
        ("torchrun --nnodes 2", "torchrun --nnodes 2 --nproc-per-node 2", 4),
        ("srun torchrun --nnodes=1:3 --nproc_per_node=4", "srun torchrun --nnodes=1:3 --nproc_per_node=4", 12),
    ],
)
def test_all_processes_share_the_batch(launcher: str, program: str, processes: int) -> None:
    s = read_settings({**SOME, "GPUS": "2", "TORCHRUN": launcher})
    assert trainer(s, "data") == f"{program} --no-python fairseq-train data --distributed-world-size {processes}"
    found = batch(s, "48000", "1000").split()
    assert found[::2] == ["--max-tokens", "--update-freq"] and int(found[1]) * int(found[3]) * processes == 48000


def test_nodes_of_slurm_train_together() -> None:
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "71234", "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": "4"}
    command = trainer(read_settings({**SOME, **job}), "data")
    assert command == (
        "srun --ntasks-per-node 1 --kill-on-bad-exit --cpus-per-task 8 torchrun --nnodes 2 --rdzv-backend c10d "
        f"--rdzv-id 71234 --rdzv-endpoint {socket.gethostname()}:21234 --nproc-per-node 4 "
        "--no-python fairseq-train data --distributed-world-size 8"
    )
    assert trainer(read_settings({**SOME, **job, "GPUS": "0"}), "data") == "fairseq-train data"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"TORCHRUN": "srun -n 2", "GPUS": "2"}, "TORCHRUN=srun -n 2: give the command torchrun"),
        ({"TORCHRUN": "torchrun --nnodes 2", "GPUS": "0"}, "TORCHRUN=torchrun --nnodes 2: .* GPUS above 0"),
        ({"NAME": "a b"}, "NAME=a b: name it with letters"),
        ({"NAME": ".."}, "NAME=..: name it with letters"),  # would write checkpoints/../README.md
        ({"NAME": "-x"}, "NAME=-x: name it with letters"),
    ],
)
def test_wrong_settings_are_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_settings({**SOME, **variables})


def test_a_name_belongs_to_one_text() -> None:
    """Of every recipe: finished stages would keep the other text."""
    for variables, origin in (
        ({"DATA": "/text"}, "/text"), ({"FROM": "first"}, "that of NAME=first"), ({}, "the recipe's download"),
        ({"origin": "the generated corpus"}, "the generated corpus"),
    ):  # fmt: skip
        assert read_settings({**SOME, **variables}).origin == origin


def test_recommended_settings(tmp_path: Path) -> None:
    found = {"recommended": {"no_quality_loss": None, "within_tolerance": "--decoder gad++ --tau 2"}}
    (tmp_path / "sweep.json").write_text(json.dumps(found))
    assert recommended(tmp_path / "sweep.json") == {"within_tolerance": "--decoder gad++ --tau 2"}
    assert recommended(tmp_path / "none.json") == {}


def test_numbered_references_belong_to_the_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of TEST, cut as it is, and copied with it: FROM has no DATA."""
    data, raw = tmp_path / "my text", tmp_path / "raw"
    data.mkdir()
    for name in ("train", "valid", "test", "turk"):
        for side in ("src", "tgt", "tgt.0", "tgt.10"):
            (data / f"{name}.{side}").write_bytes(f"\ufeff{name} {side}\r\nmore\r\n".encode())
    monkeypatch.chdir(REPOSITORY)
    for name in ("src", "tgt"):
        (data / f"valid.{name}").write_text("text\n" * 8)
    s = Settings(src="src", tgt="tgt", DATA=str(data), TEST="turk", TEST_SENTENCES="1")
    make_text(s, raw, find_sets(s))
    assert numbered_references(raw / "test", "tgt") == ["tgt.0", "tgt.10"]
    assert (raw / "test.tgt.10").read_bytes() == b"turk tgt.10\n"
    assert not list(raw.glob("train.tgt.*"))
    (data / "turk.tgt.0").write_text("one\n")
    with pytest.raises(RecipeError, match=r"turk.src has 2 lines but .*/turk.tgt.0 has 1; "):
        find_sets(s)


def test_validation_sets_that_fairseq_cannot_use_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves out a last batch of fewer than 8 sentences, and would fail at the first validation."""
    for name, count in (("train", 60), ("valid", 7), ("test", 1)):
        for side in ("src", "tgt"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"text {number}\n" for number in range(count)))
    s = Settings(src="src", tgt="tgt", DATA=str(tmp_path))
    message = r"valid.src: fairseq cannot validate on 7 lines; give at least 8, or hold out"
    with pytest.raises(RecipeError, match=message):
        find_sets(s)
    s.HOLD_OUT = "30"
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(RecipeError, match=r"HOLD_OUT=30: holds out \d lines, of at least 8; lower it"):
        make_text(s, tmp_path / "raw", find_sets(s))


def test_text_that_fairseq_cannot_train_on_is_refused(clone: Path, tmp_path: Path) -> None:
    """It stops with a traceback if no batch is left."""
    (tmp_path / "text").mkdir()
    for name, count in (("train", 9), ("valid", 8), ("test", 1)):
        for side, line in (("en", "ein zwei drei"), ("de", "eins")):
            lines = [line if number < 2 else "vier" for number in range(count)]
            (tmp_path / f"text/{name}.{side}").write_text("\n".join(lines))
    variables = {**ANYWHERE, "DATA": str(tmp_path / "text"), "NAME": "x", "VOCABULARY": "60", "MAX_RATIO": "1.5"}
    variables |= {"PYTHONPATH": str(REPOSITORY)}
    result = recipe(clone, "multi30k", "--only", "text,binarise", **variables)
    assert result.returncode == 2 and result.stderr == (
        f"error: {tmp_path}/text: 7 training pairs are left, and fairseq needs at least 8; "
        "give more text, or leave out MAX_LENGTH=0 and MAX_RATIO=1.5\n"
    )


def test_mono_is_checked_unless_a_stage_writes_or_has_read_it(tmp_path: Path) -> None:
    """back_translation.sh without DATA writes it with the text; a run that goes on has binarised it."""
    recipe: Any = SimpleNamespace(data=tmp_path, raw=tmp_path / "raw", wanted={"text", "mono"})
    recipe.settings = SimpleNamespace(MONO=str(tmp_path / "raw/mono.de"))
    check_mono(recipe)
    recipe.raw.mkdir()
    with pytest.raises(RecipeError, match="MONO=.*/raw/mono.de: not a readable file"):
        check_mono(recipe)
    (tmp_path / "mono").mkdir()
    check_mono(recipe)


def test_an_origin_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, or a kill, would otherwise leave a run that belongs to no text."""
    begun: Any = SimpleNamespace(data=tmp_path, settings=SimpleNamespace(origin="/my text", NAME="x"))
    begun.models = begun.results = tmp_path

    def full(file: Path, *_: object, **__: object) -> None:
        file.touch()
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="full"):
        patched.setattr(Path, "write_text", full)
        Recipe.check_origin(begun)
    Recipe.check_origin(begun)
    assert [file.name for file in tmp_path.iterdir()] == ["origin.txt"]
    begun.settings.origin = "/another"
    with pytest.raises(RecipeError, match="NAME=x: its text is /my text, not /another; continue with that one, "):
        Recipe.check_origin(begun)
    with pytest.raises(RecipeError, match=f", write /another into {tmp_path}/origin.txt if it is the same, moved, "):
        Recipe.check_origin(begun)
    (tmp_path / "origin.txt").write_text("/another\n")
    Recipe.check_origin(begun)


ANYWHERE = {"GPUS": "0", "PYTHONPATH": ""}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose path has spaces."""
    root = tmp_path / "a clone of mine"
    shutil.copytree(REPOSITORY / "train_scripts", root / "train_scripts")
    (root / "fairseq_plugins").symlink_to(REPOSITORY / "fairseq_plugins")
    return root


def test_a_recipe_starts_from_anywhere(clone: Path, tmp_path: Path) -> None:
    (tmp_path / "my text").mkdir()
    for name in ("train", "valid", "test"):
        for language in ("en", "de"):
            (tmp_path / f"my text/{name}.{language}").write_text("ein zwei\n" * 8)
    variables = {**ANYWHERE, "DATA": "my text", "BART": "my text", "TEACHER": "my text/train.en", "NAME": "x"}
    result = recipe(clone, "multi30k", "--only", "text", folder=tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    assert (clone / "data-bin/x/raw/valid.de").read_text() == "ein zwei\n" * 8
    (tmp_path / "project").mkdir()
    (tmp_path / "project/train_scripts").symlink_to(clone / "train_scripts")  # of another project, with its own data
    result = recipe(tmp_path / "project", "multi30k", "--only", "text", folder=tmp_path, **variables)
    assert (tmp_path / "project/data-bin/x/raw/valid.de").exists(), result.stderr
    result = recipe(clone, "multi30k", "--dry-run", folder=tmp_path, **variables, SUBWORDS="gpt2")
    assert f"--gpt2-vocab-bpe '{tmp_path}/my text/vocab.bpe'" in result.stdout
    (tmp_path / "my text").rename(tmp_path / "-text")
    variables |= {"DATA": "-text", "NAME": "y", "CDPATH": "."}
    result = recipe(clone, "multi30k", "--only", "text", folder=tmp_path, **variables)
    assert result.returncode == 0, result.stderr
    assert (clone / "data-bin/y/origin.txt").read_text() == f"{tmp_path}/-text\n"
    (tmp_path / "-text").rename(tmp_path / "mein Täxt's")
    variables |= {"DATA": "", "BART": "mein Täxt's", "TEACHER": "mein Täxt's/train.en"}
    (clone / "linked.sh").symlink_to("train_scripts/cnn_dm.sh")
    result = recipe(clone, "../linked", "--dry-run", folder=tmp_path, **variables)
    model = shlex.quote(f"{tmp_path}/mein Täxt's/model.pt")
    assert f"--finetune-from-model {model} " in result.stdout, result.stderr
    ensemble = [f"{tmp_path}/mein Täxt's/{name}" for name in ("train.en", "train.de")]
    variables |= {"TEACHER": "mein Täxt's/train.en:mein Täxt's/train.de", "TEACHERS": "0"}
    result = recipe(clone, "multi30k", "--dry-run", folder=tmp_path, **variables)
    assert f"--path {shlex.quote(':'.join(ensemble))} " in result.stdout, result.stderr


def test_a_folder_that_cannot_be_read_is_not_left_out(clone: Path, tmp_path: Path) -> None:
    """The recipe would train on its download."""
    (tmp_path / "text").mkdir(mode=0)
    as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*as_user, "bash", str(clone / "train_scripts/multi30k.sh"), "--dry-run"]
    variables = {**environment(), "DATA": "text", "NAME": "x"}
    result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (2, "error: DATA=text: cannot be read; make it readable\n")


def test_slurm_runs_a_copy_of_the_recipe(clone: Path, tmp_path: Path) -> None:
    """scontrol knows which file it is, whatever folder the job was sent from."""
    copy, programs = tmp_path / "spool/train_scripts/slurm_script.sh", tmp_path / "programs"
    programs.mkdir()
    copy.parent.mkdir(parents=True)
    shutil.copy(clone / "train_scripts/multi30k.sh", copy)
    command = f"   Command={clone}/train_scripts/multi30k.sh --dry-run\n"
    (tmp_path / "job").write_text(f"JobId=7 JobName=multi30k\n{command}   WorkDir=/\n\nJobId=8\n{command}")
    (programs / "scontrol").write_text(f"#!/bin/sh\n[ \"$*\" = 'show job 7' ] && cat '{tmp_path}/job'\n")
    (programs / "scontrol").chmod(0o755)
    result = recipe(tmp_path / "spool", "slurm_script", "--dry-run", programs=programs, SLURM_JOB_ID="7", **ANYWHERE)
    assert result.returncode == 0, result.stderr
    assert "--recipe train_scripts/multi30k.sh" in result.stdout


@pytest.mark.parametrize("stage", ["decode", "sweep", "test", "table"])
def test_what_comes_first_is_said(clone: Path, stage: str) -> None:
    """The last three also where the models are there, as in a clone of this repository."""
    result = recipe(clone, "multi30k", "--only", stage, **ANYWHERE)
    assert result.stderr == (
        f"error: stage {stage}: data-bin/multi30k.en-de/dict.de.txt is missing; "
        "the stage binarise comes first: --only binarise\n"
    )

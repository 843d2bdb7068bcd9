"""Jobs of a real Slurm of two nodes: arrays, interruptions, and the commands of docs/clusters.md at tiny size."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fairseq_plugins
from tests.cluster import slurm
from tests.conftest import Corpus
from tests.process.test_training import trainer_without_gpus, training
from tests.support import REPOSITORY
from tests.test_documented_commands import blocks
from tests.test_recipes import TINY, write_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("cluster"),
    pytest.mark.skipif(bool(slurm.missing()), reason=f"no Slurm: {slurm.missing()}"),
]

MODEL = REPOSITORY / "checkpoints/multi30k.en-de"
LINES = ["Two dogs.", "", "People", "A man."]
TRANSLATE = f"exec spec-dec-translate {MODEL} --decoder greedy --device cpu --input text --output out"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}
PAGE = "docs/clusters.md"


class Slurm:
    """Runs commands beside a Slurm, in a folder."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.hurried: set[str] = set()

    def run(self, command: str, **variables: str) -> str:
        """Run a command in a shell; its output."""
        environment = {**os.environ, **self.environment, **variables}
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def translate(self, *options: str) -> str:
        """Submit `TRANSLATE`, with any options of sbatch; the number of the job."""
        return self.run(
            f"sbatch --parsable --output=log.%a --open-mode=append {' '.join(options)} --wrap '{TRANSLATE}'"
        ).strip()

    def states(self, job: str) -> list[tuple[str, str]]:
        """State and exit status of each task of a job; one that was put into the queue again waits for 2 seconds."""
        time.sleep(0.2)  # a question takes processor time
        found = self.run(f"scontrol show job --oneliner {job}")
        if "Reason=BeginTime" in found and job not in self.hurried:
            self.hurried.add(job)
            self.run(f"scontrol update JobId={job} StartTime=now+2")  # nodes do not start what they end in this second
        return re.findall(r" JobState=(\S+) .* ExitCode=(\S+)", found)

    def wait(self, job: str) -> None:
        """Wait until all tasks of a job have succeeded."""
        end = time.monotonic() + 300
        while (states := self.states(job)) != [("COMPLETED", "0:0")] * len(states):
            said = "".join(file.read_text() for file in self.folder.glob("*log*") if file.is_file())
            assert not [state for state, _ in states if state in ENDED - {"COMPLETED"}], f"{states}\n{said}"
            assert time.monotonic() < end, f"{states}\n{said}"


def until(what: Callable[[], object]) -> None:
    """Wait until something is true."""
    end = time.monotonic() + 200
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return slurm.start(tmp_path_factory.mktemp("slurm"))


@pytest.fixture
def cluster(daemons: dict[str, str], programs: Path, tmp_path: Path) -> Slurm:
    path = os.pathsep.join([str(tmp_path / "bin"), str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return Slurm({**daemons, **variables}, tmp_path)


@pytest.fixture(scope="module")
def translated() -> list[str]:
    return fairseq_plugins.load(str(MODEL), decoder="greedy", device="cpu").translate(LINES)


def write_lines(folder: Path, count: int) -> None:
    (folder / "text").write_text("".join(f"{LINES[number % len(LINES)]}\n" for number in range(count)))


def is_whole(folder: Path, count: int, translated: list[str]) -> bool:
    expected = "".join(f"{translated[number % len(translated)]}\n" for number in range(count))
    return (folder / "out").read_text(encoding="utf-8") == expected


def test_an_array_with_gaps(cluster: Slurm, translated: list[str]) -> None:
    write_lines(cluster.folder, 300)
    cluster.wait(cluster.translate("--array=1,3"))
    assert is_whole(cluster.folder, 300, translated)
    logs = [(cluster.folder / f"log.{task}").read_text() for task in (1, 3)]
    assert sum("all of text is in out" in log for log in logs) == 1


@pytest.mark.parametrize("how", ["scancel", "scontrol requeue", "scancel --signal=USR1 --batch", "node gone"])
def test_an_interrupted_translation(cluster: Slurm, translated: list[str], how: str) -> None:
    """Byte-identical, and begun where it was."""
    write_lines(cluster.folder, 5000)
    partial, log = cluster.folder / "out.parts/0-of-1.partial", cluster.folder / "log.4294967294"
    job = cluster.translate("--export=ALL,REQUEUE=1" if "USR1" in how else "")
    until(lambda: partial.exists() and partial.stat().st_size)
    if how == "node gone":
        node = f"NodeName={cluster.run(f'squeue --noheader --job={job} --format=%N').strip()}"
        cluster.run(f"scontrol update {node} State=DOWN Reason=gone")
        until(lambda: cluster.states(job)[0][0] == "RUNNING")  # on the other one
        cluster.run(f"scontrol update {node} State=RESUME")
    else:
        cluster.run(f"{how} {job}")
    if how == "scancel":
        until(lambda: cluster.states(job)[0][0] == "CANCELLED")
        assert not (cluster.folder / "out").exists()
        job = cluster.translate()
    cluster.wait(job)
    assert is_whole(cluster.folder, 5000, translated)
    said = log.read_text()
    assert re.search(r"resuming after \d+ of 5000 lines", said)
    assert ("stopped by SIGUSR1; what is finished is kept" in said) == ("USR1" in how)


def test_a_cancelled_training(cluster: Slurm, corpus: Corpus, programs: Path) -> None:
    """`scancel` leaves no process of torchrun, and the next job goes on from the last checkpoint."""
    model = cluster.folder / "model"
    log = Path(f"{model}.log")

    def submit(updates: int, programs: Path) -> str:
        command = f"exec {shlex.join(training(corpus, programs, model, updates, processes=2))}"
        command += " --save-interval-updates 10 --keep-interval-updates 1"
        return cluster.run(f"sbatch --parsable --output=job.log --wrap {shlex.quote(command)}").strip()

    def saved() -> list[str]:
        return re.findall(r"Saved checkpoint .* @ (\d+) updates", log.read_text()) if log.exists() else []

    job = submit(100_000, Path(sys.executable).parent)  # in processes of their own, which may be left
    until(saved)
    cluster.run(f"scancel {job}")
    until(lambda: cluster.states(job)[0][0] == "CANCELLED")
    until(lambda: str(model) not in cluster.run("ps -eo args"))
    last = int(saved()[-1])
    cluster.wait(submit(last + 3, programs))
    (loaded,) = re.findall(r"Loaded checkpoint .* @ (\d+) updates", log.read_text())
    assert int(loaded) >= last


# The teacher's training does not end before it is interrupted.
SITE = """
echo "$*" >>site.txt
if [ "$*" = "--only teacher" ] && [ ! -e interrupted ]; then TRAINING_OPTIONS+=" --max-update 100000"; fi
"""


def test_a_chain_of_jobs(cluster: Slurm, programs: Path) -> None:
    """The page's commands; the teacher is trained on two nodes, and interrupted as before a time limit."""
    folder = cluster.folder
    models, log = folder / "checkpoints/tiny.en-de", folder / "checkpoints/tiny.en-de/logs/teacher1.log"
    shutil.copytree(REPOSITORY / "train_scripts", folder / "train_scripts")
    (folder / "fairseq_plugins").symlink_to(REPOSITORY / "fairseq_plugins")
    write_text(folder / "text", "en de")
    (folder / "site.sh").write_text(SITE)
    (folder / "bin").mkdir()
    trainer_without_gpus(folder / "bin", programs)
    settings = {**TINY, "GPUS": "", "DATA": "text", "NAME": "tiny.en-de", "FP16": "0", "TENSORBOARD": "0"}
    settings |= {"COMPARED": "greedy,gad", "PYTHON_EXEC": f"{programs}/python", "REQUEUE": "1", "AVERAGE": "1"}
    (chain,) = (block for block in blocks(PAGE) if "afterok" in block)
    (nodes,) = (option for option in re.findall(r"sbatch (--nodes=\d)", "\n".join(blocks(PAGE))))
    small = chain.replace("--cpus-per-task=4 ", "").replace("--array=0-7", "--array=0-1")
    small = small.replace("sbatch ", "sbatch --cpus-per-task=1 --gres=gpu:1 --output=log.%j.%t ")
    small = small.replace("$run --only teacher", f"{nodes} $run --only teacher")
    submitted = cluster.run(f"{small} --skip sweep,test; echo $text $teacher $decode", **settings)
    last, *jobs = re.findall(r"\d+", submitted)
    cluster.wait(jobs[0])
    until(lambda: log.exists() and "train_inner" in log.read_text())
    (folder / "interrupted").touch()
    cluster.run(f"scancel --signal=USR1 --batch {jobs[1]}")
    for job in (*jobs, last):
        cluster.wait(job)
    said = log.read_text()
    assert "'distributed_world_size': 2," in said and re.search(r"Loaded checkpoint .*teacher1.partial", said)
    assert {shard.name for shard in (folder / "data-bin/tiny.en-de/distilled-shards").glob("train*")} == {
        f"train.{number}-of-2.tsv" for number in range(2)
    }
    assert "| gad" in (models / "README.md").read_text(encoding="utf-8")
    started = ["--only text,binarise", *2 * ["--only teacher"], *2 * ["--only decode"], "--skip sweep,test"]
    assert (folder / "site.txt").read_text().splitlines() == started

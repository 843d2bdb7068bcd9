"""Read the settings of a recipe from environment variables; options of fairseq in them are quoted as in a shell."""

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from types import SimpleNamespace

from train_scripts.runner.stages import RecipeError

# Defaults of settings that neither recipe nor user gives. MINUTES of training: 0 for no limit.
DEFAULTS = {
    "AVERAGE": "10", "SEED": "1", "MINUTES": "0", "SAVE_INTERVAL_UPDATES": "1000",
    "TENSORBOARD": "1", "DISTIL_DECODER": "fast-beam", "DISTIL_BEAM": "5", "DISTIL_MAX_TOKENS": "12000",
    "UPSAMPLE": "1", "BACK_RATIO": "1.5",  # fairseq's examples/backtranslation
    "BLOCKS_PER_SENTENCE": "4", "ACTIVATION": "relu", "MAX_LENGTH": "0", "TEACHERS": "0", "KEEP_RAW": "0",
    "MAX_RATIO": "0", "DISTIL_RATIO": "0",  # of lengths: 0 for no limit
    "DRAFTER": "features", "DRAFTER_LAYERS": "2", "DRAFTER_DATA": "teacher", "BLOCKWISE_HEADS": "0", "FP16": "1",
    "TOP_BETAS": "1,3,5", "TAUS": "1,2,3,4,5", "REPEATS": "3", "TIMING_SENTENCES": "100",
    "recipe_stages": "text,binarise,mono,reverse,sample,pairs,teacher,decode,merge,verifier,drafter,blockwise,sweep,"
    "test,table,card",
}  # fmt: skip
# Settings whose default is the value of another setting.
FALLBACKS = {
    **{f"{model}_MINUTES": "MINUTES" for model in ("REVERSE", "TEACHER", "VERIFIER", "DRAFTER", "BLOCKWISE")},
    **{"BLOCK_SIZES": "BLOCK_SIZE", "TEACHER_TOKENS": "VERIFIER_TOKENS", "DRAFTER_MAX_TOKENS": "MAX_TOKENS"},
}


class Settings(SimpleNamespace):
    """Settings by name, as text; empty if not set."""

    def __getattr__(self, name: str) -> str:
        return ""


def read_settings(variables: Mapping[str, str]) -> Settings:
    """Return the settings in environment variables, with defaults for those that are missing or empty.

    Raises:
        RecipeError: for a wrong value.
    """
    s = Settings(**{**DEFAULTS, **{name: value for name, value in variables.items() if value}})
    for name, other in FALLBACKS.items():
        setattr(s, name, getattr(s, name) or getattr(s, other))
    s.origin = s.origin or s.DATA or (f"that of NAME={s.FROM}" if s.FROM else "the recipe's download")
    s.GPUS = s.GPUS or str(count_gpus(variables))
    if s.GPUS == "0":
        s.TRAINING_OPTIONS = f"{s.cpu_training} {s.TRAINING_OPTIONS}"
    s.WORKERS = s.WORKERS or s.SLURM_CPUS_PER_TASK or str(len(os.sched_getaffinity(0)))
    if not s.TORCHRUN and s.GPUS != "0" and int(s.SLURM_JOB_NUM_NODES or "1") > 1:
        s.TORCHRUN = slurm_launcher(s)
    if not re.fullmatch(r"\w[\w.-]*", s.NAME):
        raise RecipeError(f"NAME={s.NAME}: name it with letters, digits, dots and dashes, the first a letter or digit")
    if s.BLOCKWISE_HEADS != "0" and not s.blockwise_training:
        none = "this recipe has no options to train them with"
        raise RecipeError(f"BLOCKWISE_HEADS={s.BLOCKWISE_HEADS}: {none}; leave it out")
    if s.TORCHRUN and (s.GPUS == "0" or not re.search(r"torchrun|torch\.distributed", s.TORCHRUN)):
        raise RecipeError(f"TORCHRUN={s.TORCHRUN}: give the command torchrun with its options, and GPUS above 0")
    return s


def count_gpus(variables: Mapping[str, str]) -> int:
    """Return the number of GPUs that this process may use: in a Slurm job those of the job, not of the node."""
    if "CUDA_VISIBLE_DEVICES" in variables:
        return len([device for device in variables["CUDA_VISIBLE_DEVICES"].split(",") if device not in ("", "-1")])
    if variables.get("SLURM_GPUS_ON_NODE", "").isdigit():
        return int(variables["SLURM_GPUS_ON_NODE"])
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except OSError:
        return 0
    return len(re.findall("^GPU ", listed.stdout, re.MULTILINE))


def slurm_launcher(s: Settings) -> str:
    """Return the command that starts torchrun on all nodes of a Slurm job, with the rendezvous on this node."""
    rendezvous = f"--rdzv-backend c10d --rdzv-id {s.SLURM_JOB_ID}"
    rendezvous += f" --rdzv-endpoint {socket.gethostname()}:{20000 + int(s.SLURM_JOB_ID) % 10000}"
    # srun does not inherit the CPUs of sbatch.
    cpus = f"--cpus-per-task {s.SLURM_CPUS_PER_TASK} " if s.SLURM_CPUS_PER_TASK else ""
    # A process that has failed ends all: those of other nodes would wait for it.
    return f"srun --ntasks-per-node 1 --kill-on-bad-exit {cpus}torchrun --nnodes {s.SLURM_JOB_NUM_NODES} {rendezvous}"


def processes(s: Settings) -> int:
    """Return the number of processes of a training, on all nodes."""
    nodes = re.search(r"--nnodes[= ](?:\d+:)?(\d+)", s.TORCHRUN)
    on_node = re.search(r"--nproc[-_]per[-_]node[= ](\d+)", s.TORCHRUN)
    return (int(nodes[1]) if nodes else 1) * (int(on_node[1]) if on_node else max(1, int(s.GPUS)))


def batch(s: Settings, tokens: str, max_tokens: str) -> str:
    """Return --max-tokens and --update-freq for updates of `tokens` on all GPUs, at most `max_tokens` per pass."""
    wanted, count = int(tokens), processes(s)
    each = min(int(max_tokens), wanted // count)
    return f"--max-tokens {each} --update-freq {(wanted + each * count // 2) // (each * count)}"


def trainer(s: Settings, data: object) -> str:
    """Return the command that starts fairseq-train on `data`, with one process per GPU."""
    if not s.TORCHRUN and int(s.GPUS) <= 1:
        return f"fairseq-train {data}"
    launcher = s.TORCHRUN or "torchrun --standalone"
    if not re.search("--nproc[-_]per[-_]node", launcher):
        launcher += f" --nproc-per-node {s.GPUS}"
    # Without this option fairseq counts the GPUs of its node. With one GPU per node, each would train its own model.
    return f"{launcher} --no-python fairseq-train {data} --distributed-world-size {processes(s)}"

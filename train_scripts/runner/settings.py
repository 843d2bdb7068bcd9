"""Settings of a recipe: environment variables, among them options of fairseq, quoted as in a shell."""

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from types import SimpleNamespace

from train_scripts.runner.stages import Refused

# For what recipe and user leave open. MINUTES of training: 0 for any number.
DEFAULTS = {
    "AVERAGE": "10", "SEED": "1", "MINUTES": "0", "SAVE_INTERVAL_UPDATES": "1000",
    "TENSORBOARD": "1", "DISTIL_DECODER": "fast-beam", "DISTIL_BEAM": "5", "DISTIL_MAX_TOKENS": "12000",
    "BLOCKS_PER_SENTENCE": "4", "ACTIVATION": "relu", "MAX_LENGTH": "0", "MAX_RATIO": "0", "TEACHERS": "0",
    "DRAFTER": "features", "DRAFTER_LAYERS": "2", "DRAFTER_DATA": "teacher", "BLOCKWISE_HEADS": "0", "FP16": "1",
    "TOP_BETAS": "1,3,5", "TAUS": "1,2,3,4,5", "REPEATS": "3", "TIMING_SENTENCES": "100",
    "recipe_stages": "text,binarise,teacher,decode,merge,verifier,drafter,blockwise,sweep,test,table,card",
}  # fmt: skip
LIMITS = [f"{model}_MINUTES" for model in ("TEACHER", "VERIFIER", "DRAFTER", "BLOCKWISE")]
# The value of another setting.
FOLLOWING = {
    **dict.fromkeys(LIMITS, "MINUTES"),
    **{"BLOCK_SIZES": "BLOCK_SIZE", "TEACHER_TOKENS": "VERIFIER_TOKENS", "DRAFTER_MAX_TOKENS": "MAX_TOKENS"},
}
CHOICES = {
    "DRAFTER": "tokens, features",
    "DRAFTER_DATA": "teacher, verifier",
    "SUBWORDS": "unigram, bpe, moses, gpt2",
}
NUMBERS = ["AVERAGE", "SEED", "TEACHERS", "VERIFIER_TOKENS", "TEACHER_TOKENS", "DRAFTER_TOKENS"]
NUMBERS += ["GPUS", "MAX_TOKENS", "DRAFTER_MAX_TOKENS", *LIMITS]


class Settings(SimpleNamespace):
    """Settings by name, all of them text; empty where they are not set."""

    def __getattr__(self, name: str) -> str:
        return ""


def read_settings(variables: Mapping[str, str]) -> Settings:
    """Return the settings that environment variables give, with defaults for those that are not set or empty.

    Raises:
        Refused: when one has a wrong value.
    """
    s = Settings(**{**DEFAULTS, **{name: value for name, value in variables.items() if value}})
    for name, other in FOLLOWING.items():
        setattr(s, name, getattr(s, name) or getattr(s, other))
    s.GPUS = s.GPUS or str(count_gpus(variables))
    s.WORKERS = s.WORKERS or s.SLURM_CPUS_PER_TASK or str(len(os.sched_getaffinity(0)))
    if not s.TORCHRUN and s.GPUS != "0" and int(s.SLURM_JOB_NUM_NODES or "1") > 1:
        s.TORCHRUN = launcher_of_slurm(s)
    for name, choices in CHOICES.items():
        if getattr(s, name) not in choices.split(", "):
            raise Refused(f"{name}={getattr(s, name)}: choose from {choices}")
    for name in NUMBERS:
        if not re.fullmatch(r"\d+(\.\d+)?" if name in LIMITS else r"\d+", getattr(s, name)):
            raise Refused(f"{name}={getattr(s, name)}: give a number")
    if not re.fullmatch(r"[\w.-]+", s.NAME):
        raise Refused(f"NAME={s.NAME}: name it with letters, digits, dots and dashes")
    if s.BLOCKWISE_HEADS != "0" and not s.blockwise_training:
        none = "this recipe has no options to train them with"
        raise Refused(f"BLOCKWISE_HEADS={s.BLOCKWISE_HEADS}: {none}; leave it out")
    if s.TORCHRUN and (s.GPUS == "0" or not re.search(r"torchrun|torch\.distributed", s.TORCHRUN)):
        raise Refused(f"TORCHRUN={s.TORCHRUN}: give the command torchrun with its options, and GPUS above 0")
    return s


def count_gpus(variables: Mapping[str, str]) -> int:
    """Return the number of GPUs that this process may use: those of its allocation, not of the node."""
    if "CUDA_VISIBLE_DEVICES" in variables:
        return len([device for device in variables["CUDA_VISIBLE_DEVICES"].split(",") if device not in ("", "-1")])
    if variables.get("SLURM_GPUS_ON_NODE", "").isdigit():
        return int(variables["SLURM_GPUS_ON_NODE"])
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except OSError:
        return 0
    return len(re.findall("^GPU ", listed.stdout, re.MULTILINE))


def launcher_of_slurm(s: Settings) -> str:
    """Return torchrun on all nodes of a job of Slurm, which meet on this one."""
    meet = f"--rdzv-backend c10d --rdzv-id {s.SLURM_JOB_ID}"
    meet += f" --rdzv-endpoint {socket.gethostname()}:{20000 + int(s.SLURM_JOB_ID) % 10000}"
    cpus = f"--cpus-per-task {s.SLURM_CPUS_PER_TASK} " if s.SLURM_CPUS_PER_TASK else ""  # srun does not ask sbatch
    return f"srun --ntasks-per-node 1 {cpus}torchrun --nnodes {s.SLURM_JOB_NUM_NODES} {meet}"


def processes(s: Settings) -> int:
    """Return the number of processes that train together, on all nodes."""
    nodes = re.search(r"--nnodes[= ](?:\d+:)?(\d+)", s.TORCHRUN)
    on_node = re.search(r"--nproc[-_]per[-_]node[= ](\d+)", s.TORCHRUN)
    return (int(nodes[1]) if nodes else 1) * (int(on_node[1]) if on_node else max(1, int(s.GPUS)))


def batch(s: Settings, tokens: str, at_once: str) -> str:
    """Return options for updates of `tokens` by all GPUs together, of which each computes at most `at_once` at once."""
    wanted, together = int(tokens), processes(s)
    each = min(int(at_once), wanted // together)
    return f"--max-tokens {each} --update-freq {(wanted + each * together // 2) // (each * together)}"


def trainer(s: Settings, data: object) -> str:
    """Return fairseq-train and its data, in one process for each GPU."""
    if not s.TORCHRUN and int(s.GPUS) <= 1:
        return f"fairseq-train {data}"
    launcher = s.TORCHRUN or "torchrun --standalone"
    if not re.search("--nproc[-_]per[-_]node", launcher):
        launcher += f" --nproc-per-node {s.GPUS}"
    # By itself fairseq counts the GPUs of its node: with one it would train alone.
    return f"{launcher} --no-python fairseq-train {data} --distributed-world-size {processes(s)}"

"""Models of random weights, a verifier and its drafter, and a test set of random sentences."""

import random
import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq import models, options, tasks
from fairseq.tasks.translation import TranslationTask
from fairseq_cli import preprocess
from torch import nn

from fairseq_plugins.benchmarks.gpu_check.environment import Environment
from fairseq_plugins.checkpoint.averaging import new_checkpoint
from fairseq_plugins.shared.files import new_folder

_TINY = [
    f"--{side}-{name}={value}"
    for side in ("encoder", "decoder")
    for name, value in (("layers", 4), ("embed-dim", 128), ("ffn-embed-dim", 256), ("attention-heads", 4))
]
# Architectures of verifier and drafter, and further options of both.
SHAPES: dict[str, tuple[str, str, list[str]]] = {
    "base": ("transformer", "block_nat_base", []),
    "tiny": ("transformer", "block_nat_tiny", _TINY),
}
BLOCK_SIZE = 25
# Random models rarely emit EOS: fairseq ends outputs at the length of their sources.
LIMITS = ("--max-len-a", "1", "--max-len-b", "0")
_SEED = 1


def prepare(env: Environment) -> tuple[str, str, str]:
    """Write models in half precision and a test set, unless they exist; return paths of data, verifier and drafter."""
    target = env.folder / "models" / env.shape
    if not target.exists():
        with new_folder(target) as partial:
            _write_data(partial, env)
            _write_models(partial, env.shape)
    return str(target / "data"), str(target / "verifier.pt"), str(target / "drafter.pt")


def _write_data(folder: Path, env: Environment) -> None:
    words = [f"w{number}" for number in range(env.vocabulary - 4)]
    (folder / "dict").write_text("".join(f"{word} 1\n" for word in words), encoding="utf-8")
    draw = random.Random(_SEED)
    # Binarisation adds EOS.
    lines = [" ".join(draw.choices(words, k=draw.randint(*env.lengths) - 1)) for _ in range(env.sentences)]
    binarise(folder, lines, folder / "dict", folder / "dict")


def binarise(folder: Path, lines: Sequence[str], source: Path, target: Path) -> None:
    """Write sources to `folder`/data as the subset test; `source` and `target` are dictionaries."""
    (folder / "test.src").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    arguments = ["--source-lang", "src", "--target-lang", "tgt", "--only-source", "--workers", "1"]
    arguments += ["--srcdict", str(source), "--testpref", str(folder / "test"), "--destdir", str(folder / "data")]
    preprocess.main(options.get_preprocessing_parser().parse_args(arguments))
    # Not written with --only-source.
    shutil.copy(target, folder / "data" / "dict.tgt.txt")


def _write_models(folder: Path, shape: str) -> None:
    verifier_arch, drafter_arch, sizes = SHAPES[shape]
    torch.manual_seed(_SEED)
    common = [str(folder / "data"), "--source-lang", "src", "--target-lang", "tgt", "--share-all-embeddings", *sizes]
    args = _parse([*common, "--task", "translation", "--arch", verifier_arch])
    task = TranslationTask.setup_task(args)
    verifier = models.ARCH_MODEL_REGISTRY[verifier_arch].build_model(args, task)
    # With tied embeddings a random model repeats its input, which at first is EOS.
    verifier.decoder.embed_tokens.weight.data[task.target_dictionary.eos()] = 0
    _save(folder / "verifier.pt", args, verifier)
    args = _parse(
        [*common, "--user-dir", str(Path(__file__).parents[2]), "--task", "spec_dec", "--arch", drafter_arch]
        + ["--criterion", "glat_loss", "--share-encoder", "--block-size", str(BLOCK_SIZE)]
        + ["--drafter-context", "features", "--decoder-layers", "2"]
    )
    task = tasks.setup_task(args)
    drafter = models.ARCH_MODEL_REGISTRY[drafter_arch].build_model(args, task, verifier=verifier)
    _save(folder / "drafter.pt", args, drafter)


def _parse(arguments: list[str]) -> Namespace:
    return options.parse_args_and_arch(options.get_training_parser(), input_args=arguments)


def _save(path: Path, args: Namespace, model: nn.Module) -> None:
    """Write a checkpoint for fairseq's loader, in half precision as training with --fp16 saves it."""
    rounded = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    weights = {name: weight.half() if name in rounded else weight for name, weight in model.state_dict().items()}
    torch.save(new_checkpoint(weights, args=args), path)

"""CTranslate2 as a contender, with the verifier converted by CTranslate2's own converter for fairseq."""

import importlib.util
import io
from argparse import Namespace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary

from fairseq_plugins.checkpoint.loading import read_checkpoint
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared.files import new_folder, sha256_of

# Tasks of checkpoints that can be converted, and the tasks that the converter sets up.
_TASKS = {
    "translation": "translation",
    "spec_dec": "translation",
    "translation_multi_simple_epoch": "translation_multi_simple_epoch",
}


def is_installed() -> bool:
    """Return whether CTranslate2 can be imported."""
    return importlib.util.find_spec("ctranslate2") is not None


def version() -> str:
    """Return name and version of CTranslate2 for the line of the machine; empty if it is missing."""
    return f", CTranslate2 {metadata.version('ctranslate2')}" if is_installed() else ""


def convert(checkpoint: str, task_cfg: Any, folder: Path) -> Path:
    """Convert a stock fairseq Transformer, or reuse an earlier conversion; return the folder of the converted model.

    `task_cfg` gives data folder and languages. Models in `folder` are named by the hash of their checkpoint. Raises
    ConfigurationError if CTranslate2 does not support the model.
    """
    from ctranslate2.converters import FairseqConverter

    target = folder / sha256_of(Path(checkpoint))[:16]
    if target.exists():
        return target
    try:
        with new_folder(target) as converted:
            checked = converted.with_name("checked.pt")
            _write_checked(checkpoint, checked)
            languages = task_cfg.source_lang, task_cfg.target_lang
            FairseqConverter(str(checked), str(task_cfg.data), *languages).convert(str(converted), force=True)
    except ConfigurationError:
        if not target.is_dir():  # else another benchmark has converted it meanwhile
            raise
    except (ValueError, KeyError, AttributeError, RuntimeError) as error:
        problem = f"CTranslate2 cannot convert it ({' '.join(str(error).split())[:200]})"
        raise ConfigurationError("--path", checkpoint, problem, "choose other rows with {--decoders}") from error
    return target


def _write_checked(checkpoint: str, path: Path) -> None:
    """Write the weights of a checkpoint, with checked settings: the converter builds task and model from its file."""
    state, settings = read_checkpoint(checkpoint, "--path")
    task = getattr(settings, "task", None)
    if task not in _TASKS or not isinstance(settings, Namespace):
        problem = f"was trained with {{--task {task}}}, from which CTranslate2 cannot convert it"
        raise ConfigurationError("--path", checkpoint, problem, "choose other rows with {--decoders}")
    settings.task = _TASKS[task]
    content = io.BytesIO()  # of a full disk torch would not say so
    torch.save({"args": settings, "model": state["model"]}, content)
    path.write_bytes(content.getvalue())


class CTranslate2Generator:
    """Decode fairseq batches with CTranslate2; return hypotheses as fairseq's generator, with tokens only.

    Of fairseq's `generation` options `beam`, lengths and `lenpen` apply. `compute_type` is float32, int8 or float16.
    """

    def __init__(
        self, folder: Path, source: Dictionary, target: Dictionary, generation: Any, compute_type: str, cuda: bool
    ) -> None:
        import ctranslate2

        self.source, self.target, self.generation = source, target, generation
        self.translator = ctranslate2.Translator(
            str(folder),
            device="cuda" if cuda else "cpu",
            compute_type=compute_type,
            # One batch at a time on all threads, as for all contenders.
            inter_threads=1,
            intra_threads=torch.get_num_threads(),
        )

    def generate(
        self, models: Any, sample: dict[str, Any], prefix_tokens: None = None, constraints: None = None
    ) -> list[list[dict[str, Any]]]:
        """Translate a batch; other arguments are ignored, for the signature of fairseq's generators."""
        tokens = sample["net_input"]["src_tokens"]
        symbols, pad, eos = self.source.symbols, self.source.pad(), self.source.eos()
        # CTranslate2 adds the end-of-sentence symbol itself.
        texts = [[symbols[token] for token in row if token not in (pad, eos)] for row in tokens.tolist()]
        settings = self.generation
        results = self.translator.translate_batch(
            texts,
            beam_size=settings.beam,
            length_penalty=settings.lenpen,
            max_decoding_length=max(1, int(settings.max_len_a * tokens.size(1) + settings.max_len_b)),
            min_decoding_length=settings.min_len,
        )
        ids = [[self.target.index(symbol) for symbol in result.hypotheses[0]] for result in results]
        return [[{"tokens": torch.tensor([*sentence, self.target.eos()])}] for sentence in ids]


def requirements(generation: Any, verifiers: int) -> str | None:
    """Return why CTranslate2 cannot run with these options, or None if it can."""
    if not is_installed():
        return "ctranslate2 is not installed (pip install '.[bench]')"
    if verifiers > 1:
        return "CTranslate2 has no ensembles"
    if generation.prefix_size > 0:
        return f"--prefix-size {generation.prefix_size}"
    return None

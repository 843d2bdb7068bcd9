"""Resume an interrupted sweep: the finished settings, and the circumstances of their measurement."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import torch
from fairseq import utils
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.benchmarks.sweep_results import Cell, CellResult, CellResults
from fairseq_plugins.checkpoint.session import precision
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared import machine
from fairseq_plugins.shared.files import sha256
from fairseq_plugins.shared.shards import ShardWriter, read_lines, read_origin
from fairseq_plugins.shared.typed_values import parse_json

# Options of the task that are left out: paths, whose files count, and one that only affects printing.
_IRRELEVANT = ("data", "drafter_path", "verbose")


class _Record(TypedDict):
    """A line of a journal."""

    cell: Cell
    result: CellResult


class Journal(ShardWriter):
    """The finished settings of a sweep that has not ended, as a shard: FOLDER/cells.jsonl.partial.

    `circumstances` are checkpoints, data, options and machine of the measurements. Raises ConfigurationError for a
    journal of others, a file that no sweep wrote, a folder in which another sweep runs, or one that cannot be written.
    """

    def __init__(self, folder: Path, circumstances: dict[str, Any]) -> None:
        ended = folder / "cells.jsonl"
        if ended.exists():  # of an earlier sweep; this one measures anew
            read_origin(ended)
            ended.unlink()
        super().__init__(ended, circumstances)
        self.results: CellResults = {}
        for line in read_lines(self.file):
            try:
                record: _Record = parse_json(line, _Record)
            except ValueError as error:
                raise ConfigurationError("--output", self.file, "has other lines", "choose another folder") from error
            self.results[record["cell"]] = record["result"]

    def add(self, cell: Cell, result: CellResult) -> None:
        """Record a finished setting."""
        self.write(msgspec.json.encode({"cell": asdict(cell), "result": asdict(result)}).decode() + "\n")
        self.results[cell] = result


def circumstances(cfg: DictConfig, args: argparse.Namespace) -> dict[str, Any]:
    """Return all that a measurement depends on, besides the setting itself."""
    device = "cpu" if cfg.common.cpu or not torch.cuda.is_available() else torch.cuda.get_device_name()
    data = Path(cfg.task.data)
    task = {str(name): value for name, value in cfg.task.items() if name not in _IRRELEVANT}
    return {
        **task,
        "verifier": sha256([Path(path) for path in utils.split_paths(cfg.common_eval.path)]),
        "drafter": sha256([Path(cfg.task.drafter_path)]),
        "data": sha256(sorted([*data.glob(f"{cfg.dataset.gen_subset}.*"), *data.glob("dict.*.txt")])),
        "reference": None if args.reference is None else sha256([Path(file) for file in args.reference]),
        "subset": cfg.dataset.gen_subset,
        "sentences": args.sentences,
        "repeats": args.repeats,
        "batch_size": cfg.dataset.batch_size,
        "generation": OmegaConf.to_container(cfg.generation),
        "model_overrides": cfg.common_eval.model_overrides,
        "precision": precision(cfg),
        "text": [str(part) for part in (cfg.common_eval.post_process, cfg.get("bpe"), cfg.get("tokenizer"))],
        "machine": f"{machine.cpu_model()}, {torch.get_num_threads()} threads, {device}, torch {torch.__version__}",
    }

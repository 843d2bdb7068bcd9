"""Resume an interrupted sweep: the finished settings, and the circumstances of their measurement."""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

import torch
from fairseq import utils
from omegaconf import DictConfig, OmegaConf

from fairseq_plugins.benchmarks.sweep_cells import Cell, CellResult, CellResults
from fairseq_plugins.checkpoint.session import precision
from fairseq_plugins.errors import ConfigurationError
from fairseq_plugins.shared import machine
from fairseq_plugins.shared.files import HeldByAnother, lock, sha256, unwritable, write_atomically
from fairseq_plugins.shared.typed_values import parse_json


class _Record(TypedDict):
    """A line of a journal."""

    cell: Cell
    result: CellResult
    circumstances: dict[str, Any]


class Journal:
    """The finished settings of a folder: a JSON-lines file, rewritten whenever one is added.

    A finished setting counts only under equal `circumstances` (checkpoints, data, options, machine). Raises
    ConfigurationError for a file that no sweep wrote.
    """

    def __init__(self, file: Path, circumstances: Mapping[str, Any]) -> None:
        self.file = file
        self.circumstances = dict(circumstances)
        self.results: CellResults = {}
        self.foreign = 0
        content = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
        self._lines = content.removesuffix("\n").split("\n") if content else []
        for number, line in enumerate(self._lines, 1):
            try:
                record: _Record = parse_json(line, _Record)
            except ValueError as error:
                problem = f"line {number} was not written by spec-dec-sweep"
                remedy = "remove the file or choose another folder"
                raise ConfigurationError("--output", file, problem, remedy) from error
            if record["circumstances"] == self.circumstances:
                self.results[record["cell"]] = record["result"]
            else:
                self.foreign += 1

    def add(self, cell: Cell, result: CellResult) -> None:
        """Record a finished setting."""
        record = {"cell": asdict(cell), "result": asdict(result), "circumstances": self.circumstances}
        self._lines.append(json.dumps(record, ensure_ascii=False))
        write_atomically(self.file, "\n".join(self._lines) + "\n", "--output")
        self.results[cell] = result


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Lock the folder, which is made, and removed if nothing was written.

    Raises ConfigurationError if another sweep has it, or if it cannot be written or locked.
    """
    is_new, path = not folder.exists(), folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(path, "w", encoding="utf-8")
    except OSError as error:
        raise unwritable(folder, "--output", error) from error
    with file:
        lock(file, folder)
        if not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
            raise HeldByAnother(folder)  # its sweep has ended since the file was opened
        try:
            yield
        finally:
            path.unlink()
            if is_new:
                with suppress(OSError):  # it has files
                    folder.rmdir()


def circumstances(cfg: DictConfig, args: argparse.Namespace) -> dict[str, Any]:
    """Return all that a measurement depends on, besides the setting itself."""
    device = "cpu" if cfg.common.cpu or not torch.cuda.is_available() else torch.cuda.get_device_name()
    depends_on = {
        "verifier": sha256([Path(path) for path in utils.split_paths(cfg.common_eval.path)]),
        "drafter": sha256([Path(cfg.task.drafter_path)]),
        "data": sha256(sorted(Path(cfg.task.data).glob(f"{cfg.dataset.gen_subset}.*"))),
        "reference": None if args.reference is None else sha256([Path(args.reference)]),
        "subset": cfg.dataset.gen_subset,
        "sentences": args.sentences,
        "repeats": args.repeats,
        "batch_size": cfg.dataset.batch_size,
        "accept_score": str(cfg.task.accept_score),
        "generation": OmegaConf.to_container(cfg.generation),
        "model_overrides": cfg.common_eval.model_overrides,
        "precision": precision(cfg),
        "text": [str(part) for part in (cfg.common_eval.post_process, cfg.get("bpe"), cfg.get("tokenizer"))],
        "machine": f"{machine.cpu_model()}, {torch.get_num_threads()} threads, {device}, torch {torch.__version__}",
    }
    return json.loads(json.dumps(depends_on, default=str))  # as read back from the file

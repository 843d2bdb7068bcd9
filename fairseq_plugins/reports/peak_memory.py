"""Peak memory of one contender, in a process of its own that loads nothing else (SpecDec Tables 14 and 15).

    python -m fairseq_plugins.reports.peak_memory ROW BATCH_SIZES SENTENCES ARGUMENTS_OF_SPEC_DEC_BENCH...

On a GPU: the most that PyTorch had allocated while decoding, as in the paper. On a CPU under Linux: the most resident
memory while decoding, less what the process had before any model was loaded.
"""

import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from fairseq_plugins.reports.bench import Bench
from fairseq_plugins.reports.cli import run_command
from fairseq_plugins.reports.contenders import BLOCKWISE, CTRANSLATE2, Contender
from fairseq_plugins.reports.measuring import Row

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def add_memory(rows: Sequence[Row], batch_sizes: Sequence[int], numbers: Sequence[int], argv: Sequence[str]) -> None:
    """Fill in weights and peak memory of every row; says so where it cannot be measured.

    Args:
        rows: one per contender.
        batch_sizes: to decode at.
        numbers: the sentences to decode.
        argv: arguments of spec-dec-bench.
    """
    sizes, sentences = (",".join(map(str, values)) for values in (batch_sizes, numbers))
    command = [sys.executable, "-m", "fairseq_plugins.reports.peak_memory"]
    for row in rows:
        result = subprocess.run([*command, row.name, sizes, sentences, *argv], capture_output=True, text=True)
        if result.returncode != 0:
            reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
            print(f"memory of {row.name}: not measured ({reason})", file=sys.stderr)
            continue
        answer = json.loads(result.stdout.splitlines()[-1])
        row.weights = answer["weights"]
        row.peak_memory = {int(size): bytes_ for size, bytes_ in answer["peak"].items()}


def measure(bench: Bench, contender: Contender, batch_sizes: Sequence[int], numbers: Sequence[int]) -> dict:
    """Return bytes of weights, and peak bytes by batch size; of what cannot be known None, or no entry."""
    if contender.decoder == CTRANSLATE2:
        import ctranslate2  # noqa: F401  (libraries are no part of what is measured)
    _forget_peak(bench.cuda)
    before = 0 if bench.cuda else _resident("VmRSS")
    if contender.replay is not None:
        bench.greedy_outputs  # noqa: B018  (decoded once, before anything is measured)
    generator = bench.generator(contender)
    peaks = {}
    for size in batch_sizes:
        _forget_peak(bench.cuda)
        bench.decode(generator, numbers, size)
        peak = _peak(bench.cuda)
        if peak is not None and not (bench.cuda and contender.decoder == CTRANSLATE2):
            peaks[size] = peak - before
    return {"weights": _weights(bench, contender), "peak": peaks}


def _weights(bench: Bench, contender: Contender) -> int | None:
    """Bytes of the parameters of all models that take part, shared ones once."""
    if contender.decoder == CTRANSLATE2:
        return (bench.converted() / "model.bin").stat().st_size if contender.compute_type == "float32" else None
    models: list[nn.Module] = [bench.blockwise] if contender.needs == BLOCKWISE else list(bench.models)
    models += getattr(bench.task, "_drafters", {}).values()
    parameters = {parameter.data_ptr(): parameter for model in models for parameter in model.parameters()}
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())


def _forget_peak(cuda: bool) -> None:
    gc.collect()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    elif _RESET.exists():
        # What loading has freed goes back to the system, and the high-water mark down to what is left.
        ctypes.CDLL(None).malloc_trim(0)
        _RESET.write_text("5", encoding="ascii")


def _peak(cuda: bool) -> int | None:
    if cuda:
        return torch.cuda.max_memory_allocated()
    return _resident("VmHWM") if _RESET.exists() else None


def _resident(field: str) -> int:
    """Bytes in a field of the process's status, 0 where there is none."""
    if not _STATUS.exists():
        return 0
    for line in _STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    return 0


def run(argv: Sequence[str]) -> None:
    """Measure, print one line of JSON."""
    from fairseq_plugins.reports import benchmark

    name, sizes, numbers, *arguments = argv
    setting = benchmark.configure(arguments)
    contender = next(contender for contender in setting.wanted if contender.name == name)
    batch_sizes, sentences = ([int(part) for part in text.split(",")] for text in (sizes, numbers))
    print(json.dumps(measure(setting.bench, contender, batch_sizes, sentences)))


if __name__ == "__main__":
    sys.exit(run_command("peak_memory", run))

"""Measure the peak memory of one contender in a separate process (SpecDec Tables 14 and 15).

    python -m fairseq_plugins.benchmarks.peak_memory ROW BATCH_SIZES SENTENCES ARGUMENTS_OF_SPEC_DEC_BENCH...

On a GPU: peak of the memory allocated by PyTorch while decoding, as in the paper, and of the reserved memory, which
includes CUDA graphs. On a CPU under Linux: peak resident memory while decoding, without libraries and the memory used
before any model was loaded.
"""

import ctypes
import gc
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel

from fairseq_plugins.benchmarks.bench import Bench
from fairseq_plugins.benchmarks.contenders import BLOCKWISE, CTRANSLATE2, DRAFTER, Contender
from fairseq_plugins.benchmarks.measuring import Row
from fairseq_plugins.benchmarks.setting import configure
from fairseq_plugins.shared.cli import run_command
from fairseq_plugins.shared.machine import resident

_RESET = Path("/proc/self/clear_refs")


def add_memory(rows: Sequence[Row], batch_sizes: Sequence[int], numbers: Sequence[int], argv: Sequence[str]) -> None:
    """Measure weights and peak memory of every row, decoding sentences `numbers`; print a warning if that fails."""
    lists = (",".join(map(str, values)) for values in (batch_sizes, numbers))
    measured = [*lists, *argv]
    for row in rows:
        command = [sys.executable, "-m", "fairseq_plugins.benchmarks.peak_memory", row.name, *measured]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            reason = (result.stderr.strip() or "no reason given").splitlines()[-1]
            print(f"memory of {row.name}: not measured ({reason})", file=sys.stderr)
            continue
        answer = json.loads(result.stdout.splitlines()[-1])
        row.weights = answer.pop("weights")
        for field, sizes in answer.items():
            setattr(row, field, {int(size): bytes_ for size, bytes_ in sizes.items()})


def measure(bench: Bench, contender: Contender, batch_sizes: Sequence[int], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the memory fields of a `Row`: `weights`, None if unknown, and the known ones by batch size."""
    is_ours = contender.decoder != CTRANSLATE2
    if not is_ours:
        import ctranslate2  # noqa: F401  (its library is not part of the measurement)
    _reset_peak(bench.cuda)
    before = 0 if bench.cuda else resident("VmRSS") - resident("RssFile")
    if contender.replay is not None:
        bench.greedy_outputs(contender)  # decodes before the measurement
    generator = bench.generator(contender)
    # The first sentence loads models and fuses weights, which is not part of decoding.
    bench.decode(generator, numbers[:1], 1)
    peaks, reserved = {}, {}
    for size in batch_sizes:
        _reset_peak(bench.cuda)
        bench.decode(generator, numbers, size)
        peak = _peak(bench.cuda)
        if peak is not None and (is_ours or not bench.cuda):
            # RssFile counts pages of libraries, of which decoding uses more than loading.
            peaks[size] = peak - before - (0 if bench.cuda else resident("RssFile"))
        if bench.cuda and is_ours:
            reserved[size] = torch.cuda.max_memory_reserved()
    return {"weights": _weights(bench, contender), "peak_memory": peaks, "peak_reserved": reserved}


def _models(bench: Bench, contender: Contender) -> list[FairseqEncoderDecoderModel]:
    models: list[FairseqEncoderDecoderModel] = [bench.blockwise] if contender.needs == BLOCKWISE else list(bench.models)
    return models + list(bench.task.decoding.drafters.values() if contender.needs == DRAFTER else [])


def _weights(bench: Bench, contender: Contender) -> int | None:
    """Return bytes of the parameters and buffers of a contender's models."""
    if contender.decoder == CTRANSLATE2:
        return (bench.converted() / "model.bin").stat().st_size if contender.compute_type == "float32" else None
    tensors = (itertools.chain(model.parameters(), model.buffers()) for model in _models(bench, contender))
    # Counts shared tensors once.
    held = {tensor.data_ptr(): tensor for tensor in itertools.chain.from_iterable(tensors)}
    return sum(tensor.numel() * tensor.element_size() for tensor in held.values())


def _reset_peak(cuda: bool) -> None:
    gc.collect()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    elif _RESET.exists():
        # Return freed memory to the system, then reset the high-water mark.
        ctypes.CDLL(None).malloc_trim(0)
        _RESET.write_text("5", encoding="ascii")


def _peak(cuda: bool) -> int | None:
    if cuda:
        return torch.cuda.max_memory_allocated()
    return resident("VmHWM") if _RESET.exists() else None


def run(argv: Sequence[str]) -> None:
    """Measure and print one line of JSON."""
    name, sizes, numbers, *arguments = argv
    setting = configure(arguments)
    contender = next(contender for contender in setting.contenders if contender.name == name)
    batch_sizes, sentences = ([int(part) for part in text.split(",")] for text in (sizes, numbers))
    print(json.dumps(measure(setting.bench, contender, batch_sizes, sentences)))


if __name__ == "__main__":
    sys.exit(run_command("peak_memory", run))

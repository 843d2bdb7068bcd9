"""Print GFLOP/s of linear layers by weight format and number of rows: `python -m tests.benchmarks.measure_linear`."""

import time
from typing import Any

import torch

from fairseq_plugins.decoding.native import kernels

ROWS = (1, 4, 12, 16, 32, 64, 128)
LAYERS = ((512, 2048), (2048, 512), (512, 32000))
SECONDS = 0.2


def rate(layer: Any, x: torch.Tensor) -> float:
    """Return the operations a second of the fastest of many calls."""
    layer(x)
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        layer(x)
        best = min(best, time.perf_counter() - start)
    return 2 * len(x) * layer.inputs * layer.outputs / best


def main() -> None:
    module = kernels()
    module.set_threads(1)
    print(f"{module.instruction_set()}\n\n| format | layer | {' | '.join(map(str, ROWS))} |")
    print("| --- | --- |" + " --: |" * len(ROWS))
    for weight_format in module.WeightFormat:
        for inputs, outputs in LAYERS:
            if not module.supports(weight_format):
                continue
            weight = torch.randn(outputs, inputs).half().float()
            layer = module.linear(weight, torch.randn(outputs), None, format=weight_format, batch_invariant=True)
            rates = [f"{rate(layer, torch.randn(rows, inputs)) / 1e9:.0f}" for rows in ROWS]
            print(f"| {weight_format.name} | {inputs} × {outputs:,} | {' | '.join(rates)} |")


if __name__ == "__main__":
    main()

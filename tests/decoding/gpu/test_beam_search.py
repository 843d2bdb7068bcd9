"""Beam search of the GPU engine: kernels compiled for GPUs."""

from collections import Counter
from importlib.util import find_spec

import pytest
import torch

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: 1 GB; PyTorch for CUDA brings it"
)

BEAM, LAYERS = 5, 6


def _transformer(width: int, inner: int, heads: int, words: int, layers: int, is_decoder: bool) -> object:
    from fairseq_plugins.decoding.gpu import interface as gpu

    def linear(outputs: int, inputs: int) -> object:
        return gpu.linear(torch.zeros(outputs, inputs, dtype=torch.half), torch.zeros(outputs, dtype=torch.half))

    def norm() -> object:
        return gpu.Norm(torch.ones(width, dtype=torch.half), torch.zeros(width, dtype=torch.half), 1e-5)

    made = []
    for _ in range(layers):
        layer = gpu.Layer(heads=heads)
        layer.self_qkv, layer.self_out = linear(3 * width, width), linear(width, width)
        layer.fc1, layer.fc2 = linear(inner, width), linear(width, inner)
        layer.self_norm, layer.cross_norm, layer.final_norm = norm(), norm(), norm()
        if is_decoder:
            layer.cross_query, layer.cross_out = linear(width, width), linear(width, width)
            layer.cross_key_value = linear(2 * width, width)
        made.append(layer)
    embedding = torch.zeros(words, width, dtype=torch.half)
    positions = torch.zeros(1026, width, dtype=torch.half)
    projection = gpu.linear(embedding, None) if is_decoder else None
    return gpu.transformer(made, embedding, width**0.5, positions, False, gpu.Norm(), gpu.Norm(), projection)


@pytest.mark.parametrize(("places", "capabilities"), [(1, [80, 90]), (48, [90])])
def test_kernels_of_a_step(places: int, capabilities: list[int]) -> None:
    """Five kernels a layer and four more, none of which spills, with the sizes of the base model."""
    from fairseq_plugins.decoding.gpu import interface as gpu
    from tests.decoding.gpu.launches import compiled, record

    encoder, decoder = (_transformer(512, 2048, 8, 10_000, *kind) for kind in ((1, False), (LAYERS, True)))

    def step() -> None:
        generator = gpu.Generator(encoder=encoder, verifier=decoder, places=places, outputs=200, sources=200, beam=BEAM)
        generator.search.iterate(places, 0)

    launches = record(step)
    counts = Counter(launch.name for launch in launches)
    assert counts.pop("linear") == 3 * LAYERS and counts.pop("attend") == 2 * LAYERS
    assert counts == {"step_rows": 1, "vocabulary": 1, "best_continuations": 1, "advance_beams": 1}
    for launch in dict.fromkeys(launches):
        for capability in capabilities:
            assert compiled(launch, capability).spilled == 0, launch

"""Drafters of the GPU engine: kernels compiled for GPUs."""

from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest
import torch

from tests.support import both_sides, make_task, make_transformer

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed: 1 GB; PyTorch for CUDA brings it"
)

WIDTH, WORDS, PLACES = 512, 10_000, 48


def _transformers(width: int, inner: int, heads: int, words: int) -> tuple[Any, Any]:
    """Return an encoder and a decoder of one layer, in fp16."""
    from fairseq_plugins.decoding.gpu.model import GpuWeights

    options = both_sides(embed_dim=width, ffn_embed_dim=inner, attention_heads=heads, layers=1)
    model = make_transformer(make_task(words), 0, ending=False, **options).half()
    weights = GpuWeights(device=torch.device("cpu"))
    return weights.encoder(model.encoder), weights.decoder(model.decoder)


def _drafters(decoder: Any) -> dict[str, tuple[Any, list[tuple[int, int]], dict[str, Any]]]:
    """Return drafters, the numbers of places and drafted tokens of their steps, and other parts of a search."""
    from fairseq_plugins.decoding.gpu import interface as gpu

    def linear(outputs: int, inputs: int) -> Any:
        return gpu.linear(torch.zeros(outputs, inputs, dtype=torch.half), torch.zeros(outputs, dtype=torch.half))

    path = gpu.Path(torch.arange(WORDS), *[None] * 6)
    mask = gpu.MaskWeights(torch.zeros(WIDTH, dtype=torch.half), linear(WIDTH, WIDTH), decoder.positions)

    def tokens() -> Any:
        return gpu.token_drafter(decoder, None, path, mask, caches_prefix=True, width=10)

    def heads() -> Any:
        return gpu.heads_drafter(linear(2048, WIDTH), linear(9 * WIDTH, 2048), decoder.projection)

    copies = gpu.CopyDrafter(gpu.Lookup.UNIQUE, 64)
    head = linear(2048, WIDTH), linear(WIDTH, 2048)
    rule = gpu.accept_at_least(2, gpu.accept_top_beta(5, 3.0))
    return {
        "unique": (copies, [(2, 511)], {}),
        "nearest": (gpu.CopyDrafter(gpu.Lookup.NEAREST, 4, 32), [(1, 32)], {}),
        "jacobi": (gpu.jacobi_drafter(0, 1.5, -1, -1), [(2, 511)], {}),
        "heads": (heads(), [(PLACES, 9)], {"head": head, "acceptance": rule}),
        "distance": (heads(), [(1, 9)], {"acceptance": gpu.accept_within_distance(1.0, torch.zeros(WORDS))}),
        "tokens": (tokens(), [(PLACES, 10)], {}),
        "fallback": (gpu.fallback_drafter(copies, tokens()), [(1, 31)], {}),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "heads", "capability"), [(1024, 8, 80), (1280, 20, 80), (1024, 16, 86), (1024, 8, 86)]
)
def test_wide_models_fit_the_shared_memory(width: int, heads: int, capability: int) -> None:
    from fairseq_plugins.decoding.gpu import runner
    from fairseq_plugins.decoding.gpu.batch import Sizes
    from fairseq_plugins.decoding.gpu.search import GreedySearch
    from tests.decoding.gpu.launches import compiled, record

    encoder, decoder = _transformers(width, 4096, heads, 1000)

    def launch() -> None:
        search = GreedySearch(encoder, decoder, Sizes(8, 1024, 1024, 0))
        for places, parts in ((1, (1, 1)), (8, (1, 1)), (1, (4, 4))):
            search.batch.parts = parts
            search.iterate(places, 0)
        search.encode(8)

    with mock.patch.object(runner, "most_of_head", lambda device: 2**16 if capability == 80 else 2**15):
        launches = record(launch)
    for found in dict.fromkeys(launches):
        if found.name in ("attend", "join_parts"):
            compiled(found, capability)


def test_products_of_two_states_fit_the_shared_memory() -> None:
    """Of a drafter of base that reads two layers, on GPUs that are not for data centres."""
    from fairseq_plugins.decoding.gpu import interface as gpu
    from fairseq_plugins.decoding.gpu import runner
    from fairseq_plugins.decoding.gpu.batch import Sizes
    from fairseq_plugins.decoding.gpu.search import GreedySearch
    from tests.decoding.gpu.launches import compiled, record

    encoder, decoder = _transformers(WIDTH, 2048, 8, 1000)
    reader, states = (torch.zeros(rows, 2 * WIDTH, dtype=torch.half) for rows in (WIDTH, PLACES * 2))

    def launch() -> None:
        search = GreedySearch(encoder, decoder, Sizes(PLACES, 64, 64, 1))
        x, into = torch.zeros(PLACES * 2, WIDTH, dtype=torch.half), search.scores.of_rows(PLACES * 2)
        step = search.begin_step(PLACES, 2, x, into, search.batch.arguments)
        search.runner.linear(step, runner.Input(states), gpu.linear(reader), x)

    with mock.patch.object(runner, "most_of_head", lambda device: 2**15):
        _, found = record(launch)
    compiled(found, 86)


def _is_own(launch: Any) -> bool:
    """Return whether only drafters and rules launch this kernel, with these constants."""
    constants = dict(launch.constants)
    is_relaxed = constants.get("BETA", 0) > 0 or constants.get("DISTANCE", False)
    reads_or_adds = constants.get("READS", False) or constants.get("ADDS", False)
    module = launch.kernel.fn.__module__.rpartition(".")[2]
    return module in ("copying", "drafts", "jacobi", "states", "transition") or is_relaxed or reads_or_adds


def test_no_kernel_spills() -> None:
    """With the sizes of the base model."""
    from fairseq_plugins.decoding.gpu.batch import Sizes
    from fairseq_plugins.decoding.gpu.search import GreedySearch
    from tests.decoding.gpu.launches import compiled, record

    encoder, decoder = _transformers(WIDTH, 2048, 8, WORDS)
    launches = {}
    for name, (drafter, steps, parts) in _drafters(decoder).items():

        def launch(drafter: Any = drafter, steps: Any = steps, parts: Any = parts) -> None:
            search = GreedySearch(encoder, decoder, Sizes(PLACES, 1024, 1024, drafter.width), drafter, **parts)
            for places, width in steps:
                search.iterate(places, width)
            search.encode(2)

        launches |= {found: name for found in record(launch) if found not in launches}
    own = {found: name for found, name in launches.items() if _is_own(found)}
    assert {"copy_draft", "draft_predictions", "keep_predictions", "draft_given", "find_undrafted"} <= {
        found.name for found in own
    }
    for found, name in own.items():
        for capability in (80, 90):
            assert compiled(found, capability).spilled == 0, (name, capability, found)

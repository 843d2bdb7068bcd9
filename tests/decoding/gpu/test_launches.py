"""The launches of an iteration on a Transformer-base, counted and compiled for GPUs without having one."""

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_plugins.models.block_nat import BlockNat, block_nat_base
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer, blockwise_transformer
from tests.support import Options, both_sides, make_args, make_drafter, make_task, make_transformer

if find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from fairseq.models.transformer import TransformerModel, base_architecture
from triton.runtime.jit import JITFunction

from fairseq_plugins.decoding.gpu import interface as gpu
from fairseq_plugins.decoding.gpu.model import GpuWeights
from fairseq_plugins.decoding.gpu.runner import Workspace
from tests.decoding.gpu.launches import Launch, compiled, record

TASK = make_task(10000)
BASE = both_sides(embed_dim=512, ffn_embed_dim=2048, layers=6, attention_heads=8, normalize_before=True)
DRAFTER = {
    "decoder_layers": 2,
    "decoder_ffn_embed_dim": 896,
    "drafter_context": "features",
    "feature_layers": "0,3,6",
    "transition_rank": 64,
    "transition_state": 64,
    "src_embedding_copy": True,
}
BUDGETS = {"greedy": 36, "gad": 60, "fast-beam": 42}
PLACES = (1, 48)


@cache
def _models() -> tuple[TransformerModel, BlockNat]:
    torch.manual_seed(0)
    args = make_args(**BASE)
    base_architecture(args)
    verifier = TransformerModel.build_model(args, TASK).eval().half()
    args = make_args(**{**BASE, **DRAFTER}, block_size=10)
    block_nat_base(args)
    return verifier, BlockNat.build_model(args, TASK, verifier=verifier).eval().half()


@cache
def _launches(decoder: str, places: int, parts: tuple[int, int] = (1, 1), keeps: bool | None = None) -> list[Launch]:
    """Return the launches of an iteration; `keeps`: of sampling, with or without --sampling-topk."""
    verifier, drafter = _models()
    how = Options(decoder)
    weights = GpuWeights(device=torch.device("cpu"))
    context = how.context([verifier], drafter if decoder == "gad" else None, TASK, weights)
    assert how.spec.build_kernels is not None
    method = how.spec.build_kernels(context, how.options)

    def launch() -> None:
        encoder, own = weights.encoder(verifier.encoder), weights.decoder(verifier.decoder)
        beam = 5 if decoder == "fast-beam" else 0
        engine = gpu.Generator(
            encoder=encoder, verifier=own, drafter=method.drafter, places=places, outputs=128, sources=64, beam=beam
        )
        engine.batch.parts = parts
        engine.batch.draws, engine.batch.keeps = keeps is not None, bool(keeps)
        engine.search.iterate(places, engine.widths[-1])

    return record(launch)


@pytest.mark.parametrize("decoder", BUDGETS)
def test_launches_of_an_iteration(decoder: str) -> None:
    assert len(_launches(decoder, 1)) <= BUDGETS[decoder]
    assert len(_launches(decoder, 48)) == len(_launches(decoder, 1))


def _unique(*decoders: str) -> Iterator[Launch]:
    for name in decoders:
        how = [(places, (1, 1), None) for places in PLACES] + [(1, (4, 4), None)]
        how += [] if name == "fast-beam" else [(1, (1, 1), False), (48, (1, 1), True)]
        yield from dict.fromkeys(launch for given in how for launch in _launches(name, *given))


def _check(launches: Iterator[Launch], capability: int) -> None:
    for launch in launches:
        result = compiled(launch, capability)
        assert result.spilled == 0, launch
        if launch.name in ("linear", "attend", "vocabulary"):
            assert "ld.global.v4.b32" in result.ptx or "ld.global.v4" in result.ptx, launch


def test_long_outputs_and_sources_take_a_launch_more_in_each_layer() -> None:
    short = len(_launches("greedy", 1))
    assert len(_launches("greedy", 1, (1, 4))) == short + 6
    assert len(_launches("greedy", 1, (4, 4))) == short + 12


@pytest.mark.parametrize(("decoder", "more"), [("greedy", 0), ("gad", 10)])
def test_launches_of_sampling(decoder: str, more: int) -> None:
    """As many as without; where transition scores change what --sampling-topk keeps, a choice for each token more."""
    without = len(_launches(decoder, 1))
    assert len(_launches(decoder, 1, keeps=False)) == without
    assert len(_launches(decoder, 1, keeps=True)) == without + more


def _on_meta(model: Any) -> Any:
    """Move a model to a device without memory; numbers of a drafter that the host reads stay."""
    numbers = {name: buffer for name, buffer in model.named_buffers() if name.endswith(("_counts", "_size"))}
    model.to("meta")
    for name, buffer in numbers.items():
        folder, _, name = name.rpartition(".")
        setattr(model.get_submodule(folder), name, buffer)
    return model


@pytest.mark.parametrize(
    ("decoder", "options", "settings"),
    [
        ("greedy", {}, None),
        ("fast-beam", {}, None),
        ("iad", {}, None),
        ("reuse", {"iad_fallback": "gad"}, {"drafter_context": "tokens"}),
        ("hybrid-jacobi", {}, None),
        ("gad", {}, {"transition_rank": 4, "transition_state": 4, "src_embedding_copy": True}),
        ("gad++", {"top_beta": 3, "tau": 1.0}, {"drafter_context": "tokens", "share_encoder": True}),
        ("blockwise", {"top_beta": 3}, None),
    ],
)
def test_kernels_read_only_the_device_of_the_weights(
    decoder: str, options: dict[str, Any], settings: dict[str, Any] | None
) -> None:
    """Interpreted, kernels read memory of the host, too."""
    task, device = make_task(30), torch.device("meta")
    model = make_transformer(task, 1)
    if decoder == "blockwise":
        args = make_args(blockwise_heads=3)
        blockwise_transformer(args)
        model = BlockwiseTransformer.build_model(args, task)
    drafter = None if settings is None else _on_meta(make_drafter(task, 4, verifier=model, **settings))
    how, weights, devices = Options(decoder, **options), GpuWeights(device=device), set()
    _on_meta(model)
    assert how.spec.build_kernels is not None
    method = how.spec.build_kernels(how.context([model], drafter, task, weights), how.options)

    def run(self: Any, *given: Any, grid: Any, warmup: bool, **more: Any) -> None:
        tuples = [value if isinstance(value, tuple) else (value,) for value in (*given, *more.values())]
        values = [value for values in tuples for value in values]
        devices.update(value.device for value in values if isinstance(value, torch.Tensor))

    # Without memory, buffers have no addresses.
    free = mock.patch.object(Workspace, "free", lambda self, rows, *_: torch.empty(rows, self.width, device=device))
    with mock.patch.object(JITFunction, "run", run), free:
        engine = gpu.Generator(
            encoder=weights.encoder(model.encoder), verifier=weights.decoder(model.decoder, method.projection),
            drafter=method.drafter, acceptance=method.acceptance, head=method.head,
            beam=2 if decoder == "fast-beam" else 0, places=2, outputs=20, sources=20,
        )  # fmt: skip
        engine.search.encode(2)
        engine.search.iterate(1, engine.widths[-1])
    assert devices == {device}


def test_a_continuous_batch_begins_with_graphs_for_all_sources() -> None:
    """None is captured while sentences are decoded. An error then ends the batch."""
    model, weights = make_transformer(make_task(30), 1), GpuWeights(device=torch.device("cpu"))
    encoder, decoder = weights.encoder(model.encoder), weights.decoder(model.decoder)
    engine = gpu.Generator(encoder=encoder, verifier=decoder, places=1, outputs=8, sources=1030)
    engine.open(
        pad=1, unk=3, eos=2, first_token=2, threads=1, max_sentences=1, max_source=1030, max_len=8
    )  # fmt: skip
    sentence = gpu.Sentence([5, 2], min_len=1, max_len=8)
    # As an error of the device: nothing more can be decoded.
    with mock.patch.object(engine, "fill", side_effect=RuntimeError("out of memory")):
        engine.admit(1, sentence, streams=False)
        for ask in (lambda: engine.take(60), lambda: engine.admit(2, sentence, streams=False)):
            with pytest.raises(RuntimeError, match="^the batch has failed: out of memory$"):
                ask()
    engine.close()
    assert max(engine.encoders) == engine.search.encoder.most_tiles


@pytest.mark.slow
@pytest.mark.parametrize("decoder", BUDGETS)
def test_kernels_compile_without_spills(decoder: str) -> None:
    """For a Hopper."""
    _check(_unique(decoder), 90)


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["gad", "fast-beam"])
def test_kernels_compile_for_an_ampere(decoder: str) -> None:
    """Which has no programmatic dependent launch."""
    for launch in dict.fromkeys(_launches(decoder, 1)):
        assert compiled(launch, 80).spilled == 0, launch

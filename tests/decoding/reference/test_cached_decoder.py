"""The decoder with a cache: which models it runs, and what it keeps."""

import gc
from typing import Any

import pytest
import torch
from fairseq.models.fconv import FConvDecoder
from fairseq.models.lightconv import LightConvModel
from fairseq.models.lightconv import base_architecture as lightconv_base

from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.models.support import unsupported_reason
from tests.errors import refused
from tests.support import (
    Options,
    ScriptedDrafter,
    both_sides,
    decode,
    fairseq_greedy,
    ids,
    make_all,
    make_args,
    make_generator,
    make_task,
    make_transformer,
)


@pytest.fixture(params=["any shapes", "fixed shapes"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """PyTorch's operations, as they are and in fixed shapes."""
    return Engine(batch_invariant=request.param == "fixed shapes")


def test_an_output_of_another_width_than_the_shared_embedding_is_no_garbage() -> None:
    """`--share-decoder-input-output-embed --decoder-output-dim` below the width: fairseq fails at it, and so do we."""
    options = {"share_decoder_input_output_embed": True, "decoder_output_dim": 24, "decoder_embed_dim": 36}
    task, model, sample = make_all(30, 1, [5, 2], ending=False, encoder_embed_dim=36, **options)
    with pytest.raises(RuntimeError, match="shape"):
        fairseq_greedy([model], task, sample)
    for decoder in ("greedy", "fast-beam"):
        with pytest.raises(RuntimeError, match="shape"):
            decode([model], task, sample, Options(decoder), max_len_b=5)


@pytest.mark.parametrize("by_steps", [False, True])
def test_no_scores_are_kept_between_iterations(engine: Engine, by_steps: bool) -> None:
    """No tensor of batch x draft x vocabulary outlives the iteration that computed it."""
    task, model, sample = make_all(700, 2, [3, 5, 4], 2, ending=False)
    shapes: list[torch.Size] = []

    def script(sentence: int, done: int, width: int) -> list[int]:
        if sentence == 0:
            large = [t for t in gc.get_objects() if torch.is_tensor(t) and t.dim() == 3 and t.size(-1) == 700]
            shapes.extend(t.shape for t in large)
        return [5] * width

    generator, stats = make_generator([model], task, ScriptedDrafter(script, 4), engine=engine, max_len_b=12)
    list(generator.steps(sample)) if by_steps else generator.generate([], sample)
    assert stats.iterations > 10 and not shapes


def _light_convolutions() -> LightConvModel:
    args = make_args(**both_sides(conv_type="lightweight", layers=7), weight_softmax=True)
    args.decoder_layers = 6
    lightconv_base(args)
    return LightConvModel.build_model(args, make_task(30))


def _decoder(**options: Any) -> Any:
    return make_transformer(make_task(30), 0, ending=False, **options).decoder


@pytest.mark.parametrize("decoder", ["greedy", "iad", "fast-beam"])
def test_encoder_without_layers(decoder: str) -> None:
    task, model, sample = make_all(30, 0, [3, 7, 1], encoder_layers=0)
    output, _ = decode([model], task, sample, Options(decoder), max_len_b=20)
    assert ids(output) == ids(fairseq_greedy([model], task, sample, max_len_b=20))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: FConvDecoder(make_task(30).target_dictionary, convolutions=((16, 3),)), "FConvDecoder"),
        (lambda: _light_convolutions().decoder, "LightConvDecoder"),
        (lambda: _decoder(adaptive_softmax_cutoff="10,20"), "adaptive softmax"),
        (lambda: _decoder(no_cross_attention=True), "--no-cross-attention"),
        (lambda: _decoder(cross_self_attention=True), "--cross-self-attention"),
        (lambda: _decoder(scale_heads=True), "--scale-heads"),
        (lambda: _decoder(scale_fc=True), "--scale-fc"),
        (lambda: _decoder(decoder_layers=0), "its decoder has no layers"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(make: Any, reason: str) -> None:
    decoder = make()
    assert reason in (unsupported_reason(decoder) or "")
    with refused("--decoder beam"):
        CachedDecoder(decoder, Engine())


def test_changed_subclasses_are_refused() -> None:
    decoder = _decoder()

    class Changed(type(decoder)):  # type: ignore[misc]
        def extract_features(self, *args: Any, **kwargs: Any) -> Any:
            return super().extract_features(*args, **kwargs)

    decoder.__class__ = Changed
    assert "changes extract_features()" in (unsupported_reason(decoder) or "")

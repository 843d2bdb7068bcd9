"""Weights that the processor multiplies in tiles: every decoder gives fairseq's output, as with others."""

from typing import Any

import pytest
import torch
from fairseq_plugins.decoding.engine.native.build import library
from fairseq_plugins.decoding.engine.native.layers import HALVES_IN_TILES
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.engine.native import kernels as native
from fairseq_plugins.decoding.method import Method
from tests.strategies import SOURCES, STEADY_MODELS, some
from tests.support import (
    Options,
    assert_same_hypotheses,
    assert_same_output,
    decode,
    fairseq_beam,
    fairseq_greedy,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)

pytestmark = pytest.mark.skipif(library() is None or not library().has_tiles(), reason="no tiles on this processor")
WIDE = {"encoder_embed_dim": 64, "decoder_embed_dim": 64, "encoder_ffn_embed_dim": 96, "decoder_ffn_embed_dim": 96}


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those are that go to tiles."""
    monkeypatch.setattr(native, "MAX_PACKED_WIDTH", 0)


def in_halves(model: torch.nn.Module) -> Any:
    return model.half().float()


@pytest.mark.parametrize(
    "how",
    [
        Options("greedy"),
        Options("gad", 5),
        Options("gad", 12, fixed_width=False),
        Options("iad"),
        Options("gs-jacobi", 4),
        Options("jacobi"),
    ],
    ids=lambda how: how.given,
)
@settings(STEADY_MODELS, max_examples=some(8))
@given(sources=SOURCES, seed=st.integers(0, 1000), before=st.booleans())
def test_lossless_decoders(how: Options, sources: list[int], seed: int, before: bool) -> None:
    task = make_task(60)
    options = {**WIDE, "encoder_normalize_before": before, "decoder_normalize_before": before}
    verifier = in_halves(make_transformer(task, seed, **options))
    drafter = in_halves(make_drafter(task, seed + 1, verifier=verifier, **WIDE, drafter_context="features"))
    sample = make_sample(task, sources, seed)
    ours, _ = decode([verifier], task, sample, how, drafter, max_len_b=30)
    assert_same_output(ours, fairseq_greedy([verifier], task, sample, max_len_b=30))
    assert_in_tiles(how.build([verifier], drafter, task))


@settings(STEADY_MODELS, max_examples=some(12))
@given(sources=SOURCES, seed=st.integers(0, 1000), beam=st.sampled_from([1, 4, 5]))
def test_beam_search(sources: list[int], seed: int, beam: int) -> None:
    task = make_task(1100)  # so many that they are scored in several parts
    verifier = in_halves(make_transformer(task, seed, **WIDE))
    sample = make_sample(task, sources, seed)
    how = Options("fast-beam")
    ours, _ = decode([verifier], task, sample, how, beam_size=beam, max_len_b=30)
    assert_same_hypotheses(ours, fairseq_beam([verifier], task, sample, beam, max_len_b=30))
    assert_in_tiles(how.build([verifier], None, task, beam=beam))


def assert_in_tiles(method: Method) -> None:
    decoder, encoder = method.verifier.decoders[0], method.verifier.encoders[0]
    assert encoder.native_layers.in_tiles and decoder.native_layers.in_tiles
    assert decoder.native_output.structure.form == HALVES_IN_TILES

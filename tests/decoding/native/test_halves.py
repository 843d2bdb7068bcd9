"""Large weights that float16 holds exactly: packed in AMX tiles or panels; outputs equal fairseq's."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.native import model as native_model
from tests.decoding.native.weight_formats import FORMATS, FP16_FORMAT, HAS_FP16, HAS_TILES
from tests.strategies import SOURCES, UNSHRUNK, example_count
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

WIDE = {"encoder_embed_dim": 64, "decoder_embed_dim": 64, "encoder_ffn_embed_dim": 96, "decoder_ffn_embed_dim": 96}
HELD = FORMATS.FP16_AMX_TILES if HAS_TILES else FP16_FORMAT

pytestmark = pytest.mark.skipif(not HAS_FP16, reason="no float16 on this processor")


@pytest.fixture(autouse=True)
def every_layer_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat all layers as large, so that float16 is the only reason to pack them."""
    monkeypatch.setattr(native_model, "NARROW", 0)


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
@settings(UNSHRUNK, max_examples=example_count(8))
@given(sources=SOURCES, seed=st.integers(0, 1000), before=st.booleans())
def test_lossless_decoders(
    how: Options, chosen_formats: list[Any], sources: list[int], seed: int, before: bool
) -> None:
    task = make_task(60)
    options = {**WIDE, "encoder_normalize_before": before, "decoder_normalize_before": before}
    verifier = in_halves(make_transformer(task, seed, **options))
    drafter = in_halves(make_drafter(task, seed + 1, verifier=verifier, **WIDE, drafter_context="features"))
    sample = make_sample(task, sources, seed)
    chosen_formats.clear()
    ours, _ = decode([verifier], task, sample, how, drafter, max_len_b=30)
    assert_same_output(ours, fairseq_greedy([verifier], task, sample, max_len_b=30))
    # The drafter has int8 weights.
    rounded = {FORMATS.INT8} if how.spec.name == "gad" else set()
    assert set(chosen_formats) == {HELD} | rounded


@settings(UNSHRUNK, max_examples=example_count(12))
@given(sources=SOURCES, seed=st.integers(0, 1000), beam=st.sampled_from([1, 4, 5]))
def test_beam_search(chosen_formats: list[Any], sources: list[int], seed: int, beam: int) -> None:
    task = make_task(1100)  # scored in several parts
    verifier = in_halves(make_transformer(task, seed, **WIDE))
    sample = make_sample(task, sources, seed)
    chosen_formats.clear()
    ours, _ = decode([verifier], task, sample, Options("fast-beam"), beam_size=beam, max_len_b=30)
    assert_same_hypotheses(ours, fairseq_beam([verifier], task, sample, beam, max_len_b=30))
    assert set(chosen_formats) == {HELD}

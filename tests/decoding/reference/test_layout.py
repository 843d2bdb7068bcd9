"""The result of a row does not depend on its place among the rows of a step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.decoding.reference.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.reference.drafters.masked_decoder import MaskedDecoder
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.layout import Chain, Span
from tests.strategies import (
    DRAFTERS,
    FEATURE_DRAFTERS,
    SENTENCES,
    TRANSFORMERS,
    UNSHRUNK,
    VISIBLE,
    example_count,
    fitting,
)
from tests.support import Options, decode, fairseq_greedy, make_drafter, make_sample, make_task, make_transformer

VOCABULARY = 30


class Steps:
    """Steps of one decoder, each on a copy of a cache with `lengths` random tokens of each sentence.

    Args:
        engine: runs the decoder.
        options: options of the verifier.
        drafter: options of the drafter, whose decoder then runs; None for the verifier's.
        lengths: lengths of the sentences.
        seed: random seed.
    """

    def __init__(
        self, engine: Engine, options: dict[str, Any], drafter: dict[str, Any] | None, lengths: list[int], seed: int
    ) -> None:
        task = make_task(VOCABULARY)
        verifier = make_transformer(task, seed, ending=False, **options)
        self.random = torch.Generator().manual_seed(seed)
        source = make_sample(task, [(3 * row + seed) % 8 for row in range(len(lengths))], seed)["net_input"]
        self.inputs = None
        if drafter is None:
            self.decoder = CachedDecoder(verifier.decoder, engine)
            self.decoder.start(verifier.encoder.forward_torchscript(source))
        else:
            model = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter, options))
            masked = MaskedDecoder(model.decoder, engine, block_size=1)
            masked.start(model.encoder.forward_torchscript(source))
            self.decoder, self.inputs = masked.cached, masked.mask_embeddings
        self.lengths = torch.tensor(lengths)
        self.span = Span(min(lengths), max(lengths))
        if max(lengths) > 0:
            begin = Chain(torch.zeros_like(self.lengths), Span(0, 0), max(lengths))
            self.decoder.step(self.tokens(len(lengths), max(lengths)), begin, mask_embeddings=self.inputs)
        self.cache = self.decoder.cache

    def tokens(self, *shape: int) -> Tensor:
        """Return random tokens; for a drafter a third of them are masks."""
        words = torch.randint(4, VOCABULARY, shape, generator=self.random)
        is_mask = torch.rand(shape, generator=self.random) < (0 if self.inputs is None else 1 / 3)
        return words.masked_fill(is_mask, VOCABULARY)

    def number(self, limit: Tensor) -> Tensor:
        """Return random numbers from 0 to `limit`."""
        return (torch.rand(limit.shape, generator=self.random) * (limit + 1)).long()

    def run(self, tokens: Tensor, layout: Chain) -> tuple[Tensor, Tensor, Tensor]:
        """Run a step; return hidden states [..., D], all states [layers + 1, ..., D], and the cache."""
        self.decoder.cache = self.cache.clone()
        states: list[Tensor] = []
        hidden = self.decoder.step(tokens, layout, states, self.inputs)
        return hidden, torch.stack(states), self.decoder.cache


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


@settings(UNSHRUNK, max_examples=example_count(30))
@given(
    options=TRANSFORMERS,
    drafter=st.one_of(st.none(), DRAFTERS, FEATURE_DRAFTERS),
    sentences=SENTENCES,
    width=st.integers(1, 14),
    visible=VISIBLE,
    seed=st.integers(0, 500),
)
@torch.no_grad()
def test_a_step_in_any_shapes_and_in_fixed_ones(
    options: dict[str, Any],
    drafter: dict[str, Any] | None,
    sentences: list[tuple[int, int]],
    width: int,
    visible: str | None,
    seed: int,
) -> None:
    lengths = [length for length, _ in sentences]
    results = []
    for batch_invariant in (False, True):
        steps = Steps(Engine(batch_invariant=batch_invariant), options, drafter, lengths, seed)
        chain = Chain(steps.lengths, steps.span, width)
        if visible == "block":
            chain = replace(chain, last_visible=(steps.lengths + width - 1)[:, None].expand(-1, width))
        elif visible is not None:
            some = torch.full((1 if "same" in visible else len(lengths), width), chain.slots - 1)
            chain = replace(chain, last_visible=steps.number(some))
        results.append(steps.run(steps.tokens(len(lengths), width), chain))
    assert results[0][0].shape[:2] == (len(lengths), width)
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs)


@torch.no_grad()
def test_an_output_of_another_width_than_the_shared_embedding_is_no_garbage() -> None:
    """`--share-decoder-input-output-embed --decoder-output-dim` below the width: fairseq fails at it, and so do we."""
    task = make_task(VOCABULARY)
    options = {"share_decoder_input_output_embed": True, "decoder_output_dim": 24, "decoder_embed_dim": 36}
    model = make_transformer(task, 1, ending=False, encoder_embed_dim=36, **options)
    sample = make_sample(task, [5, 2])
    with pytest.raises(RuntimeError, match="shape"):
        fairseq_greedy([model], task, sample)
    cached = CachedDecoder(model.decoder, Engine())
    cached.start(model.encoder.forward_torchscript(sample["net_input"]))
    hidden = cached.step(torch.full((2, 3), 5), Chain(torch.zeros(2, dtype=torch.long), Span(0, 0), 3))
    assert hidden.shape == (2, 3, 24)
    with pytest.raises(RuntimeError, match="shape"):
        cached.project(hidden)
    for decoder in ("greedy", "fast-beam"):
        with pytest.raises(RuntimeError, match="shape"):
            decode([model], task, sample, Options(decoder), max_len_b=5)

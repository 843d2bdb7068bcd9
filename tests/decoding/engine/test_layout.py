"""A row of a step gives the same wherever it stands among others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.decoding.drafters.masked_decoder import MaskedDecoder
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.engine import Engine
from fairseq_plugins.decoding.engine.layout import Chain, Span, StepLayout
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


@pytest.fixture(params=["any shapes", "fixed shapes"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """PyTorch's operations, as they are and in fixed shapes."""
    return Engine(batch_invariant=request.param == "fixed shapes")


class Steps:
    """Steps of one decoder, each on a copy of the same cache, which holds `lengths` random tokens of every sentence.

    Args:
        engine: what it runs on.
        options: of the verifier.
        drafter: of the drafter whose decoder is meant; None for the verifier's.
        lengths: of the sentences.
        seed: of everything that is random.
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
            masked = MaskedDecoder(model.decoder, engine, None)
            masked.start(model.encoder.forward_torchscript(source))
            self.decoder, self.inputs = masked.cached, masked.inputs
        self.lengths = torch.tensor(lengths)
        self.span = Span(min(lengths), max(lengths))
        if max(lengths) > 0:
            begin = Chain(torch.zeros_like(self.lengths), Span(0, 0), max(lengths))
            self.decoder.step(self.tokens(len(lengths), max(lengths)), begin, mask_inputs=self.inputs)
        self.cache = self.decoder.cache

    def tokens(self, *shape: int) -> Tensor:
        """Random tokens, of a drafter with masks for a third of them."""
        words = torch.randint(4, VOCABULARY, shape, generator=self.random)
        is_mask = torch.rand(shape, generator=self.random) < (0 if self.inputs is None else 1 / 3)
        return words.masked_fill(is_mask, VOCABULARY)

    def number(self, limit: Tensor) -> Tensor:
        """Random numbers from 0 to `limit`."""
        return (torch.rand(limit.shape, generator=self.random) * (limit + 1)).long()

    def run(self, tokens: Tensor, layout: Chain | StepLayout, masks: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Hidden states [..., D], all states [layers + 1, ..., D], and the cache."""
        self.decoder.cache = self.cache.clone()
        states: list[Tensor] = []
        hidden = self.decoder.step(tokens, layout, states, masks, self.inputs)
        return hidden, torch.stack(states), self.decoder.cache


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-5)


ANY_DRAFTER = st.one_of(st.none(), DRAFTERS, FEATURE_DRAFTERS)


@settings(UNSHRUNK, max_examples=example_count(30))
@given(
    options=TRANSFORMERS,
    drafter=ANY_DRAFTER,
    sentences=SENTENCES,
    width=st.integers(1, 14),
    masks=st.integers(0, 13),
    visible=VISIBLE,
    seed=st.integers(0, 500),
)
@torch.no_grad()
def test_a_chain_spelled_out_is_the_same_step(
    engine: Engine,
    options: dict[str, Any],
    drafter: dict[str, Any] | None,
    sentences: list[tuple[int, int]],
    width: int,
    masks: int,
    visible: str | None,
    seed: int,
) -> None:
    lengths = [length for length, _ in sentences]
    steps = Steps(engine, options, drafter, lengths, seed)
    chain = Chain(steps.lengths, steps.span, width)
    if visible == "block":
        chain = replace(chain, last_visible=(steps.lengths + width - 1)[:, None].expand(-1, width))
    elif visible is not None:
        some = torch.full((1 if "same" in visible else len(lengths), width), chain.slots - 1)
        chain = replace(chain, last_visible=steps.number(some))
    masks = 0 if drafter is None else min(masks, width - 1)
    tokens = steps.tokens(len(lengths), width - masks)
    # Masks stand anywhere, or after the words.
    tokens = tokens.clamp(max=VOCABULARY - 1) if masks else tokens
    everything = torch.cat([tokens, tokens.new_full((len(lengths), masks), VOCABULARY)], dim=1)

    hidden, states, cache = steps.run(tokens, chain, masks)
    assert hidden.shape[:2] == (len(lengths), width)
    for layout in (chain, chain.to_packed()):
        given = everything if layout is chain else everything.flatten()
        again, other_states, other_cache = steps.run(given, layout)
        assert_close(again.view_as(hidden), hidden)
        assert_close(other_states.view_as(states), states)
        assert_close(other_cache, cache)


@settings(UNSHRUNK, max_examples=example_count(30))
@given(
    options=TRANSFORMERS,
    drafter=ANY_DRAFTER,
    sentences=SENTENCES,
    whole=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 500),
)
@torch.no_grad()
def test_packed_rows_give_what_the_chain_gives(
    engine: Engine,
    options: dict[str, Any],
    drafter: dict[str, Any] | None,
    sentences: list[tuple[int, int]],
    whole: bool,
    causal: bool,
    seed: int,
) -> None:
    """Sentences in any order, rows of each together (`whole`) or apart; without those that no sentence asked for."""
    lengths, counts = [length for length, _ in sentences], torch.tensor([rows for _, rows in sentences])
    width = int(counts.max())
    steps = Steps(engine, options, drafter, lengths, seed)
    chain = Chain(steps.lengths, steps.span, width)
    if not causal:
        # What comes later may be missing.
        chain = replace(chain, last_visible=steps.number(chain.slot()))
    tokens = steps.tokens(len(lengths), width)
    wanted, wanted_states, wanted_cache = steps.run(tokens, chain)

    rows = chain.to_packed()
    column = torch.arange(width).repeat(len(lengths))
    order = torch.randperm(len(rows.sentence), generator=steps.random)
    if whole:
        place = torch.randperm(len(lengths), generator=steps.random)[rows.sentence]
        order = (place * width + column).argsort()
    order = order[(column < counts[rows.sentence])[order]]
    sentence, column, slot = rows.sentence[order], column[order], rows.slot[order]
    packed = StepLayout(sentence, rows.position[order], slot, rows.last_visible[order], int(slot.max()) + 1)
    hidden, states, cache = steps.run(tokens[sentence, column], packed)
    assert_close(hidden, wanted[sentence, column])
    assert_close(states, wanted_states[:, sentence, column])
    # Keys and values of these rows are there, and nothing else was touched.
    expected = torch.zeros_like(wanted_cache)
    expected[:, :, : steps.cache.size(2)] = steps.cache
    expected[:, sentence, slot] = wanted_cache[:, sentence, slot]
    assert_close(cache, expected[:, :, : cache.size(2)])
    assert not expected[:, :, cache.size(2) :].any()


@settings(UNSHRUNK, max_examples=example_count(30))
@given(
    options=TRANSFORMERS,
    drafter=ANY_DRAFTER,
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    rows=st.integers(1, 40),
    seed=st.integers(0, 500),
)
@torch.no_grad()
def test_any_layout_in_any_shapes_and_in_fixed_ones(
    options: dict[str, Any], drafter: dict[str, Any] | None, lengths: list[int], rows: int, seed: int
) -> None:
    """Position, slot and last visible slot have nothing to do with each other, as in a tree of drafts."""
    results = []
    for batch_invariant in (False, True):
        steps = Steps(Engine(batch_invariant=batch_invariant), options, drafter, lengths, seed)
        slots = max(lengths) + 10
        # No slot twice: it would depend on the order which key is seen.
        cell = torch.randperm(len(lengths) * slots, generator=steps.random)[:rows]
        last = torch.full_like(cell, slots - 1)
        layout = StepLayout(cell // slots, steps.number(last), cell % slots, steps.number(last), slots)
        results.append(steps.run(steps.tokens(len(cell)), layout))
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

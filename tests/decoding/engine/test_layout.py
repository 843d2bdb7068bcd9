"""A row of a step gives the same wherever it stands among others; what points nowhere is refused, without a crash."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_plugins.decoding.drafters.masked_decoder import MaskedDecoder
from fairseq_plugins.decoding.engine.cached_decoder import CachedDecoder
from fairseq_plugins.decoding.engine.engine import Engine, make_engine
from fairseq_plugins.decoding.engine.layout import Chain, Span, StepLayout
from fairseq_plugins.decoding.engine.native.kernels import Kernels
from fairseq_plugins.decoding.engine.native.layers import NativeLayers
from fairseq_plugins.models.transition import TransitionScores
from tests.strategies import (
    DRAFTERS,
    FEATURE_DRAFTERS,
    SENTENCES,
    STEADY,
    STEADY_MODELS,
    TRANSFORMERS,
    VISIBLE,
    fitting,
    some,
)
from tests.support import fairseq_greedy, make_drafter, make_sample, make_task, make_transformer

VOCABULARY = 30
Options = dict[str, Any]


@pytest.fixture(params=["compiled", "operations"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The compiled kernels, and PyTorch's operations."""
    return make_engine(compiled=request.param == "compiled")


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
        self, engine: Engine, options: Options, drafter: Options | None, lengths: list[int], seed: int
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
        module = self.decoder.decoder
        kernels_can = module.layers[0].activation_fn is not torch.tanh and module.project_in_dim is None
        kernels_can = kernels_can and not (drafter or {}).get("positions_every_layer")
        assert (self.decoder.native_layers is not None) == (engine.kernels is not None and kernels_can)
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


@settings(STEADY_MODELS, max_examples=some(30))
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
    options: Options,
    drafter: Options | None,
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
    for layout in (chain, chain.spelled_out()):
        given = everything if layout is chain else everything.flatten()
        again, other_states, other_cache = steps.run(given, layout)
        assert_close(again.view_as(hidden), hidden)
        assert_close(other_states.view_as(states), states)
        assert_close(other_cache, cache)


@settings(STEADY_MODELS, max_examples=some(30))
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
    options: Options,
    drafter: Options | None,
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

    rows = chain.spelled_out()
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


@settings(STEADY_MODELS, max_examples=some(30))
@given(
    options=TRANSFORMERS,
    drafter=ANY_DRAFTER,
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    rows=st.integers(1, 40),
    seed=st.integers(0, 500),
)
@torch.no_grad()
def test_kernels_and_operations_agree_on_any_layout(
    options: Options, drafter: Options | None, lengths: list[int], rows: int, seed: int
) -> None:
    """Position, slot and last visible slot have nothing to do with each other, as in a tree of drafts."""
    results = []
    for engine in (make_engine(), Engine()):
        steps = Steps(engine, options, drafter, lengths, seed)
        slots = max(lengths) + 10
        # No slot twice: it would depend on the order which key is seen.
        cell = torch.randperm(len(lengths) * slots, generator=steps.random)[:rows]
        last = torch.full_like(cell, slots - 1)
        layout = StepLayout(cell // slots, steps.number(last), cell % slots, steps.number(last), slots)
        results.append(steps.run(steps.tokens(len(cell)), layout))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs)


# What is refused


class Call:
    """A step of a drafter's layers on the kernels with everything in order, of which a test then breaks one part.

    There are three sentences of four rows each, and a cache of eight slots, of which six are used.
    """

    def __init__(self) -> None:
        task = make_task(VOCABULARY)
        self.model = make_drafter(task, 1, src_embedding_copy=True)
        cached = CachedDecoder(self.model.decoder, make_engine())
        cached.start(self.model.encoder.forward_torchscript(make_sample(task, [5, 2, 7])["net_input"]))
        assert cached.native_layers is not None
        self.layers: NativeLayers = cached.native_layers
        chain = Chain(torch.tensor([2, 0, 1]), Span(0, 2), 4)
        self.given: dict[str, Any] = {
            "tokens": torch.randint(4, VOCABULARY, (3, 4)),
            "layout": chain,
            "cache": torch.zeros(2, 3, 8, 2, 4, 4),
            "cross": cached.cross,
            "cross_allowed": torch.ones(3, 8, dtype=torch.bool),
            "fed": torch.zeros(3, 6, 16),
        }

    def packed(self, **changes: Tensor | int) -> "Call":
        """The same rows packed, with these fields of the layout."""
        chain = self.given["layout"]
        return self.with_(tokens=self.given["tokens"].flatten(), layout=replace(chain.spelled_out(), **changes))

    def chain(self, **changes: Any) -> "Call":
        """The chain with these fields."""
        return self.with_(layout=replace(self.given["layout"], **changes))

    def with_(self, **changes: Any) -> "Call":
        """With other arguments."""
        self.given |= changes
        return self

    def run(self) -> Tensor:
        return self.layers.step(**self.given)[0]

    def refused(self, message: str) -> None:
        cache = self.given["cache"]
        before = cache.clone()
        with pytest.raises(ValueError, match=f"kernels: .*{message}"):
            self.run()
        if cache.device.type == "cpu":
            assert torch.equal(cache, before), "nothing is written"


def changed(values: Tensor, value: int) -> Tensor:
    """With another last value."""
    values = values.clone()
    values.view(-1)[-1] = value
    return values


@torch.no_grad()
def test_what_is_in_order_is_not_refused() -> None:
    chain, packed = Call().run(), Call().packed().run()
    assert chain.shape == (3, 4, 16) and packed.shape == (12, 16) and packed.isfinite().all()
    last = torch.full((3, 4), 5)
    assert Call().chain(last_visible=last).run().isfinite().all()
    assert Call().with_(tokens=torch.full((3, 3), 5), masks=1, added=torch.ones(3, 1, 16)).run().isfinite().all()


FAR = [-1, -(2**40), 2**40, 2**62]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("sentence", [3, *FAR]),
        ("slot", [8, *FAR]),
        ("last_visible", [6, 8, *FAR]),
        ("position", [-1, -(2**40)]),
        ("slots", [9, -1, 2**40]),
    ],
)
@torch.no_grad()
def test_layouts_that_point_outside_are_refused(field: str, values: list[int]) -> None:
    outside = "the layout points outside of the cache"
    for value in values:
        layout = Call().packed().given["layout"]
        Call().packed(**{field: value if field == "slots" else changed(getattr(layout, field), value)}).refused(outside)
        if field == "slot":
            # Row 0 of the last sentence gets this slot, the others those after it.
            Call().chain(lengths=torch.tensor([2, 0, value - 3 if value == 8 else value])).refused(outside)
        if field == "last_visible":
            Call().chain(last_visible=changed(torch.full((3, 4), 5), value)).refused(outside)
    Call().chain(span=Span(0, 5)).refused(outside)
    # The source has fewer sentences than the cache.
    call = Call()
    call.with_(cross=call.given["cross"][:, :2].contiguous(), cross_allowed=None).refused(outside)


@pytest.mark.parametrize("token", [VOCABULARY + 1, *FAR])
@torch.no_grad()
def test_tokens_outside_of_the_vocabulary_are_refused(token: int) -> None:
    for call in (Call(), Call().packed()):
        call.with_(tokens=changed(call.given["tokens"], token)).refused("a token is outside of the vocabulary")


@torch.no_grad()
def test_masks_that_are_fed_nothing_are_refused() -> None:
    message = "a mask is fed nothing"
    for call in (Call(), Call().packed()):
        call.with_(tokens=changed(call.given["tokens"], VOCABULARY))
        assert call.run().isfinite().all()
        call.with_(fed=None).refused(message)
        # The last row is of sentence 2, at position 4.
        call.with_(fed=torch.zeros(3, 4, 16)).refused(message)
        call.with_(fed=torch.zeros(2, 6, 16)).refused(message)
        assert call.with_(fed=torch.zeros(16)).run().isfinite().all()
    Call().with_(tokens=torch.full((3, 3), 5), masks=1, fed=None).refused(message)


def half_as_long(x: Tensor) -> Tensor:
    return x[..., : x.size(-1) // 2].contiguous()


def one_more(x: Tensor) -> Tensor:
    return torch.cat([x, x[:1]])


def one_column_more(x: Tensor) -> Tensor:
    return torch.cat([x, x[..., :1]], dim=-1)


def strided(x: Tensor) -> Tensor:
    return torch.stack([x, x], dim=-1)[..., 0]


FLOATS: list[Callable[[Tensor], Tensor]] = [Tensor.double, Tensor.half, Tensor.int, lambda x: x.to("meta")]
NUMBERS: list[Callable[[Tensor], Tensor]] = [Tensor.int, Tensor.float, Tensor.bool, lambda x: x.to("meta"), one_more]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cache", [*FLOATS, half_as_long, one_more, strided, lambda x: x.flatten(3), lambda x: x[:, :, :, :1]]),
        ("cross", [*FLOATS, half_as_long, one_more, strided, lambda x: x[:, :, :, :1]]),
        ("cross_allowed", [Tensor.float, Tensor.int, lambda x: x.to("meta"), half_as_long, one_more, one_column_more]),
        ("fed", [*FLOATS, half_as_long, strided, one_column_more, lambda x: x[0], lambda x: x[None]]),
        ("tokens", [*NUMBERS, one_column_more, lambda x: x[None], lambda x: x.flatten()]),
    ],
)
@torch.no_grad()
def test_tensors_of_other_types_and_shapes_are_refused(name: str, changes: list[Callable[[Tensor], Tensor]]) -> None:
    for change in changes:
        call = Call()
        wrong = change(call.given[name])
        with pytest.raises(ValueError):
            call.with_(**{name: wrong}).run()


@pytest.mark.parametrize("change", [*NUMBERS, half_as_long])
@torch.no_grad()
def test_layouts_of_other_types_and_shapes_are_refused(change: Callable[[Tensor], Tensor]) -> None:
    for field in ("sentence", "position", "slot", "last_visible"):
        layout = Call().packed().given["layout"]
        Call().packed(**{field: change(getattr(layout, field))}).refused("layout")
    Call().chain(lengths=change(torch.tensor([2, 0, 1]))).refused("lengths")
    Call().chain(last_visible=change(torch.full((3, 4), 5))).refused("last visible slots")
    Call().chain(last_visible=one_column_more(torch.full((3, 4), 5))).refused("last visible slots")


@torch.no_grad()
def test_rows_that_do_not_fit_their_layout_are_refused() -> None:
    Call().chain(width=5).refused("in a chain of 5")
    Call().with_(masks=1).refused("in a chain of 4")
    Call().with_(tokens=torch.full((3, 5), 5), masks=-1).refused("masks after the tokens")
    layout = Call().packed().given["layout"]
    square = {name: getattr(layout, name).view(3, 4) for name in ("sentence", "position", "slot", "last_visible")}
    Call().packed(**square).with_(tokens=torch.full((3, 4), 5)).refused("packed")
    # These are for chains only.
    Call().packed().with_(tokens=torch.full((11,), 5), masks=1).refused("masks after the tokens")
    Call().packed().with_(added=torch.zeros(1, 16)).refused("packed rows")


@pytest.mark.parametrize(
    "added",
    [
        torch.zeros(3, 2, 16),
        torch.zeros(3, 5, 16),
        torch.zeros(2, 1, 16),
        torch.zeros(3, 1, 15),
        torch.zeros(1, 3, 1, 16),
        torch.zeros(3, 1, 16, dtype=torch.double),
        torch.zeros(3, 1, 16, device="meta"),
    ],
    ids=lambda added: f"{added.dtype} {list(added.shape)} {added.device}",
)
@torch.no_grad()
def test_what_is_added_must_fit(added: Tensor) -> None:
    Call().with_(added=added).refused("added")


@settings(STEADY, max_examples=some(200))
@given(
    name=st.sampled_from(["sentence", "position", "slot", "last_visible", "tokens"]),
    row=st.integers(0, 11),
    value=st.one_of(st.integers(-3, 40), st.integers(-(2**63), 2**63 - 1)),
)
@torch.no_grad()
def test_a_step_is_run_or_refused(name: str, row: int, value: int) -> None:
    """Whatever stands in one row: the result is finite, or there is none."""
    call = _call()
    layout = call.given["layout"].spelled_out()
    tokens = call.given["tokens"].flatten()
    values = (tokens if name == "tokens" else getattr(layout, name)).clone()
    values[row] = value
    limits = {"sentence": 3, "position": 2**63, "slot": 8, "last_visible": 6, "tokens": VOCABULARY + 1}
    given = {**call.given, "tokens": tokens, "layout": layout, "cache": torch.zeros(2, 3, 8, 2, 4, 4)}
    given |= {"tokens": values} if name == "tokens" else {"layout": replace(layout, **{name: values})}
    if 0 <= value < limits[name]:
        assert call.layers.step(**given)[0].isfinite().all()
    else:
        with pytest.raises(ValueError, match="kernels: "):
            call.layers.step(**given)


_calls: list[Call] = []


def _call() -> Call:
    """One for all examples."""
    if not _calls:
        _calls.append(Call())
    return _calls[0]


@pytest.mark.parametrize("engine_can", [True, False], ids=["compiled", "operations"])
@torch.no_grad()
def test_an_output_of_another_width_than_the_shared_embedding_is_no_garbage(engine_can: bool) -> None:
    """`--share-decoder-input-output-embed --decoder-output-dim` below the width: fairseq fails at it, and so do we."""
    task = make_task(VOCABULARY)
    options = {"share_decoder_input_output_embed": True, "decoder_output_dim": 24, "decoder_embed_dim": 36}
    model = make_transformer(task, 1, ending=False, encoder_embed_dim=36, **options)
    sample = make_sample(task, [5, 2])
    with pytest.raises(RuntimeError, match="shape"):
        fairseq_greedy([model], task, sample)
    cached = CachedDecoder(model.decoder, make_engine(compiled=engine_can))
    cached.start(model.encoder.forward_torchscript(sample["net_input"]))
    hidden = cached.step(torch.full((2, 3), 5), Chain(torch.zeros(2, dtype=torch.long), Span(0, 0), 3))
    assert hidden.shape == (2, 3, 24)
    with pytest.raises(
        ValueError if engine_can else RuntimeError, match="input of a linear" if engine_can else "shape"
    ):
        cached.project(hidden)


def test_paths_of_what_is_not_there_are_refused() -> None:
    kernels = Kernels.build()
    assert kernels is not None
    transition = TransitionScores(VOCABULARY, 4, width=6, state=5)
    scores, hidden = torch.randn(2, 3, VOCABULARY), torch.randn(2, 3, 6)
    choose = kernels.path(transition, torch.arange(VOCABULARY))
    assert choose is not None and choose(scores, hidden, torch.tensor([0, VOCABULARY - 1]), False)[0].shape == (2, 3)
    for first in (torch.tensor([0, VOCABULARY]), torch.tensor([-1, 0]), torch.tensor([0, 2**40])):
        with pytest.raises(ValueError, match="outside of the vocabulary"):
            choose(scores, hidden, first, False)
    first = torch.tensor([0, 5])
    for wrong in (first[:1], first.int(), first.float(), first.to("meta"), first[None]):
        with pytest.raises(ValueError, match="tokens before paths"):
            choose(scores, hidden, wrong, False)
    for wrong in (scores[..., 1:], scores.double(), scores.to("meta")):
        with pytest.raises(ValueError, match="scores of paths"):
            choose(wrong, hidden, first, False)
    for wrong in (hidden[..., 1:], hidden.double(), hidden[:1]):
        with pytest.raises(ValueError, match="hidden states of paths"):
            choose(scores, wrong, first, False)
    for vocabulary in (torch.arange(1, VOCABULARY + 1), torch.arange(0), torch.tensor([-1])):
        with pytest.raises(ValueError, match="transitions"):
            kernels.path(transition, vocabulary)
    with pytest.raises(ValueError, match="ids"):
        kernels.path(transition, torch.arange(VOCABULARY).int())


def test_scores_that_are_no_numbers_have_a_best_one_all_the_same() -> None:
    """Which one does not matter, as long as it is one."""
    engine = make_engine()
    scores = torch.full((1, 3, 1000), torch.nan)
    scores[0, 1, :500] = 1.0
    assert ((engine.argmax(scores) >= 0) & (engine.argmax(scores) < 1000)).all()

"""`--decoder fast-beam` gives what fairseq's own beam search gives: all hypotheses, their order, their scores."""

import random
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq_plugins.decoding.engine.native.beam import choose_hypotheses
from fairseq_plugins.decoding.engine.native.kernels import Packing
from fairseq_plugins.decoding.one_call import ITERATIONS
from fairseq_plugins.decoding.one_call_of_beams import BeamsInOneCall
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding import generator
from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.engine.engine import Engine, make_engine
from fairseq_plugins.decoding.engine.layout import BeamLayout, Span
from fairseq_plugins.decoding.methods.fast_beam import BeamVerifier
from fairseq_plugins.decoding.search.beam import BeamSearch, choose
from fairseq_plugins.decoding.state import Beams, Candidates, no_draft
from fairseq_plugins.errors import ConfigurationError
from tests.decoding.engine.sanitizer_driver import right_beams
from tests.strategies import SEARCHES, SOURCES, STEADY, STEADY_MODELS, TRANSFORMERS, some
from tests.support import (
    Options,
    all_ids,
    assert_same_hypotheses,
    assert_same_output,
    decode,
    decode_all,
    fairseq_beam,
    fairseq_greedy,
    make_sample,
    make_state,
    make_task,
    make_transformer,
)

EOS, PAD = 2, 1
BEAMS = [1, 2, 4, 5, 10, 16]
ENGINES = {"kernels": make_engine, "PyTorch": Engine}
FAST_BEAM = Options("fast-beam")


def prefixes(sentences: int, width: int, vocabulary: int, seed: int, ends: bool) -> torch.Tensor:
    """Forced beginnings [B, width + 1] of 1 to `width` words; the last one is complete with EOS where `ends`."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(4, vocabulary, (sentences, width + 1), generator=generator)
    lengths = torch.randint(1, width + 1, (sentences,), generator=generator)
    rows[torch.arange(width + 1) >= lengths[:, None]] = PAD
    if ends:
        rows[-1, lengths[-1]] = EOS
    return rows


@pytest.mark.parametrize("engine", list(ENGINES))
@settings(STEADY_MODELS, max_examples=some(60))
@given(
    options=TRANSFORMERS,
    vocabulary=st.sampled_from([12, 40, 300]),
    sources=SOURCES,
    beam=st.sampled_from(BEAMS),
    search=SEARCHES,
    prefix=st.sampled_from([0, 0, 1, 4]),
    ends=st.booleans(),
    active=st.sampled_from([0, 0, 1, 3]),
    seed=st.integers(0, 1000),
)
def test_equals_fairseq(
    engine: str,
    options: dict[str, Any],
    vocabulary: int,
    sources: list[int],
    beam: int,
    search: dict[str, Any],
    prefix: int,
    ends: bool,
    active: int,
    seed: int,
) -> None:
    task = make_task(vocabulary)
    model = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    if prefix:
        # Longer outputs than the prefix, so that something ends after it.
        search = {**search, "max_len_b": max(search["max_len_b"], prefix + 1), "max_len_a": 0}
        search["prefix_tokens"] = prefixes(len(sources), prefix, vocabulary, seed, ends)
        active = 0
    expected = fairseq_beam([model], task, sample, beam, **search)
    found, stats = decode(
        [model], task, sample, FAST_BEAM, engine=ENGINES[engine](), beam_size=beam, active_sentences=active, **search
    )
    assert_same_hypotheses(found, expected)
    assert [sum(sentence.emitted) for sentence in stats] == [len(best["tokens"]) for best, *_ in expected]
    longest = [max(len(hypothesis["tokens"]) for hypothesis in every) for every in expected]
    assert [sentence.iterations for sentence in stats] == longest


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("beam", BEAMS)
def test_every_batch_size(beam: int, batch_size: int) -> None:
    task = make_task(200)
    model = make_transformer(task, 5)
    lengths = [(7 * number) % 23 for number in range(32)]
    samples = [make_sample(task, lengths[begin : begin + batch_size], begin) for begin in range(0, 32, batch_size)[:4]]
    expected = [found for sample in samples for found in fairseq_beam([model], task, sample, beam, max_len_b=30)]
    # PyTorch's operations, which take longest, with every beam and with every batch size, but not with all of both.
    engines = ENGINES.values() if beam == 5 or batch_size == 7 else [make_engine]
    for engine in engines:
        found, _ = decode_all([model], task, samples, FAST_BEAM, engine=engine(), beam_size=beam, max_len_b=30)
        assert_same_hypotheses(found, expected)
        assert all(len(every) == beam for every in found)


@settings(STEADY_MODELS, max_examples=some(12))
@given(
    options=st.lists(TRANSFORMERS, min_size=2, max_size=3),
    sources=SOURCES,
    beam=st.sampled_from(BEAMS),
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_ensembles_equal_fairseqs(
    options: list[dict[str, Any]], sources: list[int], beam: int, search: dict[str, Any], seed: int
) -> None:
    task = make_task(60)
    models = [make_transformer(task, seed + index, **choice) for index, choice in enumerate(options)]
    sample = make_sample(task, sources, seed)
    expected = fairseq_beam(models, task, sample, beam, **search)
    found, _ = decode(models, task, sample, FAST_BEAM, beam_size=beam, **search)
    assert_same_hypotheses(found, expected)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_models_that_never_end(engine: str) -> None:
    """All hypotheses end at the longest length, with the EOS that is forced there."""
    task = make_task(60)
    model = make_transformer(task, 1, ending=False, max_target_positions=20)
    sample = make_sample(task, [5, 0, 18])
    expected = fairseq_beam([model], task, sample, 4, max_len_b=200)
    assert max(len(best["tokens"]) for best, *_ in expected) == 20
    found, _ = decode([model], task, sample, FAST_BEAM, engine=ENGINES[engine](), beam_size=4, max_len_b=200)
    assert_same_hypotheses(found, expected)


@settings(STEADY_MODELS, max_examples=some(30))
@given(
    options=TRANSFORMERS,
    sources=SOURCES,
    beam=st.sampled_from(BEAMS),
    search=SEARCHES,
    active=st.sampled_from([0, 0, 1, 3]),
    seed=st.integers(0, 1000),
)
def test_one_call_is_the_loop(
    options: dict[str, Any], sources: list[int], beam: int, search: dict[str, Any], active: int, seed: int
) -> None:
    """The whole search in one call, and the loop in Python with single steps: to the last bit."""
    task = make_task(60)
    model = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    how = {"beam_size": beam, "active_sentences": active, **search}
    with mock.patch.object(BeamsInOneCall, "run", autospec=True, side_effect=BeamsInOneCall.run) as run:
        found, stats = decode([model], task, sample, FAST_BEAM, **how)
    assert run.called == (how.get("temperature", 1.0) == 1.0)
    with mock.patch.object(generator, "_in_one_call", lambda method: None):
        expected, counted = decode([model], task, sample, FAST_BEAM, **how)
    assert_same_hypotheses(found, expected, tolerance=0)
    assert [(own.iterations, own.emitted) for own in stats] == [(own.iterations, own.emitted) for own in counted]


def test_calls_are_few() -> None:
    """Outputs of 48 tokens and more take a second call, for Ctrl-C to be heard; nothing else comes between."""
    task = make_task(200)
    model = make_transformer(task, 5, ending=False)
    with mock.patch.object(BeamsInOneCall, "run", autospec=True, side_effect=BeamsInOneCall.run) as run:
        found, _ = decode([model], task, make_sample(task, [7, 3, 12]), FAST_BEAM, beam_size=5, max_len_b=60)
    assert max(len(best["tokens"]) for best, *_ in found) > ITERATIONS and run.call_count == 2


def test_a_model_without_any_score_is_told_as_such() -> None:
    """Where all scores are NaN nothing may end, at which fairseq breaks off as well."""
    task = make_task(200)
    model = make_transformer(task, 5)
    torch.nn.init.constant_(model.decoder.output_projection.weight, torch.nan)
    with pytest.raises(ConfigurationError, match="nothing may end after 6 tokens"):
        decode([model], task, make_sample(task, [7, 3]), FAST_BEAM, beam_size=2, max_len_b=6)


def test_sources_without_padding_and_with_much() -> None:
    task = make_task(60)
    model = make_transformer(task, 3)
    for lengths in ([9, 9, 9], [40, 0, 1, 22]):
        sample = make_sample(task, lengths)
        expected = fairseq_beam([model], task, sample, 5, max_len_b=25)
        assert_same_hypotheses(decode([model], task, sample, FAST_BEAM, beam_size=5, max_len_b=25)[0], expected)


def test_one_beam_is_greedy() -> None:
    task = make_task(60)
    model = make_transformer(task, 3)
    sample = make_sample(task, [9, 0, 4, 30])
    expected = fairseq_greedy([model], task, sample, max_len_b=25)
    assert_same_output(decode([model], task, sample, FAST_BEAM, beam_size=1, max_len_b=25)[0], expected)
    assert_same_output(decode([model], task, sample, Options("greedy"), max_len_b=25)[0], expected)


@pytest.mark.parametrize("active", [0, 3])
def test_repetition_is_left_to_fairseqs_own_blocker(active: int) -> None:
    """With a blocker that works, as fairseq's CUDA extension does; both searches call it."""

    def forward(self: NGramRepeatBlock, tokens: Any, log_probs: Any, sentences: int, beam: int, step: int) -> Any:
        assert tokens.size(0) == log_probs.size(0) == sentences * beam and tokens.size(1) == 22
        size = self.no_repeat_ngram_size
        for row, said in enumerate(tokens[:, : step + 1].tolist()):
            ends = range(size - 1, len(said))
            again = [said[end] for end in ends if said[end - size + 1 : end] == said[len(said) - size + 1 :]]
            log_probs[row, again] = -torch.inf
        return log_probs

    task = make_task(12)
    model = make_transformer(task, 1, ending=False)
    sample = make_sample(task, [5, 9, 0, 3, 3, 14])
    options = {"max_len_b": 20, "no_repeat_ngram_size": 2}
    free = fairseq_beam([model], task, sample, 4, max_len_b=20)
    with (
        mock.patch.object(NGramRepeatBlock, "forward", forward),
        mock.patch("fairseq.ngram_repeat_block.is_cuda_extension_usable", lambda: True),
    ):
        expected = fairseq_beam([model], task, sample, 4, **options)
        found, _ = decode([model], task, sample, FAST_BEAM, beam_size=4, active_sentences=active, **options)
    assert_same_hypotheses(found, expected)
    assert all_ids(expected) != all_ids(free)


def test_repetition_that_fairseq_does_not_forbid(caplog: pytest.LogCaptureFixture) -> None:
    """Its code without the extension forbids nothing: when it does, this is to be honoured."""
    task = make_task(12)
    model = make_transformer(task, 1, ending=False)
    sample = make_sample(task, [5, 9, 0])
    expected = fairseq_beam([model], task, sample, 4, max_len_b=20, no_repeat_ngram_size=2)
    assert all_ids(expected) == all_ids(fairseq_beam([model], task, sample, 4, max_len_b=20))
    found, _ = decode([model], task, sample, FAST_BEAM, beam_size=4, max_len_b=20, no_repeat_ngram_size=2)
    assert_same_hypotheses(found, expected)
    assert "--no-repeat-ngram-size: forbids nothing" in caplog.text


def test_a_prefix_that_is_an_end_only() -> None:
    """With several beams fairseq breaks off: only one hypothesis can end."""
    task = make_task(40)
    model = make_transformer(task, 2)
    sample = make_sample(task, [4, 6])
    prefix = torch.tensor([[EOS], [7]])
    with pytest.raises(AssertionError):
        fairseq_beam([model], task, sample, 3, max_len_b=9, prefix_tokens=prefix)
    with pytest.raises(ConfigurationError, match="--prefix-size"):
        decode([model], task, sample, FAST_BEAM, beam_size=3, max_len_b=9, prefix_tokens=prefix)
    expected = fairseq_beam([model], task, sample, 1, max_len_b=9, prefix_tokens=prefix)
    found, _ = decode([model], task, sample, FAST_BEAM, beam_size=1, max_len_b=9, prefix_tokens=prefix)
    assert_same_hypotheses(found, expected)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"match_source_len": True}, "--match-source-len"), ({"tokens_to_suppress": ("w3",)}, "supp")],
)
def test_other_searches_are_refused(options: dict[str, Any], named: str) -> None:
    task = make_task(40)
    with pytest.raises(ConfigurationError, match=named):
        decode([make_transformer(task, 2)], task, make_sample(task, [3]), FAST_BEAM, beam_size=2, **options)


@pytest.mark.parametrize("engine", list(ENGINES))
@settings(STEADY, max_examples=some(200))
@given(data=st.data(), size=st.integers(1, 4), sentences=st.integers(1, 3))
def test_what_goes_on(engine: str, data: st.DataObject, size: int, sentences: int) -> None:
    """Of the candidates, in their order, the first that do not end; what ends among the best is an output."""
    width, total = 2 * size, sentences * size
    rows = [
        data.draw(st.lists(st.sampled_from([EOS, 5, 6, 7]), min_size=width, max_size=width).filter(_may_go_on))
        for _ in range(sentences)
    ]
    state = make_state(torch.arange(total * 6).view(total, 6), [2] * total, max_len=4)
    state.sentences = [sentence for sentence in range(sentences) for _ in range(size)]
    state.beams = Beams.begin(size, sentences, state.tokens)
    state.beams.scores = -torch.arange(total).float()
    state.beams.holders[:, 1] = size - 1
    scores = -torch.arange(sentences * width).view(sentences, -1).float() - 50
    places = st.lists(st.integers(0, size - 1), min_size=width, max_size=width)
    parents = torch.tensor([data.draw(places) for _ in rows])
    search = BeamSearch(size, ENGINES[engine]())
    advance = search.advance(state, no_draft(state), Candidates(scores, torch.tensor(rows), parents))
    kept = advance.tokens.view(sentences, size).tolist()
    ended = [place for place, _ in advance.hypotheses]
    assert advance.ended == [ended.count(place) for place in range(sentences)]
    for place, row in enumerate(rows):
        alive = [rank for rank, token in enumerate(row) if token != EOS][:size]
        assert kept[place] == [row[rank] for rank in alive]
        chosen = slice(place * size, (place + 1) * size)
        assert advance.scores[chosen].tolist() == scores[place, alive].tolist()
        assert advance.parents[chosen].tolist() == [place * size + int(parents[place, rank]) for rank in alive]
        gained = scores[place, alive] - state.beams.scores[advance.parents[chosen]]
        assert advance.log_probs[chosen, 0].tolist() == gained.tolist()
        assert ended.count(place) == row[:size].count(EOS)
        assert advance.finished[chosen] == [row[:size].count(EOS) == size] * size
    for place, hypothesis in advance.hypotheses:
        rank = int((scores[place] == hypothesis.score).nonzero())
        first, row = place * size, place * size + int(parents[place, rank])
        # The first token stands in the sentence's last row, the second in the hypothesis' own.
        assert hypothesis.tokens.tolist() == [(first + size - 1) * 6 + 1, row * 6 + 2, EOS]
        assert rank < size and rows[place][rank] == EOS


def _may_go_on(tokens: list[int]) -> bool:
    return tokens.count(EOS) <= len(tokens) // 2


@settings(STEADY, max_examples=some(200))
@given(data=st.data(), size=st.integers(1, 4), sentences=st.integers(1, 3), missing=st.integers(0, 2))
def test_kernels_choose_what_the_reference_chooses(
    data: st.DataObject, size: int, sentences: int, missing: int
) -> None:
    """Also where scores are -inf, places are ignored, or candidates are missing, as in a tiny vocabulary."""
    kernels = make_engine().kernels
    assert kernels is not None
    count = 2 * size

    def drawn(values: st.SearchStrategy, width: int) -> torch.Tensor:
        lists = st.lists(values, min_size=width, max_size=width)
        return torch.tensor([data.draw(lists) for _ in range(sentences)])

    tokens, parents = drawn(st.sampled_from([EOS, 5, 6]), count), drawn(st.integers(0, size - 1), count)
    scores = drawn(st.sampled_from([-torch.inf, -1.5, -2.25]), count).float()
    parents[:, count - min(missing, size) :] = -1
    beams = Beams.begin(size, sentences, torch.zeros(0, 3, dtype=torch.long))
    beams.scores = drawn(st.sampled_from([-0.5, -1.0]), size).flatten().float()
    beams.ignored = drawn(st.booleans(), size)
    before = beams.ignored.clone()
    found = choose_hypotheses(kernels.functions, (scores, tokens, parents), beams.scores, beams.ignored, EOS)
    expected = choose(Candidates(scores, tokens, parents), beams, EOS)
    assert torch.equal(beams.ignored, before)
    for name in ("tokens", "parents", "scores", "log_probs", "ignored"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert (found.ends is None) == (expected.ends is None)
    assert found.ends is None or torch.equal(found.ends, expected.ends)


def test_steps_of_the_kernels_are_the_references() -> None:
    """Hypotheses of any ancestry, of sentences of different lengths: the same candidates and the same cache."""
    task = make_task(200)
    model = make_transformer(task, 4)
    sample = make_sample(task, [7, 0, 3])
    size, capacity = 5, 12
    reference, compiled = (BeamVerifier([model], engine, beam=size) for engine in (Engine(), make_engine()))
    assert compiled.decoders[0].native_output is not None
    generator = torch.Generator().manual_seed(0)
    # Two sentences are behind the third by a step and by two.
    with torch.inference_mode():
        reference.start(sample)
        compiled.start(sample)
    state = make_state(torch.randint(4, 200, (15, capacity), generator=generator), [0] * 15, max_len=10, min_len=3)
    state.beams = Beams.begin(size, 3, state.tokens)
    with torch.inference_mode():
        for step in range(9):
            lengths = [max(0, step - behind) for behind in (0, 1, 2) for _ in range(size)]
            state.lengths, state.host_lengths = torch.tensor(lengths), lengths
            # What stands before the length was written by other rows; from there on a row is by itself.
            own = torch.arange(size).repeat(3)[:, None].expand(15, capacity)
            others = torch.randint(size, (15, capacity), generator=generator)
            others[:, 0] = 0
            past = torch.arange(capacity) < state.lengths[:, None]
            state.beams.holders = torch.where(past, others, own).contiguous()
            state.beams.scores = -3 * torch.rand(15, generator=generator) * (state.lengths > 0)
            expected = reference.verify(state, no_draft(state))
            layout = BeamLayout(state.lengths, state.span, size, state.beams.holders)
            ran = compiled.decoders[0].best_continuations(
                state.last_tokens()[:, 0], layout, state.beams.scores, state.constraints
            )
            assert ran is not None
            found = Candidates(*ran)
            counts = expected.parents >= 0
            assert torch.equal(found.tokens[counts], expected.tokens[counts])
            assert torch.equal(found.parents[counts], expected.parents[counts])
            torch.testing.assert_close(found.scores[counts], expected.scores[counts], rtol=0, atol=1e-4)


def test_int8_of_the_kernels_is_the_references() -> None:
    task = make_task(200)
    model = make_transformer(task, 6)
    sample = make_sample(task, [5, 0, 12, 3])
    found, expected = (
        decode([model], task, sample, FAST_BEAM, engine=make_engine(compiled, int8=True), beam_size=4, max_len_b=20)[0]
        for compiled in (True, False)
    )
    assert_same_hypotheses(found, expected)


@pytest.mark.parametrize("lengths", [[11], [3, 8, 0, 21, 5, 5, 9]])
def test_threads_change_nothing(lengths: list[int]) -> None:
    """Sentences are shared out, and of a single one the vocabulary: bit for bit the same scores."""
    task = make_task(6000)
    sizes = {"encoder_embed_dim": 64, "decoder_embed_dim": 64, "decoder_ffn_embed_dim": 128}
    model = make_transformer(task, 7, ending=False, **sizes)
    sample = make_sample(task, lengths)
    outputs = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        outputs.append(decode([model], task, sample, FAST_BEAM, beam_size=5, max_len_b=12)[0])
    for other in outputs[1:]:
        assert_same_hypotheses(other, outputs[0], tolerance=1e-6)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("tokens", torch.full((4,), 200)),
        ("lengths", torch.tensor([1, 1, 1, 32])),
        ("lengths", torch.tensor([1, 2, 1, 1])),
        ("holders", torch.full((4, 8), 2)),
        ("places", torch.tensor([0, 2])),
    ],
)
def test_kernels_read_nothing_outside(name: str, wrong: torch.Tensor) -> None:
    task = make_task(200)
    verifier = BeamVerifier([make_transformer(task, 6)], make_engine(), beam=2)
    with torch.inference_mode():
        verifier.start(make_sample(task, [5, 3]))
        decoder = verifier.decoders[0]
        given = {
            "tokens": torch.full((4,), 7),
            "lengths": torch.ones(4, dtype=torch.long),
            "holders": torch.zeros(4, 8, dtype=torch.long),
            "places": torch.arange(2),
            name: wrong,
        }
        decoder.places = given["places"]
        layout = BeamLayout(given["lengths"], Span(1, 7), 2, given["holders"])
        with pytest.raises(ValueError, match="kernels: "):
            decoder.best_continuations(given["tokens"], layout, torch.zeros(4), Constraints(PAD, 3, EOS, 20))


@pytest.mark.parametrize("seed", range(40))
def test_random_steps_of_the_kernels(seed: int) -> None:
    torch.manual_seed(seed)
    kernels = make_engine(packing=list(Packing)[seed % 3]).kernels
    assert kernels is not None
    right_beams(kernels, random.Random(seed))

"""Drafting and verifying give exactly the output of fairseq's own generator at beam 1."""

import math
import random
import time
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search.rules import TopBeta
from fairseq_plugins.models.block_nat import BlockNat
from tests.cases import Case, cases
from tests.errors import error_about
from tests.learned import learned_drafter
from tests.strategies import (
    BLOCK_SIZES,
    DRAFTERS,
    FEATURE_DRAFTERS,
    SEARCHES,
    SOURCES,
    TRANSFORMERS,
    UNSHRUNK,
    example_count,
)
from tests.support import (
    Options,
    Script,
    ScriptedDrafter,
    always_right,
    always_wrong,
    assert_same_output,
    decode,
    decode_all,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
    right_then_wrong,
)

EOS = 2


def ragged_prefix(sample: dict[str, Any], vocabulary: int, seed: int) -> torch.Tensor:
    """Return prefixes of 0 to 5 words, one of them complete with EOS, padded on the right."""
    generator = random.Random(seed)
    rows = [[generator.randrange(4, vocabulary) for _ in range(generator.randrange(6))] for _ in sample["id"]]
    rows[-1].append(EOS)
    width = max(1, max(len(row) for row in rows))
    return torch.tensor([row + [1] * (width - len(row)) for row in rows])


@settings(UNSHRUNK, max_examples=example_count(40))
@given(
    case=cases([12, 40, 300], st.one_of(DRAFTERS, FEATURE_DRAFTERS)),
    block_size=BLOCK_SIZES,
    with_prefix=st.sampled_from([False, False, True]),
)
def test_greedy_and_gad_equal_fairseq(case: Case, block_size: int, with_prefix: bool) -> None:
    prefix = {"prefix_tokens": ragged_prefix(case.sample, case.vocabulary, case.seed)} if with_prefix else {}
    expected = case.fairseq(**prefix)
    greedy, _ = case.decode(Options("greedy"), **prefix)
    assert_same_output(greedy, expected)
    drafted, stats = case.decode(Options("gad", block_size), **prefix)
    assert_same_output(drafted, expected)
    assert [sentence.tokens for sentence in stats] == [len(tokens) for tokens in ids(expected)]


class Batch:
    """Sentences of many lengths, and drafters trained on some of them."""

    SOURCES = [0, 1, 33, 7, 2, 19, 0, 40, *range(24)]
    DRAFTERS = {
        "prefix-causal": {"drafter_attention": "prefix-causal"},
        "full": {"drafter_attention": "full"},
        "features": {"drafter_context": "features"},
    }

    def __init__(self) -> None:
        self.task = make_task(100)
        self.verifier = make_transformer(self.task, 11)
        self.sample = make_sample(self.task, self.SOURCES)
        self.outputs = ids(fairseq_greedy([self.verifier], self.task, self.sample, max_len_b=40))
        self.drafters: dict[str, BlockNat] = {}

    def drafter(self, kind: str) -> BlockNat:
        if kind not in self.drafters:
            self.drafters[kind] = learned_drafter(
                self.task, self.verifier, self.sample, self.outputs, **self.DRAFTERS[kind]
            )
        return self.drafters[kind]


@pytest.fixture(scope="module")
def batch() -> Batch:
    batch = Batch()
    assert len({len(tokens) for tokens in batch.outputs}) >= 8
    return batch


@pytest.mark.parametrize("kind", list(Batch.DRAFTERS))
@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("block_size", [1, 3, 10, 25])
def test_every_batch_and_block_size_gives_the_same(batch: Batch, batch_size: int, block_size: int, kind: str) -> None:
    everything = batch.sample["net_input"]["src_tokens"]
    # Only those that drafters were trained on: one at a time all would take too long.
    sources = batch.SOURCES[:12] if batch_size == 1 else batch.SOURCES
    samples = []
    for begin in range(0, len(sources), batch_size):
        sample = make_sample(batch.task, sources[begin : begin + batch_size])
        width = sample["net_input"]["src_tokens"].size(1)
        sample["net_input"]["src_tokens"] = everything[begin : begin + batch_size, -width:]
        samples.append(sample)
    how = Options("gad", block_size)
    hypotheses, stats = decode_all([batch.verifier], batch.task, samples, how, batch.drafter(kind), max_len_b=40)
    assert ids(hypotheses) == batch.outputs[: len(sources)]
    # Drafts of 10 copies of the most frequent token would give 1.24.
    assert emitted_per_iteration(stats) > {1: 1.15, 3: 1.25}.get(block_size, 1.3)


@pytest.mark.parametrize(
    "how",
    [Options("greedy"), Options("gad", 5, fp32_drafts=True), Options("iad"), Options("gs-jacobi", 4)],
    ids=lambda how: how.spec.name,
)
@pytest.mark.parametrize("active", [0, 5])
def test_steps_report_every_iteration(batch: Batch, how: Options, active: int) -> None:
    """Both backends yield the same steps, which add up to the output of `generate`.

    Only the loop in PyTorch drafts beyond EOS and the maximum length.
    """
    drafter = batch.drafter("features") if how.spec.name == "gad" else None
    sizes = [len(tokens) for tokens in batch.outputs]
    yielded = []
    for engine in (None, Engine()):
        generator, stats = make_generator(
            [batch.verifier], batch.task, how, drafter, engine=engine, max_len_b=40, active_sentences=active
        )
        steps, steps_of_sentences = generator.steps(batch.sample), []
        try:
            while True:
                steps_of_sentences.append(next(steps))
        except StopIteration as end:
            assert ids(end.value) == batch.outputs
        of_sentences = list(zip(*steps_of_sentences, strict=True))
        for sentence, own in enumerate(of_sentences):
            assert [token for step in own for token in step.tokens] == batch.outputs[sentence]
            assert [len(step.tokens) for step in own if step.tokens] == stats.recorded[sentence].emitted
            assert all(step.accepted <= min(step.drafted, len(step.tokens)) for step in own)
            done = 0
            for step in own:
                done += len(step.tokens)
                assert step.finished == (done == sizes[sentence])
        yielded.append([[step for step in own if step.tokens] for own in of_sentences])
    assert (how.spec.name == "greedy") == all(step.drafted == 0 for own in yielded[0] for step in own)
    for kernels, loop in zip(*(chain.from_iterable(steps) for steps in yielded), strict=True):
        assert kernels == replace(loop, drafted=kernels.drafted) and kernels.drafted <= loop.drafted


@settings(UNSHRUNK, max_examples=example_count(12))
@given(
    options=st.lists(TRANSFORMERS, min_size=2, max_size=3),
    sources=SOURCES,
    block_size=BLOCK_SIZES,
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_ensembles_of_different_shapes_equal_fairseqs(
    options: list[dict[str, Any]], sources: list[int], block_size: int, search: dict[str, Any], seed: int
) -> None:
    task = make_task(60)
    verifiers = [make_transformer(task, seed + index, **choice) for index, choice in enumerate(options)]
    drafter = make_drafter(task, seed)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy(verifiers, task, sample, **search)
    drafted, _ = decode(verifiers, task, sample, Options("gad", block_size), drafter, **search)
    assert_same_output(drafted, expected)
    greedy, _ = decode(verifiers, task, sample, Drafter(), **search)
    assert_same_output(greedy, expected)


SOURCE_LENGTHS = [0, 3, 30, 7, 12, 1, 22]


class Known:
    """A verifier, a batch and fairseq's output for it."""

    def __init__(self, **search: Any) -> None:
        self.search = {"max_len_b": 40, **search}
        self.task = make_task(100)
        self.verifier = make_transformer(self.task, 8, share_decoder_input_output_embed=True)
        self.sample = make_sample(self.task, SOURCE_LENGTHS)
        self.expected = fairseq_greedy([self.verifier], self.task, self.sample, **self.search)
        self.outputs = ids(self.expected)

    def check(self, script: Script, width: int) -> list[int]:
        """Decode with a scripted drafter, compare with fairseq; return the iterations of every sentence."""
        drafted, stats = decode([self.verifier], self.task, self.sample, ScriptedDrafter(script, width), **self.search)
        assert_same_output(drafted, self.expected)
        return [sentence.iterations for sentence in stats]

    @property
    def lengths(self) -> list[int]:
        return [len(tokens) for tokens in self.outputs]


@pytest.fixture(scope="module")
def known() -> Known:
    known = Known()
    assert len(set(known.lengths)) >= 4 and min(known.lengths) < 10 and max(known.lengths) > 20
    return known


@pytest.mark.parametrize("width", [1, 3, 10, 25])
def test_wrong_drafts_add_no_token_and_right_ones_all(known: Known, width: int) -> None:
    assert known.check(always_wrong(known.outputs), width) == known.lengths
    assert known.check(always_right(known.outputs), width) == [math.ceil(n / (width + 1)) for n in known.lengths]


@pytest.mark.parametrize("width", [1, 4, 25])
def test_eos_drafted_everywhere(known: Known, width: int) -> None:
    # Right at EOS only, which the verifier's own token would have added in the same iteration.
    assert known.check(lambda sentence, done, room: [EOS] * room, width) == known.lengths


def test_tokens_after_a_right_eos_are_ignored(known: Known) -> None:
    def script(sentence: int, done: int, width: int) -> list[int]:
        return (known.outputs[sentence][done:] + [5, 6, EOS, 7] * width)[:width]

    assert known.check(script, 10) == [math.ceil(n / 11) for n in known.lengths]


@pytest.mark.parametrize("right", [0, 1, 2, 5, 7])
def test_right_then_wrong(known: Known, right: int) -> None:
    gain = min(right, 7) + 1
    assert known.check(right_then_wrong(known.outputs, right), 7) == [math.ceil(n / gain) for n in known.lengths]


@pytest.mark.parametrize("seed", range(5))
def test_ragged_drafts(known: Known, seed: int) -> None:
    generator = random.Random(seed)

    def script(sentence: int, done: int, width: int) -> list[int]:
        correct = always_right(known.outputs) if generator.random() < 0.7 else always_wrong(known.outputs)
        return correct(sentence, done, generator.randint(0, width))

    iterations = known.check(script, 9)
    assert all(count <= length for count, length in zip(iterations, known.lengths, strict=True))
    assert sum(iterations) < sum(known.lengths)


@pytest.mark.parametrize("max_len", [0, 1, 2, 3, 4, 5, 11, 12, 13])
@pytest.mark.parametrize("width", [1, 4, 10])
def test_length_limit_inside_a_block(max_len: int, width: int) -> None:
    limited = Known(max_len_b=max_len, min_len=min(1, max_len))
    assert max(limited.lengths) == max_len + 1
    expected = [math.ceil(n / (width + 1)) for n in limited.lengths]
    assert limited.check(always_right(limited.outputs), width) == expected
    assert limited.check(always_wrong(limited.outputs), width) == limited.lengths


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("drafter_positions", [12, 20, 64])
@pytest.mark.parametrize("block_size", [1, 10, 25])
def test_outputs_of_maximum_position(learned: bool, drafter_positions: int, block_size: int) -> None:
    """Blocks exceed the position tables of the verifier and of a drafter with a shorter one."""
    task = make_task(60)
    verifier = make_transformer(task, 1, ending=False, max_target_positions=20, decoder_learned_pos=learned)
    drafter = make_drafter(task, 2, max_target_positions=drafter_positions, decoder_learned_pos=learned)
    sample = make_sample(task, [5, 0, 18])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=200)
    assert max(len(tokens) for tokens in ids(expected)) == 20
    drafted, _ = decode([verifier], task, sample, Options("gad", block_size), drafter, max_len_b=200)
    assert_same_output(drafted, expected)


@settings(UNSHRUNK, max_examples=example_count(15))
@given(case=cases(60, DRAFTERS, searches=st.just({"max_len_b": 30})), block_size=BLOCK_SIZES)
def test_strictest_relaxation_is_gad(case: Case, block_size: int) -> None:
    exact, exact_stats = case.decode(Options("gad", block_size))
    strict, strict_stats = case.decode(Options("gad++", block_size, top_beta=1, tau=0.0))
    assert_same_output(strict, exact, tolerance=0.0)
    assert [s.emitted for s in strict_stats] == [s.emitted for s in exact_stats]


def test_relaxed_acceptance_stays_within_fairseqs_limits(known: Known) -> None:
    """Output has no pad, no EOS before the minimum length and no tokens beyond the maximum."""
    script: Script = lambda sentence, done, width: [[EOS, 1, 5][(sentence + i) % 3] for i in range(width)]  # noqa: E731
    drafted, _ = decode(
        [known.verifier],
        known.task,
        known.sample,
        ScriptedDrafter(script, 6),
        rule=TopBeta(1000, math.inf),
        min_len=5,
        max_len_b=8,
    )
    for tokens in ids(drafted):
        assert 6 <= len(tokens) <= 9 and tokens[-1] == EOS and EOS not in tokens[:-1] and 1 not in tokens


def test_scores_of_relaxed_output_are_the_verifiers(known: Known) -> None:
    """Tokens that are not the best have the verifier's log-probability."""
    script: Script = lambda sentence, done, width: [5 + (done + i) % 7 for i in range(width)]  # noqa: E731
    drafted, _ = decode(
        [known.verifier], known.task, known.sample, ScriptedDrafter(script, 4), rule=TopBeta(5, 50.0), max_len_b=20
    )
    assert ids(drafted) != known.outputs
    for row, hypothesis in enumerate(drafted):
        tokens = hypothesis[0]["tokens"]
        previous = torch.cat([torch.tensor([EOS]), tokens[:-1]])[None]
        source = known.sample["net_input"]["src_tokens"][row : row + 1, -SOURCE_LENGTHS[row] - 1 :]
        with torch.no_grad():
            logits = known.verifier(source, torch.tensor([source.size(1)]), previous)[0]
        logits[..., 1] = -math.inf
        expected = logits.log_softmax(-1)[0].gather(1, tokens[:, None])[:, 0]
        unconstrained = slice(1, 20)  # the first token may not be EOS, the 21st must
        torch.testing.assert_close(
            hypothesis[0]["positional_scores"][unconstrained], expected[unconstrained], atol=2e-2, rtol=0
        )


def test_minimum_length_above_the_maximum_is_refused(known: Known) -> None:
    with error_about("--min-len"):
        decode([known.verifier], known.task, known.sample, Drafter(), min_len=9, max_len_b=3)


@pytest.mark.parametrize("decoder", ["greedy", "iad", "fast-beam"])
@pytest.mark.parametrize("engine", [None, Engine()], ids=["native", "torch"])
def test_an_infinite_penalty_forbids_the_unknown_word(decoder: str, engine: Engine | None) -> None:
    task = make_task(12)
    model, sample = make_transformer(task, 1, ending=False), make_sample(task, [5, 9, 0])
    search = {"max_len_b": 15, "unk_penalty": float("inf")}
    generator, _ = make_generator([model], task, Options(decoder), engine=engine, **search)
    assert_same_output(generator.generate([model], sample), fairseq_greedy([model], task, sample, **search))


@pytest.mark.parametrize("streams", [False, True])
def test_times_leave_out_the_set_up(streams: bool) -> None:
    """The kernels are built at the first batch; the first sentence's time, and sums, are those of decoding."""
    task = make_task()
    sample = make_sample(task, [5, 3])
    generator, _ = make_generator([make_transformer(task)], task, Options("greedy"))
    choose, recorded = generator.choose, []

    def slow_choice(*what: Any) -> Any:
        time.sleep(0.5)
        return choose(*what)

    generator.choose, generator.stats.record = slow_choice, lambda batch, seconds: recorded.append(seconds)
    if streams:
        list(generator.steps(sample))
    else:
        generator.generate([], sample)
    assert len(recorded) == 1 and recorded[0] < 0.4

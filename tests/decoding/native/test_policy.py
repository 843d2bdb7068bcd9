"""The drafting policy: it plans for the most tokens a second, explores within a bound, and never changes the output."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.backends import choose_backend
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.trained_drafter import store_survival
from fairseq_plugins.models.block_nat.decoder import SURVIVAL_BINS
from tests.decoding.native.building import CSRC, compiler
from tests.decoding.test_accepted_drafts import known
from tests.decoding.test_lossless import linear
from tests.learned import learned_drafter
from tests.strategies import DETERMINISTIC, example_count
from tests.support import Options, assert_same_output, fairseq_greedy, ids, make_all, make_drafter, make_generator

# They share a trained drafter.
pytestmark = pytest.mark.xdist_group("known")

WIDTH = 6
BINS = SURVIVAL_BINS
# Seconds of a step by its number of sentences, with which drafts save time only for a sentence that is alone.
DEAR_ALONE = {1.0: 9.0, 2.0: 0.01, 100.0: 0.02}


def make_policy(
    step: tuple[float, float] = (1.0, 0.1),
    draft: tuple[float, float] = (0.2, 0.02),
    verify: tuple[float, float] = (1.0, 0.1),
    prepare: float = 0.0,
) -> Any:
    """A policy that knows these costs."""
    policy = kernels().Policy(WIDTH)
    policy.costs = kernels().Costs(linear(*step), linear(*draft), linear(*verify), prepare)
    return policy


def drafts_with_rate(rate: float, count: int = 1000) -> tuple[numpy.ndarray, ...]:
    """Drafts whose token at position t survives with probability rate ** (t + 1), as the drafter says."""
    drafted = numpy.zeros((WIDTH, BINS))
    accepted = numpy.zeros((WIDTH, BINS))
    for position in range(WIDTH):
        survives = rate ** (position + 1)
        bin_number = min(int(survives * BINS), BINS - 1)
        drafted[position, bin_number] = count
        accepted[position, bin_number] = count * survives
    return drafted, accepted


def test_a_large_batch_verifies_fewer_tokens_than_a_small_one() -> None:
    """Rows are nearly free until a call has 16 of them."""
    policy = make_policy()
    table = {1.0: 1.0, 16.0: 1.15, 116.0: 11.15}
    policy.costs = kernels().Costs(table, linear(0.1, 0.001), table)
    policy.learn(*drafts_with_rate(0.8))
    single, many = policy.plan(1), policy.plan(16)
    assert single.is_faster and single.width > many.width


@settings(DETERMINISTIC, max_examples=example_count(100))
@given(
    step=st.tuples(st.floats(0.5, 2), st.floats(0.01, 1)),
    draft=st.tuples(st.floats(0.01, 1), st.floats(0.001, 0.2)),
    row=st.floats(0.01, 1),
    sentences=st.integers(1, 32),
    seed=st.integers(0, 10_000),
)
def test_plan_is_the_best_of_all_widths_and_thresholds(
    step: tuple[float, float], draft: tuple[float, float], row: float, sentences: int, seed: int
) -> None:
    """With linear costs Dinkelbach's method finds the optimum, so a search over all choices finds nothing better."""
    generator = numpy.random.default_rng(seed)
    policy = make_policy(step, draft, (1.0, row))
    drafted = generator.integers(0, 200, (WIDTH, BINS)).astype(float)
    drafted = drafted * 1000 / drafted.sum(1, keepdims=True)
    accepted = drafted * numpy.sort(generator.random((WIDTH, BINS)), 1)
    policy.learn(drafted, accepted)
    # What the policy knows of them: faded to its horizon, with priors.
    _, seen, tried, right = (numpy.array(part) for part in policy.counts())
    drafts = seen.reshape(WIDTH, BINS).sum(1, keepdims=True)
    tried, right, prior = tried.reshape(WIDTH, BINS), right.reshape(WIDTH, BINS), 8
    of_bin = (right.sum(0) + prior * (numpy.arange(BINS) + 0.5) / BINS) / (tried.sum(0) + prior)
    rate = (right + prior * of_bin) / (tried + prior)
    reach = (seen.reshape(WIDTH, BINS) + 0.1 * (numpy.arange(BINS) == BINS - 1)) / (drafts + 0.1)

    def cost(first: float, further: float, rows: float) -> float:
        return first + further * (rows - 1)

    best = 0.0
    for width in range(1, WIDTH + 1):
        for threshold in (0.0, 2.0, *rate[:width].flat):
            worthy = (rate[:width] >= threshold) * reach[:width]
            tokens, rows = 1 + (worthy * rate[:width]).sum(), 1 + worthy.sum()
            verifying = cost(*step, sentences) + sentences * (rows - 1) * row
            best = max(best, sentences * tokens / (cost(*draft, sentences * width) + verifying))
    greedy = sentences / cost(*step, sentences)
    plan = policy.plan(sentences)
    assert plan.rate <= best * (1 + 1e-6)
    assert max(plan.rate, greedy) >= max(best, greedy) * 0.98
    assert plan.is_faster == (plan.rate > greedy)


def test_same_costs_and_counts_give_the_same_decisions() -> None:
    decisions = []
    for _ in range(2):
        policy = make_policy()
        made = []
        for turn in range(200):
            made.append(policy.should_draft(1, 10))
            policy.learn(*drafts_with_rate(0.2 + 0.6 * (turn % 7) / 7, count=1))
            policy.learn_length(10, 9 + turn % 3)
            plan = policy.plan(1)
            made.append((plan.width, plan.rate, plan.greedy_rate))
        decisions.append(made)
    assert decisions[0] == decisions[1]


@pytest.mark.parametrize("sentences", [1, 16])
def test_exploration_costs_half_a_percent(sentences: int) -> None:
    """Where drafts do not pay, what they lose stays below half a percent of the time, but they go on being tried."""
    policy = make_policy(prepare=0.05)
    policy.learn(*drafts_with_rate(0.2))
    plan, source, turns = policy.plan(sentences), 10, 20_000
    assert not plan.is_faster
    greedy = source * (1.0 + 0.1 * (sentences - 1)) / sentences
    lost = (source / plan.rate + 0.05 * source - greedy) * sentences
    tried = sum(policy.should_draft(sentences, source) for _ in range(turns))
    assert 0.9 * 0.005 * greedy * turns <= tried * lost <= 0.005 * greedy * turns


def test_unlikely_tokens_of_a_single_sentence_stop_where_rows_cost_time() -> None:
    """Costs of a call of average size hide that rows are free up to a point: what counts is the cost of each."""
    policy = make_policy()
    policy.costs = kernels().Costs(linear(1.0, 0.0), linear(1e-3, 0.0), {1.0: 1.0, 3.0: 1.0, 103.0: 26.0})
    policy.learn(*drafts_with_rate(0.4))
    verified = numpy.array(policy.plan(1).verified).reshape(WIDTH, BINS)
    likeliest = [next(iter(numpy.flatnonzero(row)), BINS) / BINS for row in verified]
    assert likeliest[:2] == [0, 0] and min(likeliest[2:]) >= 0.2


def test_outcomes_switch_drafting_off_and_on() -> None:
    policy = make_policy(draft=(0.1, 0.01), verify=(1.0, 0.02))
    for rate, pays in ((0.9, True), (0.05, False), (0.9, True)):
        for _ in range(2500):
            policy.learn(*drafts_with_rate(rate, count=1))
        assert policy.plan(1).is_faster is pays
        assert sum(policy.should_draft(1, 10) for _ in range(100)) >= 100 * pays


def test_start_of_a_sentence_counts_against_short_outputs() -> None:
    policy = make_policy(draft=(0.1, 0.01), verify=(1.0, 0.02), prepare=1.0)
    policy.learn(*drafts_with_rate(0.8))
    assert policy.plan(1).is_faster and not policy.should_draft(1, 10)


def test_interrupted_measurements_do_not_make_drafts_look_fast() -> None:
    """Measured in microseconds: without drafts a large batch would look seven times as slow as it is."""
    step = {1.0: 64.7, 4.0: 172.5, 16.0: 5175.6}
    draft = {1.0: 27.9, 3.0: 58.0, 7.0: 124.2, 28.0: 501.1}
    verify = {1.0: 64.7, 2.0: 84.1, 4.0: 142.5, 8.0: 252.9, 32.0: 1121.0}
    is_faster = []
    for clean in (dict, kernels().consistent):
        policy = make_policy()
        policy.costs = kernels().Costs(*map(clean, (step, draft, verify)))
        policy.learn(*drafts_with_rate(0.7))
        is_faster.append([policy.plan(sentences).is_faster for sentences in (8, 24)])
    assert is_faster == [[True, True], [False, False]]


def test_consistent_costs_grow_no_faster_than_sizes() -> None:
    """A larger call takes no less time than a smaller one, and no more than several smaller ones."""
    consistent = kernels().consistent
    assert consistent({1.0: 3.0, 2.0: 1.0, 4.0: 9.0, 8.0: 5.0}) == {1.0: 1.0, 2.0: 1.0, 4.0: 2.0, 8.0: 4.0}
    likely = {1.0: 9.0, 4.0: 10.0, 16.0: 30.0}
    assert consistent(likely) == likely


@pytest.fixture(scope="module")
def learned() -> tuple[Any, Any, Any, Any]:
    """A task, a verifier, a batch, and a drafter that knows some of its outputs."""
    batch = known("random")
    return batch.task, batch.model, batch.sample, batch.drafter("features")


def counting_backend(learned: tuple, width: int, **more: Any) -> Any:
    """The native backend of `gad` that drafts and verifies every token, and counts."""
    task, verifier, _, drafter = learned
    how = Options("gad", width, fixed_width=False, fp32_drafts=True)
    context = replace(how.context([verifier], drafter, task), counts_survival=True, **more)
    return choose_backend(how.spec, how.options, context)


def test_counts_are_those_of_the_loop_in_pytorch(learned: tuple) -> None:
    """By position: drafted and accepted tokens; by probability: the sums of a drafter that is asked for them."""
    task, verifier, sample, drafter = learned
    width = 5
    how = Options("gad", width, fp32_drafts=True)
    drafted, accepted = numpy.zeros((2, width, BINS))
    reference = replace(how.context([verifier], drafter, task), weights=None, is_traced=True)
    backend = choose_backend(how.spec, how.options, reference)
    assert backend.name == "torch"
    eos = task.target_dictionary.eos()
    survival: list[torch.Tensor] = []
    drafts: list[torch.Tensor] = []
    draft = backend.method.drafter.draft

    def recording(state: Any) -> Any:
        made = draft(state)
        survival.append(torch.zeros(len(sample["id"]), width))
        drafts.append(torch.full((len(sample["id"]), width + 1), eos))
        drafts[-1][list(state.sentences), : made.tokens.size(1)] = made.tokens
        if made.survival is not None:
            survival[-1][list(state.sentences), : made.survival.size(1)] = made.survival
        return made

    backend.method.drafter.draft = recording
    native = counting_backend(learned, width)
    generator, _ = make_generator([verifier], task, how, drafter, max_len_b=40)
    request = generator.request(sample)
    lengths = [0] * len(sample["id"])
    for step in backend.steps(*request):
        for sentence, output in enumerate(step):
            # PyTorch drafts as far for sentences that are about to reach the limit as for others, and past EOS.
            before_eos = drafts[-1][sentence].tolist().index(eos)
            for position in range(min(output.drafted, request[1].max_len - lengths[sentence], before_eos)):
                number = min(int(float(survival[-1][sentence, position]) * BINS), BINS - 1)
                drafted[position, number] += 1
                accepted[position, number] += position < output.accepted
            lengths[sentence] += len(output.tokens)
    native.decode(*request)
    counts = [numpy.array(part) for part in native.method.policy.counts()]
    found_drafted, found_accepted = counts[2].reshape(width, BINS), counts[3].reshape(width, BINS)
    assert found_drafted.sum(1).tolist() == drafted.sum(1).tolist()
    assert found_accepted.sum(1).tolist() == accepted.sum(1).tolist()
    assert accepted.sum() > 20
    # A probability on the edge of a bin may fall on its other side.
    assert abs(found_drafted - drafted).sum() <= 2 * max(2, drafted.sum() // 50)


def test_checkpoint_brings_the_counts_of_the_validation_set(learned: tuple) -> None:
    task, verifier, sample, drafter = learned
    native = counting_backend(learned, 25)
    generator, _ = make_generator([verifier], task, Options("gad", 25), drafter, max_len_b=40)
    native.decode(*generator.request(sample))
    store_survival(native.method.policy, drafter)
    kept = drafter.decoder.survival_counts
    assert kept[0].sum() > kept[1].sum() > 0
    how = Options("gad", 25, fixed_width=False)
    policy = choose_backend(how.spec, how.options, how.context([verifier], drafter, task)).method.policy
    tried, right = (numpy.array(part).reshape(25, BINS).sum(1) for part in policy.counts()[2:])
    share = (kept[1].sum(1) / kept[0].sum(1).clamp(min=1)).numpy()
    assert numpy.allclose(right / numpy.maximum(tried, 1e-9), share, atol=1e-6)
    assert not any(counting_backend(learned, 25).method.policy.counts()[3])  # each validation counts anew
    drafter.decoder.survival_counts.zero_()


def test_costs_are_profiled_when_the_generator_is_built(learned: tuple) -> None:
    task, verifier, _, drafter = learned
    how = Options("gad", 5, fixed_width=False)
    policy = choose_backend(how.spec, how.options, how.context([verifier], drafter, task)).method.policy
    costs = policy.costs
    for table in (costs.step, costs.draft, costs.verify):
        seconds = list(table.values())
        assert min(seconds) > 0 and seconds == sorted(seconds)
    assert list(costs.step) == [1, 4, 16] and list(costs.draft) == [1, 3, 20]
    assert 0 < costs.prepare < 1


def test_costs_are_measured_with_different_sentences_and_the_time_of_a_thread(tmp_path: Path) -> None:
    """Of equal sentences, one after the other, the drafter encodes one: their start would seem cheap.

    Time that other programs had the processor would make calls seem dear.
    """
    program = tmp_path / "synthetic_batch"
    files = [Path(__file__).with_name("synthetic_batch.cpp"), CSRC / "sources.cpp"]
    # Of costs.cpp, the part that measures is left out: it needs all kernels.
    command = [compiler(), "-std=c++17", "-O1", "-ffunction-sections", "-Wl,--gc-sections", f"-I{CSRC}", *files]
    subprocess.run([*command, "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "of 16\n0\n"


def test_sentence_that_is_left_over_starts_to_draft() -> None:
    """Drafts save time only for a sentence that is alone. It starts then, if the start does not cost too much."""
    task, verifier, sample = make_all(100, 3, [0, 1])
    expected = ids(fairseq_greedy([verifier], task, sample, max_len_b=40))
    shorter, longer = sorted(map(len, expected))
    assert longer > shorter + 20
    drafter = learned_drafter(task, verifier, sample, expected, drafter_context="features")
    for prepare, starts in ((0.0, True), (1e6, False)):
        generator, _ = make_generator([verifier], task, Options("gad", 12, fixed_width=False), drafter, max_len_b=40)
        costs = kernels().Costs(DEAR_ALONE, linear(1.0, 0.0), linear(1.0, 0.0), prepare)
        generator.backend.method.policy.costs = costs
        decoded = generator.backend.decode(*generator.request(sample))
        assert [best[0].tokens.tolist() for best in decoded.outputs] == expected
        emitted = max(decoded.emitted, key=sum)
        assert set(emitted[:shorter]) == {1}
        assert (max(emitted[shorter:]) > 1) == starts


# Drafters without a checkpoint start without counts.
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("iad", {}),
    ("reuse", {}),
    ("jacobi", {}),
    ("jacobi", {"jacobi_init": "source"}),
    ("gs-jacobi", {"block_size": 3}),
    ("hybrid-jacobi", {"jacobi_length": 7}),
]


def test_later_positions_are_reached_less_often() -> None:
    """Positions that no draft has been long enough for promise nothing if no draft reaches those before them."""
    policy = make_policy(draft=(1e-3, 0.0))
    drafted = numpy.zeros((2, *drafts_with_rate(0.5)[0].shape))
    drafted[0, 0, 0] = 500
    policy.learn(*drafted)
    assert policy.plan(1).rate < 1.05 * policy.plan(1).greedy_rate


def test_few_sentences_draft_before_there_are_counts() -> None:
    policy = make_policy(draft=(1e-3, 0.0), verify=(1.0, 1e-3))
    assert policy.plan(4).is_faster, "the prior is optimistic"
    assert [policy.should_draft(4, 10) for _ in range(4)] == [True, True, False, False]
    policy.learn(*drafts_with_rate(0.9, count=1))
    assert all(policy.should_draft(4, 10) for _ in range(4))


@pytest.mark.parametrize("can_be_free", [True, False])
def test_dear_drafter_does_not_forbid_copies_before_it(can_be_free: bool) -> None:
    """A drafter that drafts where nothing can be copied has a cost. Copies have none, which is learned."""
    task, verifier, sample = make_all(60, 2, [9, 4, 12, 7])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    sample["drafts"] = [[hypotheses[0]["tokens"].tolist()] for hypotheses in expected]
    how = Options("reuse", fixed_width=False, iad_fallback="gad")
    generator, stats = make_generator([verifier], task, how, make_drafter(task, 3), max_len_b=30)
    costs = kernels().Costs(linear(1.0, 0), linear(99.0, 0), linear(1.0, 0), can_be_free=can_be_free)
    generator.backend.method.policy.costs = costs
    for _ in range(2):
        assert_same_output(generator.generate([verifier], sample), expected)
    tokens, last = sum(len(row[0]["tokens"]) for row in expected), stats.recorded[-len(expected) :]
    iterations = sum(sentence.iterations for sentence in last)
    assert iterations < tokens / 5 if can_be_free else iterations == tokens


@pytest.mark.parametrize(("name", "options"), METHODS, ids=lambda value: str(value))
def test_drafts_end_where_rows_cost_as_much_as_steps(name: str, options: dict[str, Any]) -> None:
    """After a few trials, sentences decode as with `greedy`."""
    task, verifier, sample = make_all(60, 2, [9, 4, 12, 7, 20, 15, 3, 30])
    if name == "reuse":
        sample["drafts"] = [[row.tolist()] for row in sample["net_input"]["src_tokens"]]
    generator, stats = make_generator([verifier], task, Options(name, fixed_width=False, **options), max_len_b=30)
    costs = kernels().Costs(linear(1.0, 1.0), linear(1e-3, 0), linear(1.0, 1.0))
    generator.backend.method.policy.costs = costs
    for _ in range(4):
        generator.generate([verifier], sample)
    last = stats.recorded[-len(sample["id"]) :]
    assert generator.backend.method.policy.counts()[0][0] > 0, "nothing was tried"
    assert sum(sum(sentence.emitted) for sentence in last) <= 1.05 * sum(sentence.iterations for sentence in last)
    assert not generator.backend.method.policy.plan(8).is_faster

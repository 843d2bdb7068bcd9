"""The loop in one call of the kernels: the reference's output, scores and iterations, with any number of threads."""

from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding import generator, one_call, one_sentence
from fairseq_plugins.decoding.drafters.policy import Counting, Policy
from fairseq_plugins.decoding.stats import SentenceStats
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.learned import learned_drafter
from tests.strategies import (
    BLOCK_SIZES,
    FEATURE_DRAFTERS,
    SEARCHES,
    SOURCES,
    STEADY_MODELS,
    TRANSFORMERS,
    fitting,
    some,
)
from tests.support import (
    Options,
    assert_same_output,
    decode,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
    scores,
)


def step_by_step(*args: Any, **options: Any) -> tuple[list, list[SentenceStats]]:
    """`decode` by the loop in Python."""
    with mock.patch.object(generator, "_in_one_call", lambda method: None):
        return decode(*args, **options)


class Counted:
    """How often the kernels took over, and the last call's result."""

    def __init__(self) -> None:
        self.calls = self.refused = self.alone = 0
        self.patches = ExitStack()

    def __enter__(self) -> "Counted":
        run, run_alone = one_call.OneCall.run, one_sentence.OneSentence.run

        def counted(*args: Any) -> Any:
            done = run(*args)
            self.calls += done is not None
            self.refused += done is None
            return done

        def counted_alone(*args: Any) -> Any:
            done = run_alone(*args)
            self.calls += done is not None
            self.alone += done is not None
            return done

        self.patches.enter_context(mock.patch.object(one_call.OneCall, "run", counted))
        self.patches.enter_context(mock.patch.object(one_sentence.OneSentence, "run", counted_alone))
        return self

    def __exit__(self, *_: Any) -> None:
        self.patches.close()


def check(*args: Any, expected: list, **options: Any) -> list[SentenceStats]:
    """The output of fairseq, and the iterations of the loop in Python; the kernels' statistics."""
    with Counted() as counted:
        ours, stats = decode(*args, **options)
    assert counted.calls > 0 and counted.refused == 0
    assert_same_output(ours, expected)
    reference, expected_stats = step_by_step(*args, **options)
    assert_same_output(ours, reference)
    assert [s.emitted for s in stats] == [s.emitted for s in expected_stats]
    return stats


# Other activations, inputs and outputs of other widths, and positions before every layer run in PyTorch alone.
NATIVE = TRANSFORMERS.filter(
    lambda o: o.get("activation_fn") != "tanh" and not {"decoder_input_dim", "decoder_output_dim"} & o.keys()
)
POST_NORM = FEATURE_DRAFTERS.filter(
    lambda o: not (o.get("positions_every_layer") or o.get("decoder_normalize_before"))
)
PLAIN = SEARCHES.filter(lambda options: options.get("temperature", 1) == 1)


@settings(STEADY_MODELS, max_examples=some(40))
@given(
    options=NATIVE,
    drafter_options=POST_NORM,
    sources=SOURCES,
    block_size=BLOCK_SIZES,
    search=PLAIN,
    active=st.sampled_from([0, 0, 1, 2]),
    seed=st.integers(0, 1000),
)
def test_greedy_and_gad(
    options: dict[str, Any],
    drafter_options: dict[str, Any],
    sources: list[int],
    block_size: int,
    search: dict[str, Any],
    active: int,
    seed: int,
) -> None:
    task = make_task(40)
    verifier = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, **search)
    search = {**search, "active_sentences": active}
    check([verifier], task, sample, Options("greedy"), expected=expected, **search)
    if options.get("decoder_normalize_before"):
        return
    drafter = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter_options, options))
    check([verifier], task, sample, Options("gad", block_size), drafter, expected=expected, **search)


@settings(STEADY_MODELS, max_examples=some(25))
@given(
    options=NATIVE,
    sources=SOURCES,
    search=PLAIN,
    active=st.sampled_from([0, 0, 1, 2]),
    vocabulary=st.sampled_from([7, 9, 30]),
    seed=st.integers(0, 1000),
)
def test_copies_of_the_source(
    options: dict[str, Any], sources: list[int], search: dict[str, Any], active: int, vocabulary: int, seed: int
) -> None:
    task = make_task(vocabulary)
    verifier = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, **search)
    check([verifier], task, sample, Options("iad"), expected=expected, active_sentences=active, **search)


@pytest.fixture(scope="module")
def learned() -> tuple[Any, Any, Any, Any, list]:
    """A task, a verifier, more sentences than are decoded together, a drafter that knows some of them, and outputs."""
    task = make_task(100)
    verifier = make_transformer(task, 11)
    sample = make_sample(task, [0, 1, 33, 7, 2, 19, 0, 40, *range(24)])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=40)
    drafter = learned_drafter(task, verifier, sample, ids(expected), drafter_context="features")
    return task, verifier, sample, drafter, expected


@pytest.mark.parametrize("block_size", [3, 25])
def test_what_was_learnt_is_accepted(learned: tuple, block_size: int) -> None:
    task, verifier, sample, drafter, expected = learned
    stats = check(
        [verifier], task, sample, Options("gad", block_size), drafter, expected=expected, max_len_b=40
    )
    assert emitted_per_iteration(stats) > 1.2


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("decoder", ["greedy", "gad", "iad"])
def test_threads_change_no_bit(learned: tuple, decoder: str, threads: int) -> None:
    task, verifier, sample, drafter, _ = learned
    results = []
    for count in (1, threads):
        torch.set_num_threads(count)
        how = Options(decoder, 5) if decoder == "gad" else Options(decoder)
        results.append(decode([verifier], task, sample, how, drafter, max_len_b=40))
    (alone, alone_stats), (shared, shared_stats) = results
    assert ids(alone) == ids(shared)
    assert all(torch.equal(a, b) for a, b in zip(scores(alone), scores(shared), strict=True))
    assert [s.emitted for s in alone_stats] == [s.emitted for s in shared_stats]


def test_what_the_kernels_do_not_know_goes_round_the_loop() -> None:
    task = make_task(20)
    verifier = make_transformer(task, 1)
    sample = make_sample(task, [4, 2], 1)
    for options in ({"temperature": 2.0}, {"prefix_tokens": torch.tensor([[5, 6], [7, 8]])}):
        with Counted() as counted:
            ours, _ = decode([verifier], task, sample, Options("greedy"), max_len_b=9, **options)
        assert counted.calls == 0
        assert_same_output(ours, fairseq_greedy([verifier], task, sample, max_len_b=9, **options))


def test_a_token_that_is_none_is_refused() -> None:
    task = make_task(20)
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        decode([make_transformer(task, 1)], task, make_sample(task, [4]), Options("greedy"), max_len_b=9, bos_token=99)


@pytest.mark.parametrize("tried", ["drafts", "steps"])
def test_what_does_not_pay_is_tried_for_a_few_iterations(tried: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that do not pay, or steps without drafts where these pay; the rest of the batch is decoded as it was."""
    task = make_task(40)
    verifier = make_transformer(task, 3)
    drafter = make_drafter(task, 4, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [6, 3, 9], 5)
    learn, calls = Policy.learn, []

    def begin(policy: Policy, batch: int, length: int) -> bool:
        policy.regime.paid, policy.regime.trial, policy.regime.drafted = tried == "steps", 4.0, 1000.0
        return True

    def learn_how_many(policy: Policy, counts: Counting) -> None:
        calls.append((counts.drafts, counts.iterations, counts.budget))
        learn(policy, counts)

    monkeypatch.setattr(Policy, "begin", begin)
    monkeypatch.setattr(Policy, "learn", learn_how_many)
    monkeypatch.setattr(Policy, "may_pay", lambda policy, batch, length=None: policy.regime.paid)
    how = Options("gad", 5, fixed_width=False)
    with Counted() as counted:
        ours, _ = decode([verifier], task, sample, how, drafter, max_len_b=60, min_len=40)
    is_tried = tried == "drafts"
    in_trial = [iterations for drafts, iterations, budget in calls if drafts == is_tried and budget is not None]
    assert sum(in_trial) >= 4 and max(in_trial) <= 11 and counted.refused == 0
    others = [iterations for drafts, iterations, budget in calls if drafts != is_tried]
    assert sum(others) > 4 and counted.calls > 2
    assert_same_output(ours, fairseq_greedy([verifier], task, sample, max_len_b=60, min_len=40))


@settings(STEADY_MODELS, max_examples=some(30))
@given(
    options=NATIVE,
    sources=SOURCES,
    search=PLAIN,
    how=st.sampled_from(
        [
            Options("jacobi"),
            Options("jacobi", jacobi_init="source"),
            Options("gs-jacobi", 3),
            Options("gs-jacobi", 1),
            Options("gs-jacobi", 7, jacobi_init="unk"),
            Options("hybrid-jacobi", 4, jacobi_length=6),
        ]
    ),
    active=st.sampled_from([0, 0, 1, 2]),
    vocabulary=st.sampled_from([9, 30]),
    seed=st.integers(0, 1000),
)
def test_the_jacobi_family(
    options: dict[str, Any],
    sources: list[int],
    search: dict[str, Any],
    how: Options,
    active: int,
    vocabulary: int,
    seed: int,
) -> None:
    task = make_task(vocabulary)
    verifier = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, **search)
    check([verifier], task, sample, how, expected=expected, active_sentences=active, **search)


@settings(STEADY_MODELS, max_examples=some(30))
@given(
    options=NATIVE.filter(lambda o: not o.get("decoder_normalize_before")),
    drafter_options=POST_NORM,
    sources=SOURCES,
    block_size=BLOCK_SIZES,
    thresholds=st.sampled_from([(1, 0.5), (3, 1.0), (5, 3.0), (3, 100.0), (40, 0.01), (1000, float("inf"))]),
    search=PLAIN,
    seed=st.integers(0, 1000),
)
def test_relaxed_acceptance(
    options: dict[str, Any],
    drafter_options: dict[str, Any],
    sources: list[int],
    block_size: int,
    thresholds: tuple[int, float],
    search: dict[str, Any],
    seed: int,
) -> None:
    task = make_task(40)
    verifier = make_transformer(task, seed, **options)
    drafter = make_drafter(task, seed + 1, verifier=verifier, **fitting(drafter_options, options))
    how = Options("gad++", block_size, top_beta=thresholds[0], tau=thresholds[1])
    given = ([verifier], task, make_sample(task, sources, seed), how, drafter)
    check(*given, expected=step_by_step(*given, **search)[0], **search)


@settings(STEADY_MODELS, max_examples=some(30))
@given(
    options=NATIVE,
    identity=st.booleans(),
    how=st.sampled_from(
        [
            Options("blockwise"),
            Options("blockwise", 2),
            Options("blockwise", top_beta=3),
            Options("blockwise", 3, top_beta=12, tau=2.0),
        ]
    ),
    sources=SOURCES,
    search=PLAIN,
    active=st.sampled_from([0, 0, 1, 2]),
    seed=st.integers(0, 1000),
)
def test_heads(
    options: dict[str, Any],
    identity: bool,
    how: Options,
    sources: list[int],
    search: dict[str, Any],
    active: int,
    seed: int,
) -> None:
    task, model = make_blockwise(seed, identity_first_head=identity, **options)
    given = ([model], task, make_sample(task, sources, seed), how)
    search = {**search, "active_sentences": active}
    check(*given, expected=step_by_step(*given, **search)[0], **search)


@pytest.mark.parametrize("identity", [True, False])
def test_heads_guess_right_in_the_kernels(identity: bool) -> None:
    """Or equal iterations would say little."""
    task, model = make_blockwise(3, 9, identity_first_head=identity)
    sample = make_sample(task, [0, 1, 33, 7])
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    stats = check([model], task, sample, Options("blockwise"), expected=expected, max_len_b=30)
    assert emitted_per_iteration(stats) > 1.3


def test_some_are_accepted_that_are_not_the_best() -> None:
    """Or the test above would say nothing."""
    task = make_task(40)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [5, 9, 3], 1)
    how = Options("gad++", 4, top_beta=1000, tau=100.0)
    ours, _ = decode([verifier], task, sample, how, drafter, max_len_b=30)
    assert ids(ours) != ids(fairseq_greedy([verifier], task, sample, max_len_b=30))


@pytest.mark.parametrize(
    "how",
    [
        Options("jacobi", jacobi_pool=True),
        Options("gad++", 4, top_beta=3, tau=1.0, accept_score="drafter"),
        Options("blockwise", min_block=2),
        Options("blockwise", 1),
    ],
)
def test_what_goes_round_the_loop_in_python(how: Options) -> None:
    task = make_task(40)
    verifier = make_transformer(task, 1)
    drafter = None
    if how.spec.name == "blockwise":
        task, verifier = make_blockwise(1)
    if how.spec.name == "gad++":
        drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    with Counted() as counted:
        decode([verifier], task, make_sample(task, [5, 9, 3], 1), how, drafter, max_len_b=30)
    assert counted.calls == 0

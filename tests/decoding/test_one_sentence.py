"""One sentence by itself: the output, scores and iterations of the loop in Python, and of a batch, to the last bit."""

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding import generator, one_call, one_sentence
from fairseq_plugins.decoding.engine.native import build
from fairseq_plugins.decoding.one_sentence import OneSentence
from fairseq_plugins.decoding.stats import SentenceStats
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.decoding.test_one_call import NATIVE, PLAIN, POST_NORM, Counted
from tests.learned import learned_drafter
from tests.strategies import BLOCK_SIZES, STEADY_MODELS, fitting, some
from tests.support import (
    Options,
    assert_same_output,
    decode_all,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
    scores,
)

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler")

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=4)


def in_batches(*args: Any, **options: Any) -> tuple[list, list[SentenceStats]]:
    """`decode_all` without what is for one sentence."""
    with mock.patch.object(OneSentence, "of", lambda method, call: None):
        return decode_all(*args, **options)


def check(*args: Any, **options: Any) -> list[SentenceStats]:
    """Sentences one after the other by themselves, and as batches; returns the statistics."""
    with Counted() as counted:
        ours, stats = decode_all(*args, **options)
    assert counted.alone == len(ours) and counted.calls == counted.alone
    expected, expected_stats = in_batches(*args, **options)
    assert_same_output(ours, expected)
    assert all(torch.equal(a, b) for a, b in zip(scores(ours), scores(expected), strict=True))
    assert [s.emitted for s in stats] == [s.emitted for s in expected_stats]
    assert not any(hypothesis[0]["tokens"].is_inference() for hypothesis in ours)
    return stats


@settings(STEADY_MODELS, max_examples=some(40))
@given(
    options=NATIVE,
    drafter_options=POST_NORM,
    lengths=LENGTHS,
    block_size=BLOCK_SIZES,
    thresholds=st.sampled_from([None, (1, 0.5), (5, 3.0), (1000, float("inf"))]),
    search=PLAIN,
    seed=st.integers(0, 1000),
)
def test_as_in_a_batch(
    options: dict[str, Any],
    drafter_options: dict[str, Any],
    lengths: list[int],
    block_size: int,
    thresholds: tuple[int, float] | None,
    search: dict[str, Any],
    seed: int,
) -> None:
    """Whatever sentence was decoded before in the same memory."""
    task = make_task(40)
    verifier = make_transformer(task, seed, **options)
    samples = [make_sample(task, [length], seed + length) for length in lengths]
    expected = [fairseq_greedy([verifier], task, sample, **search)[0] for sample in samples]
    ours, _ = decode_all([verifier], task, samples, Options("greedy"), **search)
    assert_same_output(ours, expected)
    check([verifier], task, samples, Options("greedy"), **search)
    drafter_options = fitting({**drafter_options, "src_embedding_copy": True}, options)
    # Masks copy embeddings that are as wide as they are.
    if options.get("decoder_normalize_before") or "encoder_embed_dim" in options:
        return
    drafter = make_drafter(task, seed + 1, verifier=verifier, **drafter_options)
    how = Options("gad", block_size)
    if thresholds is not None:
        how = Options("gad++", block_size, top_beta=thresholds[0], tau=thresholds[1])
    check([verifier], task, samples, how, drafter, **search)


@settings(STEADY_MODELS, max_examples=some(30))
@given(
    options=NATIVE,
    lengths=LENGTHS,
    how=st.sampled_from(
        [
            Options("iad"),
            Options("jacobi"),
            Options("gs-jacobi", 3),
            Options("hybrid-jacobi", 4, jacobi_length=6, jacobi_init="source"),
            Options("blockwise"),
            Options("blockwise", 3, top_beta=12, tau=2.0),
        ]
    ),
    vocabulary=st.sampled_from([9, 30]),
    search=PLAIN,
    seed=st.integers(0, 1000),
)
def test_drafters_that_read_tokens(
    options: dict[str, Any], lengths: list[int], how: Options, vocabulary: int, search: dict[str, Any], seed: int
) -> None:
    task, model = make_task(vocabulary), None
    if how.spec.name == "blockwise":
        task, model = make_blockwise(seed, **options)
    samples = [make_sample(task, [length], seed + length) for length in lengths]
    check([model or make_transformer(task, seed, **options)], task, samples, how, **search)


@pytest.fixture(scope="module")
def learned() -> tuple[Any, Any, Any, list]:
    """A task, a verifier, a drafter that knows some sentences, and these one by one."""
    task = make_task(100)
    verifier = make_transformer(task, 11)
    sample = make_sample(task, [0, 1, 33, 7, 2, 19, 0, 40])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=40)
    drafter = learned_drafter(
        task, verifier, sample, ids(expected), drafter_context="features", src_embedding_copy=True
    )
    pad = task.source_dictionary.pad()
    sources = [row[row != pad][None] for row in sample["net_input"]["src_tokens"]]
    nets = [{"src_tokens": source, "src_lengths": torch.tensor([source.size(1)])} for source in sources]
    return task, verifier, drafter, [{"id": torch.tensor([n]), "net_input": net} for n, net in enumerate(nets)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("block_size, fixed_width", [(5, True), (25, True), (5, False)])
def test_long_outputs(
    learned: tuple, block_size: int, fixed_width: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more iterations than one call has, and positions than masks are fed at first."""
    task, verifier, drafter, samples = learned
    for module in (one_call, one_sentence):
        monkeypatch.setattr(module, "ITERATIONS", 8)
    torch.set_num_threads(threads)
    how = Options("gad", block_size, fixed_width=fixed_width)
    with Counted() as counted:
        ours, stats = decode_all([verifier], task, samples, how, drafter, max_len_b=60, min_len=50)
    expected = [fairseq_greedy([verifier], task, sample, max_len_b=60, min_len=50)[0] for sample in samples]
    assert counted.alone == len(samples)
    assert_same_output(ours, expected)
    assert max(s.iterations for s in stats) > 8
    if fixed_width:
        check([verifier], task, samples, how, drafter, max_len_b=60, min_len=50)


def test_what_was_learnt_is_accepted(learned: tuple) -> None:
    """Or equal iterations would say little."""
    task, verifier, drafter, samples = learned
    stats = check([verifier], task, samples, Options("gad", 4), drafter, max_len_b=40)
    assert emitted_per_iteration(stats) > 1.2


def test_what_is_not_for_it_is_decoded_as_a_batch() -> None:
    task = make_task(20)
    verifier, other = make_transformer(task, 1), make_transformer(task, 1, activation_fn="tanh")
    sample = make_sample(task, [4], 1)
    padded = {**sample, "net_input": dict(sample["net_input"])}
    padding = torch.full((1, 2), task.source_dictionary.pad())
    padded["net_input"]["src_tokens"] = torch.cat([padding, sample["net_input"]["src_tokens"]], 1)
    for model, batch, how, more in (
        (verifier, padded, Options("greedy"), {}),
        (other, sample, Options("greedy"), {}),
        (verifier, sample, Options("iad", iad_lookup="recent"), {}),
        (verifier, sample, Options("greedy"), {"prefix_tokens": torch.tensor([[5, 6]])}),
        (verifier, sample, Options("greedy"), {"temperature": 2.0}),
    ):
        with Counted() as counted:
            ours, _ = decode_all([model], task, [batch], how, max_len_b=9, **more)
        assert counted.alone == 0
        assert_same_output(ours, fairseq_greedy([model], task, batch, max_len_b=9, **more))


def test_a_token_that_is_none_is_refused() -> None:
    task = make_task(20)
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        decode_all(
            [make_transformer(task, 1)], task, [make_sample(task, [4])], Options("greedy"), max_len_b=9, bos_token=99
        )


def test_weights_are_read_anew() -> None:
    """After `refresh`, as validation during training has it."""
    task = make_task(40)
    verifier, other = make_transformer(task, 3), make_transformer(task, 4)
    sample = make_sample(task, [9], 1)
    made = []
    original = generator.DraftVerifyGenerator.__init__

    def keep(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    with mock.patch.object(generator.DraftVerifyGenerator, "__init__", keep):
        decode_all([verifier], task, [sample], Options("greedy"), max_len_b=20)
    verifier.load_state_dict(other.state_dict())
    made[0].refresh()
    ours = made[0].generate([verifier], sample)
    assert_same_output(ours, fairseq_greedy([other], task, sample, max_len_b=20))

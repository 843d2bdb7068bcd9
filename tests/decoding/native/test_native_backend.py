"""Compare the compiled kernels with the loop in PyTorch: outputs, scores and iterations, with any number of threads."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.recording.stats import SentenceStats
from fairseq_plugins.decoding.reference.engine import Engine
from tests.cases import Case, cases
from tests.decoding.methods.test_blockwise import make_blockwise
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
    assert_same_output,
    decode,
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

# The kernels do not support other activations and embeddings of other widths.
NATIVE = TRANSFORMERS.filter(
    lambda o: o.get("activation_fn") != "tanh" and not {"decoder_input_dim", "decoder_output_dim"} & o.keys()
)
PREFIXES = st.sampled_from([None, None, None, [[5, 6]], [[7, 1]], [[1, 1]], [[6, 5, 2]]])


def prefixed(search: dict[str, Any], prefix: list[list[int]] | None, sentences: int) -> dict[str, Any]:
    """Return generation options with a prefix for every second sentence."""
    if prefix is None:
        return search
    rows = torch.tensor(prefix * sentences)
    rows[1::2] = 1
    return {**search, "prefix_tokens": rows}


def check(
    models: list,
    task: Any,
    sample: dict[str, Any],
    how: Options,
    *drafter: Any,
    expected: list | None = None,
    **search: Any,
) -> list[SentenceStats]:
    """Compare outputs, scores and iterations of both backends, and fairseq's output; return the kernels' statistics."""
    ours, stats = decode(models, task, sample, how, *drafter, **search)
    reference, expected_stats = decode(models, task, sample, how, *drafter, engine=Engine(), **search)
    assert_same_output(ours, reference)
    # In PyTorch the pool of a sentence near its limit depends on the lengths of the others.
    if len(stats) == 1 or not getattr(how.options, "jacobi_pool", False):
        assert [s.emitted for s in stats] == [s.emitted for s in expected_stats]
    if expected is not None:
        assert_same_output(ours, expected)
    return stats


def check_case(case: Case, how: Options, prefix: list[list[int]] | None, is_lossless: bool = True) -> None:
    """Check a random case; lossless methods must equal fairseq."""
    search = prefixed(case.search, prefix, len(case.sources))
    expected = case.fairseq(**search) if is_lossless else None
    check([case.verifier], case.task, case.sample, how, case.drafter, expected=expected, **search)


@settings(UNSHRUNK, max_examples=example_count(60))
@given(
    case=cases(40, st.one_of(FEATURE_DRAFTERS, DRAFTERS), NATIVE),
    block_size=BLOCK_SIZES,
    prefix=PREFIXES,
    thresholds=st.sampled_from([None, None, (1, 0.5), (5, 3.0), (1000, float("inf"))]),
)
def test_trained_drafters(
    case: Case, block_size: int, prefix: list[list[int]] | None, thresholds: tuple[int, float] | None
) -> None:
    check_case(case, Options("greedy"), prefix)
    if thresholds is None:
        check_case(case, Options("gad", block_size, fp32_drafts=True), prefix)
        rounded, _ = case.decode(Options("gad", block_size))
        assert_same_output(rounded, case.fairseq())
    else:
        beta, tau = thresholds
        relaxed = Options("gad++", block_size, top_beta=beta, tau=tau, fp32_drafts=True)
        check_case(case, relaxed, prefix, is_lossless=False)


@settings(UNSHRUNK, max_examples=example_count(50))
@given(
    case=cases([9, 30], transformers=NATIVE),
    prefix=PREFIXES,
    how=st.sampled_from(
        [
            Options("iad"),
            Options("iad", iad_lookup="recent"),
            Options("jacobi"),
            Options("jacobi", jacobi_init="source"),
            Options("jacobi", jacobi_pool=True),
            Options("gs-jacobi", 3),
            Options("gs-jacobi", 1),
            Options("gs-jacobi", 7, jacobi_init="unk"),
            Options("hybrid-jacobi", 4, jacobi_length=6, jacobi_init="source"),
        ]
    ),
)
def test_drafters_without_training(case: Case, prefix: list[list[int]] | None, how: Options) -> None:
    check_case(case, how, prefix)


@settings(UNSHRUNK, max_examples=example_count(20))
@given(case=cases(30, st.just({"drafter_context": "features"}), NATIVE))
def test_fallback_drafter(case: Case) -> None:
    check_case(case, Options("iad", 4, iad_fallback="gad", fp32_drafts=True), None)


@settings(UNSHRUNK, max_examples=example_count(30))
@given(
    options=NATIVE,
    identity=st.booleans(),
    how=st.sampled_from(
        [
            Options("blockwise"),
            Options("blockwise", 2),
            Options("blockwise", top_beta=3),
            Options("blockwise", 3, top_beta=12, tau=2.0),
            Options("blockwise", min_block=2),
        ]
    ),
    sources=SOURCES,
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_heads(
    options: dict[str, Any], identity: bool, how: Options, sources: list[int], search: dict[str, Any], seed: int
) -> None:
    task, model = make_blockwise(seed, identity_first_head=identity, **options)
    check([model], task, make_sample(task, sources, seed), how, **search)


@pytest.fixture(scope="module")
def learned() -> tuple[Any, Any, Any, Any, list]:
    """Return task, verifier, more sentences than decoded at a time, a drafter trained on some of them, and outputs."""
    task = make_task(100)
    verifier = make_transformer(task, 11)
    sample = make_sample(task, [0, 1, 33, 7, 2, 19, 0, 40, *range(24)])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=40)
    drafter = learned_drafter(task, verifier, sample, ids(expected), drafter_context="features")
    return task, verifier, sample, drafter, expected


@pytest.mark.parametrize("block_size", [3, 25])
def test_learned_drafts_are_accepted(learned: tuple, block_size: int) -> None:
    """Drafts must be accepted: otherwise equal iterations prove little."""
    task, verifier, sample, drafter, expected = learned
    how = Options("gad", block_size, fp32_drafts=True)
    stats = check([verifier], task, sample, how, drafter, expected=expected, max_len_b=40)
    assert emitted_per_iteration(stats) > 1.2


@pytest.mark.parametrize("identity", [True, False])
def test_learned_heads_are_accepted(identity: bool) -> None:
    task, model = make_blockwise(3, 9, identity_first_head=identity)
    sample = make_sample(task, [0, 1, 33, 7])
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    stats = check([model], task, sample, Options("blockwise"), expected=expected, max_len_b=30)
    assert emitted_per_iteration(stats) > 1.3


def test_relaxed_acceptance_changes_the_output() -> None:
    task = make_task(40)
    verifier = make_transformer(task, 1)
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features")
    sample = make_sample(task, [5, 9, 3], 1)
    how = Options("gad++", 4, top_beta=1000, tau=100.0)
    ours, _ = decode([verifier], task, sample, how, drafter, max_len_b=30)
    assert ids(ours) != ids(fairseq_greedy([verifier], task, sample, max_len_b=30))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("how", [Options("greedy"), Options("gad", 5), Options("iad"), Options("fast-beam")], ids=str)
def test_output_does_not_depend_on_threads(learned: tuple, how: Options, threads: int) -> None:
    task, verifier, sample, drafter, _ = learned
    beam = {"beam_size": 3} if how.spec.searches_beams else {}
    results = []
    for count in (1, threads):
        torch.set_num_threads(count)
        results.append(decode([verifier], task, sample, how, drafter, max_len_b=40, **beam))
    (alone, alone_stats), (shared, shared_stats) = results
    assert ids(alone) == ids(shared)
    assert all(torch.equal(a, b) for a, b in zip(scores(alone), scores(shared), strict=True))
    assert [s.emitted for s in alone_stats] == [s.emitted for s in shared_stats]


@pytest.mark.parametrize("fixed_width", [True, False])
def test_output_does_not_depend_on_batches(learned: tuple, fixed_width: bool) -> None:
    """Decodes sentences one by one in the same memory, and in one batch."""
    task, verifier, sample, drafter, expected = learned
    pad = task.source_dictionary.pad()
    sources = [row[row != pad][None] for row in sample["net_input"]["src_tokens"]]
    nets = [{"src_tokens": source, "src_lengths": torch.tensor([source.size(1)])} for source in sources]
    singles = [{"id": torch.tensor([n]), "net_input": net} for n, net in enumerate(nets)]
    how = Options("gad", 5, fixed_width=fixed_width)
    alone, _ = decode_all([verifier], task, singles, how, drafter, max_len_b=40)
    together, _ = decode([verifier], task, sample, how, drafter, max_len_b=40)
    assert_same_output(alone, expected)
    assert ids(alone) == ids(together)
    assert all(torch.equal(a, b) for a, b in zip(scores(alone), scores(together), strict=True))
    assert not any(hypothesis[0]["tokens"].is_inference() for hypothesis in alone)


def test_out_of_vocabulary_token_is_rejected() -> None:
    task = make_task(20)
    model = make_transformer(task, 1)
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        decode([model], task, make_sample(task, [4]), Options("greedy"), max_len_b=9, bos_token=99)
    sample = make_sample(task, [4])
    sample["net_input"]["src_tokens"][0, 0] = 77
    with pytest.raises(ValueError, match="outside of the vocabulary"):
        decode([model], task, sample, Options("greedy"), max_len_b=9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_output_with_broken_drafters(learned: tuple, value: float) -> None:
    """Tokens are verified even if their probabilities are invalid."""
    task, verifier, sample, _, expected = learned
    transition = {"transition_rank": 3, "transition_state": 5}
    drafter = make_drafter(task, 2, verifier=verifier, drafter_context="features", **transition)
    shared = {parameter.data_ptr() for parameter in verifier.parameters()}
    own = [(name, weight) for name, weight in drafter.named_parameters() if weight.data_ptr() not in shared]
    assert len(own) > 20
    few = {"id": sample["id"][:6], "net_input": {name: rows[:6] for name, rows in sample["net_input"].items()}}
    for fixed_width in (True, False):
        for name, parameter in own:
            kept = parameter.data.clone()
            parameter.data.view(-1)[:: max(1, parameter.numel() // 3)] = value
            how = Options("gad", 5, fixed_width=fixed_width)
            ours, _ = decode([verifier], task, few, how, drafter, max_len_b=40)
            assert ids(ours) == ids(expected[:6]), name
            parameter.data.copy_(kept)
            if not fixed_width:
                break


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("how", "engine"), [(Options("greedy"), None), (Options("fast-beam"), None), (Options("greedy"), Engine())], ids=str
)
def test_scores_that_are_nan_are_an_error(how: Options, engine: Engine | None, value: float) -> None:
    task = make_task(20)
    model = make_transformer(task, 1)
    beam = {"beam_size": 3} if how.spec.searches_beams else {}
    for part in (model.encoder.layers[0].fc1, model.decoder.layers[1].fc2, model.decoder.layers[0].encoder_attn.q_proj):
        kept = part.weight.data.clone()
        part.weight.data[1, 2] = value
        with pytest.raises(RuntimeError, match="not numbers"):
            decode([model], task, make_sample(task, [4, 9]), how, engine=engine, max_len_b=9, **beam)
        part.weight.data.copy_(kept)

"""`--decoder fast-beam` returns the hypotheses of fairseq's own beam search, with their order and scores."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.errors import ConfigurationError
from tests.cases import Case, cases
from tests.decoding.native.test_rules import with_fixed_scores
from tests.decoding.test_lossless import random_prefixes
from tests.errors import error_about
from tests.strategies import DETERMINISTIC, UNSHRUNK, example_count
from tests.support import Options, assert_same_hypotheses, decode, fairseq_beam, make_all

EOS, PAD = 2, 1
BEAMS = [1, 2, 4, 5, 10, 16]
ENGINES = {"kernels": lambda: None, "PyTorch": Engine}
FAST_BEAM = Options("fast-beam")


@settings(UNSHRUNK, max_examples=example_count(60))
@given(
    case=cases([12, 40, 300]),
    beam=st.sampled_from(BEAMS),
    prefix=st.sampled_from([0, 0, 2, 4]),
    suppresses=st.booleans(),
    active=st.sampled_from([0, 0, 1, 3]),
)
def test_equals_fairseq(case: Case, beam: int, prefix: int, suppresses: bool, active: int) -> None:
    search = dict(case.search)
    if prefix:
        # Outputs longer than the prefix, so that hypotheses end after it.
        search = {**search, "max_len_b": max(search["max_len_b"], prefix + 1), "max_len_a": 0}
        search["prefix_tokens"], active = random_prefixes(case, prefix), 0
    elif suppresses and beam < 5:  # wider beams need more words
        search["tokens_to_suppress"] = [case.task.target_dictionary[token] for token in range(5, case.vocabulary, 3)]
    expected = fairseq_beam([case.verifier], case.task, case.sample, beam, **search)
    longest = [max(len(hypothesis["tokens"]) for hypothesis in every) for every in expected]
    for engine in ENGINES.values():
        how = {"engine": engine(), "beam_size": beam, "active_sentences": active}
        output, stats = case.decode(FAST_BEAM, **how, **search)
        assert_same_hypotheses(output, expected)
        assert [sum(sentence.emitted) for sentence in stats] == [len(best["tokens"]) for best, *_ in expected]
        assert [sentence.iterations for sentence in stats] == longest


@pytest.mark.parametrize("seed", range(3))
def test_a_hypothesis_without_a_continuation_is_ignored(seed: int) -> None:
    """One of all first tokens, EOS, leaves its place in the beam empty. The kernels leave so few words to PyTorch."""
    task, model, sample = make_all(8, seed, [4, 0, 7, 5], seed)
    search = {"max_len_b": 12, "min_len": 0}
    expected = fairseq_beam([model], task, sample, 7, **search)
    output, _ = decode([model], task, sample, FAST_BEAM, beam_size=7, **search)
    assert_same_hypotheses(output, expected)


@pytest.mark.parametrize("beam", [5, 16])
def test_a_large_batch(beam: int) -> None:
    task, model, sample = make_all(200, 5, [7 * number % 23 for number in range(32)])
    output, _ = decode([model], task, sample, FAST_BEAM, beam_size=beam, max_len_b=30)
    assert_same_hypotheses(output, fairseq_beam([model], task, sample, beam, max_len_b=30))
    assert all(len(every) == beam for every in output)


@settings(DETERMINISTIC, max_examples=example_count(20))
@given(values=st.lists(st.sampled_from([-1, -1, -1, 0]), min_size=20, max_size=20), beam=st.integers(2, 7))
def test_of_equal_scores_the_first_tokens_are_the_best(values: list[int], beam: int) -> None:
    """PyTorch leaves their order open. The kernels' must not depend on their parts of the vocabulary."""
    task, model, sample = make_all(24, 1, [3])
    with_fixed_scores(model, torch.tensor([-torch.inf, 0, -9, -torch.inf, *values]))
    output, _ = decode([model], task, sample, FAST_BEAM, beam_size=beam, max_len_b=1)
    best = sorted(range(20), key=lambda word: -values[word])[:beam]
    assert [hypothesis["tokens"].tolist() for hypothesis in output[0]] == [[4 + word, EOS] for word in best]


@pytest.mark.parametrize("engine", list(ENGINES))
def test_models_without_eos(engine: str) -> None:
    """All hypotheses end at the maximum length, where EOS is forced."""
    task, model, sample = make_all(60, 1, [5, 0, 18], ending=False, max_target_positions=20)
    expected = fairseq_beam([model], task, sample, 4, max_len_b=200)
    assert max(len(best["tokens"]) for best, *_ in expected) == 20
    output, _ = decode([model], task, sample, FAST_BEAM, engine=ENGINES[engine](), beam_size=4, max_len_b=200)
    assert_same_hypotheses(output, expected)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_model_with_nan_scores_is_an_error(engine: str) -> None:
    """fairseq fails, too, if all scores are NaN."""
    task, model, sample = make_all(200, 5, [7, 3])
    torch.nn.init.constant_(model.decoder.output_projection.weight, torch.nan)
    # The kernels notice NaN at once, PyTorch when EOS is forbidden.
    error = (RuntimeError, "not numbers") if engine == "kernels" else (ConfigurationError, "nothing may end after 6")
    with pytest.raises(error[0], match=error[1]):
        decode([model], task, sample, FAST_BEAM, engine=ENGINES[engine](), beam_size=2, max_len_b=6)


@settings(UNSHRUNK, max_examples=example_count(40))
@given(
    vocabulary=st.sampled_from([10, 12, 40]),
    allowed=st.integers(0, 7),
    beam=st.sampled_from([1, 2, 4, 5]),
    prefix=st.sampled_from([0, 0, 2]),
    min_len=st.sampled_from([0, 1, 3]),
    seed=st.integers(0, 1000),
)
@example(vocabulary=12, allowed=1, beam=5, prefix=0, min_len=3, seed=1)  # EOS is among the best, and forbidden
@example(vocabulary=10, allowed=6, beam=5, prefix=0, min_len=0, seed=0)  # too wide a beam for the kernels
def test_few_possible_tokens(vocabulary: int, allowed: int, beam: int, prefix: int, min_len: int, seed: int) -> None:
    """Fewer candidates than needed: hypotheses continue with unused columns, and return when others end."""
    task, model, sample = make_all(vocabulary, seed, [4, 0, 9], seed, ending=False)
    search: dict[str, Any] = {"max_len_b": 8, "min_len": min_len}
    bias = torch.full((vocabulary,), -torch.inf)
    bias[EOS] = 1
    if prefix:
        search["prefix_tokens"] = random_prefixes(Case({}, None, [4, 0, 9], {}, vocabulary, seed), prefix)
        bias[search["prefix_tokens"].flatten()] = 0
    # With EOS only, an output below the minimum length would have no candidate.
    words = torch.randperm(vocabulary - 4, generator=torch.Generator().manual_seed(seed)) + 4
    bias[words[: max(allowed, min(min_len, 1))]] = 0
    model.decoder.output_projection.bias = torch.nn.Parameter(bias)
    try:
        expected = fairseq_beam([model], task, sample, beam, **search)
    except AssertionError:
        expected = None  # it cannot continue, or EOS is forbidden
    for engine in ENGINES.values():
        how = {"engine": engine(), "beam_size": beam, **search}
        if expected is None:
            with pytest.raises(ConfigurationError, match="nothing may end"):
                decode([model], task, sample, FAST_BEAM, **how)
        else:
            assert_same_hypotheses(decode([model], task, sample, FAST_BEAM, **how)[0], expected)


def test_prefix_of_eos_only() -> None:
    """fairseq fails with several beams: only one hypothesis can end."""
    task, model, sample = make_all(40, 2, [4, 6])
    prefix = torch.tensor([[EOS], [7]])
    with pytest.raises(AssertionError):
        fairseq_beam([model], task, sample, 3, max_len_b=9, prefix_tokens=prefix)
    with error_about("--decoder", "--prefix-size"):
        decode([model], task, sample, FAST_BEAM, beam_size=3, max_len_b=9, prefix_tokens=prefix)
    expected = fairseq_beam([model], task, sample, 1, max_len_b=9, prefix_tokens=prefix)
    output, _ = decode([model], task, sample, FAST_BEAM, beam_size=1, max_len_b=9, prefix_tokens=prefix)
    assert_same_hypotheses(output, expected)

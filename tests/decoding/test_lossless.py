"""Lossless decoders give fairseq's own output, in both engines, with any model, drafts, batch, limits and prefix."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search.rules import TopBeta, exact, with_min_block
from tests.cases import Case, cases
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.errors import refused
from tests.strategies import (
    DRAFTERS,
    FEATURE_DRAFTERS,
    NATIVE,
    SEARCHES,
    SOURCES,
    TRANSFORMERS,
    UNSHRUNK,
    example_count,
)
from tests.support import (
    Options,
    ScriptedDrafter,
    always_right,
    always_wrong,
    assert_same_hypotheses,
    decode,
    fairseq_beam,
    ids,
    make_drafter,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)

PAD, EOS = 1, 2
TRAINED = st.one_of(DRAFTERS, FEATURE_DRAFTERS)
FALLBACK = st.one_of(st.none(), TRAINED)


def of(drafters: st.SearchStrategy[Any], **options: list[Any]) -> st.SearchStrategy[tuple]:
    """Return a strategy of some of these options of a decoder, and of those of its drafter."""
    choices = {name: st.sampled_from(values) for name, values in options.items()}
    return st.tuples(st.fixed_dictionaries({}, optional=choices), drafters)


GUESSES: dict[str, list[Any]] = {"jacobi_init": ["source", "unk"]}
DECODERS = {
    "greedy": of(st.none()),
    "gad": of(TRAINED, block_size=[1, 3, 10], fp32_drafts=[True], draft_vocabulary=[0.3, 1.0]),
    "gad++": of(TRAINED, block_size=[1, 3, 10], top_beta=[1, 5], tau=[0.5, 3.0], draft_vocabulary=[0.7, 1.0]),
    "blockwise": of(st.none(), block_size=[2, 3], top_beta=[3, 12], tau=[2.0], min_block=[2]),
    "iad": of(FALLBACK, block_size=[1, 4], fp32_drafts=[True]),
    "reuse": of(FALLBACK, block_size=[1, 3], fp32_drafts=[True]),
    "jacobi": of(st.none(), **GUESSES),
    "gs-jacobi": of(st.none(), block_size=[1, 3, 7], **GUESSES),
    "hybrid-jacobi": of(st.none(), block_size=[3, 10], jacobi_length=[1, 6], **GUESSES),
}


def random_prefixes(case: Case, width: int) -> torch.Tensor:
    """Return prefixes [B, width]: words, positions left free before, between and behind them, and a whole output."""
    generator = torch.Generator().manual_seed(case.seed)
    rows = torch.randint(4, case.vocabulary, (len(case.sources), width), generator=generator)
    free = torch.rand(rows.shape, generator=generator) < 0.4
    for row in range(0, len(rows), 2):
        free[row] = free[row].sort(descending=row % 4 == 2).values
    rows[free] = PAD
    if case.seed % 3 == 0:
        rows[-1] = torch.tensor([*range(4, 3 + width), EOS])
    return rows


def random_drafts(case: Case, outputs: list[list[int]]) -> list[list[list[int]]]:
    """Return drafts for each sentence: right, edited, wrong, empty, random, too long, or none."""
    generator = torch.Generator().manual_seed(case.seed)

    def number(end: int) -> int:
        return int(torch.randint(end, (1,), generator=generator))

    drafts = []
    for right in outputs:
        place, noise = number(len(right)), torch.randint(case.vocabulary, (40,), generator=generator).tolist()
        kinds = [
            right,
            [*right[:place], *[[], [4], [4, 5]][number(3)], *right[place + 1 :]],
            [(token + 1) % case.vocabulary for token in right],
            [],
            noise,
            [*right[:-1], *noise, *[5] * 80],
        ]
        drafts.append([kinds[number(6)] for _ in range(number(4))])
    return drafts


def linear(first: float, further: float) -> dict[float, float]:
    """Return a cost table: seconds of a call with one row, and of every further row."""
    return {1.0: first, 101.0: first + 100 * further}


# Seconds of steps, drafts and verification: dear steps make a policy draft, dear rows make it verify little, and a step
# that is dear for a single sentence makes it begin late.
STEPS = st.one_of(st.builds(linear, st.floats(0.5, 20), st.floats(0, 1)), st.just({1.0: 9.0, 2.0: 0.01, 100.0: 0.02}))
COSTS = st.tuples(
    STEPS, st.builds(linear, st.just(0.1), st.floats(0, 0.1)), st.builds(linear, st.just(1.0), st.floats(0, 5))
)


@pytest.mark.parametrize("decoder", DECODERS)
@settings(UNSHRUNK, max_examples=example_count(40))
@given(
    data=st.data(), width=st.sampled_from([0, 0, 1, 6]), suppresses=st.booleans(), active=st.integers(1, 5), costs=COSTS
)
def test_output_is_fairseqs(
    decoder: str, data: st.DataObject, width: int, suppresses: bool, active: int, costs: tuple
) -> None:
    """Also of sentences that wait, and with a policy. Relaxed decoders give the same in both engines."""
    options, drafter_options = data.draw(DECODERS[decoder])
    if drafter_options and data.draw(st.booleans()):
        # Sources and drafts go beyond its tables of positions.
        tables = {"max_source_positions": 9, "max_target_positions": 20, "encoder_learned_pos": True}
        drafter_options = {**drafter_options, **tables}
    case = data.draw(cases([9, 40, 300], st.just(drafter_options), st.one_of(NATIVE, NATIVE, TRANSFORMERS)))
    task, model, sample, search = case.task, case.verifier, case.sample, dict(case.search)
    if decoder == "blockwise":
        task, model = make_blockwise(case.seed, case.vocabulary, identity_first_head=case.seed % 2, **case.options)
    if width:
        search["prefix_tokens"] = random_prefixes(case, width)
    # Below the width of prefixes fairseq suppresses nothing.
    elif suppresses:
        search["tokens_to_suppress"] = [task.target_dictionary[token] for token in range(5, case.vocabulary, 3)]
    expected = fairseq_beam([model], task, sample, 1, **search)
    if decoder == "reuse":
        sample = {**sample, "drafts": random_drafts(case, ids(expected))}
    if case.drafter is not None:
        case.drafter.decoder.target_counts.copy_(torch.arange(case.vocabulary))
    if decoder == "gad++":
        # By default all drafts are accepted, and the output shows them.
        options = {"top_beta": 1000, "tau": math.inf, **options, "fp32_drafts": True}
    elif case.drafter is not None:
        options |= {} if decoder == "gad" else {"iad_fallback": "gad"}

    how, emitted = Options(decoder, **options), {}
    # With this small a cache, log-probabilities follow later.
    weights = NativeWeights(cached=data.draw(st.sampled_from([0, 2**22])))
    runs: dict[str, dict[str, Any]] = {"PyTorch": {"engine": Engine()}, "kernels": {"engine": weights}}
    if not width:
        runs["PyTorch, some"] = {"engine": Engine(), "active_sentences": active}
    is_exact = how.spec.accepts_exactly(how.options)
    for name, more in runs.items():
        output, stats = decode([model], task, sample, how, case.drafter, **more, **search)
        expected = expected if is_exact or name != "PyTorch" else output
        assert_same_hypotheses(output, expected)
        emitted[name] = [sentence.emitted for sentence in stats]
        assert list(map(sum, emitted[name])) == [len(tokens) for tokens in ids(expected)]
        assert {sentence.batch_size for sentence in stats} == {min(more.get("active_sentences", 99), len(stats))}
    # Rounded drafts differ between the engines, and so do guesses behind free positions of a prefix. In PyTorch the
    # window of `jacobi` depends on the sources of the others.
    is_rounded = case.drafter is not None and "fp32_drafts" not in options
    if not is_rounded and not (width and "jacobi" in decoder):
        assert emitted["kernels"] == emitted["PyTorch"]
        if decoder != "jacobi" and not width:
            assert emitted["PyTorch, some"] == emitted["PyTorch"]

    per_batch = {name: search.pop(name) for name in ("prefix_tokens", "bos_token") if name in search}
    generator, _ = make_generator([model], task, how, case.drafter, **search)
    generator.needs_scores = False
    assert ids(generator.generate([model], sample, **per_batch)) == ids(output)

    if decoder not in ("greedy", "gad++"):
        how = Options(decoder, fixed_width=False, **options)
        generator, _ = make_generator([model], task, how, case.drafter, engine=weights, **search)
        policy = getattr(generator.backend.method, "policy", None)
        if policy is not None:
            policy.costs = kernels().Costs(*costs)
        for _ in range(2):
            assert_same_hypotheses(generator.generate([model], sample, **per_batch), expected)


@settings(UNSHRUNK, max_examples=example_count(16))
@given(
    models=st.lists(TRANSFORMERS, min_size=2, max_size=3),
    sources=SOURCES,
    search=SEARCHES,
    active=st.integers(0, 3),
    beam=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 1000),
)
def test_ensembles(models: list[dict], sources: list[int], search: dict, active: int, beam: int, seed: int) -> None:
    task = make_task(60)
    verifiers = [make_transformer(task, seed + index, **options) for index, options in enumerate(models)]
    sample, drafter = make_sample(task, sources, seed), make_drafter(task, seed)
    expected = fairseq_beam(verifiers, task, sample, 1, **search)
    for how in (Options("greedy"), Options("gad", 4), Options("iad")):
        output, _ = decode(verifiers, task, sample, how, drafter, active_sentences=active, **search)
        assert_same_hypotheses(output, expected)
    more = {"beam_size": beam, "active_sentences": active}
    beams, _ = decode(verifiers, task, sample, Options("fast-beam"), **more, **search)
    assert_same_hypotheses(beams, fairseq_beam(verifiers, task, sample, beam, **search))


@pytest.mark.parametrize("script", [always_right, always_wrong])
@pytest.mark.parametrize("rule", [exact, TopBeta(3, 50.0), with_min_block(3, exact)])
def test_drafts_do_not_replace_forced_tokens(script: Any, rule: Any) -> None:
    """Relaxed rules may accept other tokens, but only where the prefix leaves a position free."""
    case = Case({}, None, [5, 3, 8], {"max_len_b": 20, "min_len": 8}, 12, 1)
    prefix = random_prefixes(case, 7)
    expected = ids(case.fairseq(prefix_tokens=prefix))
    search = {**case.search, "prefix_tokens": prefix}
    drafter = ScriptedDrafter(script(expected), 4)
    output, _ = decode([case.verifier], case.task, case.sample, drafter, rule=rule, **search)
    for row, forced in zip(ids(output), prefix.tolist(), strict=True):
        assert all(wanted in (PAD, token) for token, wanted in zip(row, forced, strict=False))
    if rule is exact or script is always_right:
        assert ids(output) == expected


def test_prefixes_need_no_scores_of_the_drafter() -> None:
    """Nothing scores the tokens of a prefix, which are its first draft."""
    case = Case({}, {}, [5, 3, 8], {"max_len_b": 20}, 12, 1)
    prefix = random_prefixes(case, 7)
    relaxed = Options("gad++", 4, top_beta=3, tau=1.0, accept_score="drafter")
    for row, forced in zip(ids(case.decode(relaxed, prefix_tokens=prefix)[0]), prefix.tolist(), strict=True):
        assert all(wanted in (PAD, token) for token, wanted in zip(row, forced, strict=False))


def test_sentences_with_prefixes_wait_for_none_in_pytorch() -> None:
    """The compiled kernels admit sentences themselves."""
    case = Case({}, None, [3, 4, 5], {"max_len_b": 20, "prefix_tokens": torch.full((3, 1), 7)}, 12, 1)
    with refused("--active-sentences.*--prefix-size"):
        case.decode(Options("greedy"), engine=Engine(), active_sentences=2)
    assert_same_hypotheses(case.decode(Options("greedy"), active_sentences=2)[0], case.fairseq())

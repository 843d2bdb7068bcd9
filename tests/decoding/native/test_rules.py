"""Compare rules that exist in Python and in C++: allowed tokens, the best token, and acceptance."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fairseq_plugins.decoding.generator import DraftVerifyGenerator
from fairseq_plugins.decoding.method import KernelMethod, MethodContext, MethodOptions
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.native.backend import NativeBackend
from fairseq_plugins.decoding.reference.drafters.copying import NEAREST_MAX_MATCH, CopyDrafter, draft_texts
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.search.rules import Rule, TopBeta, exact, with_min_block, within_distance
from tests.strategies import SEARCHES, UNSHRUNK, example_count
from tests.support import (
    Options,
    RecordedStats,
    assert_same_output,
    decode,
    fairseq_greedy,
    ids,
    make_all,
    make_sample,
    make_task,
    make_transformer,
    scores,
)

VOCABULARY, PAD, EOS = 12, 1, 2
SOURCES = [4, 0, 6]
WIDTH = max(SOURCES) + 1

# Value of each symbol; NaN for words.
NUMBERS = torch.tensor([math.nan] * 5 + [0.0, 1.0, 2.0, 3.0, 4.0, 8.0, math.nan])


def make_rule(name: str, beta: int, tau: float, epsilon: float) -> tuple[Rule, Any]:
    """Return an acceptance rule in Python, and that of the kernels."""
    module = kernels()
    if name == "top beta":
        return TopBeta(beta, tau), module.accept_top_beta(beta, tau)
    if name == "distance":
        return within_distance(epsilon, NUMBERS), module.accept_within_distance(epsilon, NUMBERS)
    return exact, None


def run_copying(
    model: nn.Module, task: Any, sample: dict[str, Any], texts: Tensor, acceptance: Any, **search: Any
) -> tuple[list, list[list[int]]]:
    """Decode on the kernels with parts of given texts [B, T] as drafts; return outputs and emitted tokens."""
    drafter = kernels().CopyDrafter(kernels().Lookup.NEAREST, NEAREST_MAX_MATCH, WIDTH)

    def build(context: MethodContext, options: MethodOptions) -> KernelMethod:
        return KernelMethod(context.weights, drafter, acceptance, drafts=lambda _: texts[:, None].tolist())

    how = Options("greedy")
    spec = replace(how.spec, build_kernels=build)
    context = how.context([model], None, task, temperature=search.get("temperature", 1.0))
    backend = NativeBackend(spec, how.options, context)
    stats = RecordedStats()
    per_batch = {name: search.pop(name) for name in ("bos_token", "prefix_tokens") if name in search}
    generator = DraftVerifyGenerator([model], task.target_dictionary, spec, lambda: backend, stats, **search)
    output = generator.generate([model], sample, **per_batch)
    return output, [sentence.emitted for sentence in stats.recorded]


def with_fixed_scores(model: Any, values: Tensor) -> Any:
    """Return the model, changed to give these scores [V] at every position."""
    output = model.decoder.output_projection
    output.weight = nn.Parameter(torch.zeros_like(output.weight))
    output.bias = nn.Parameter(values)
    return model


@settings(UNSHRUNK, max_examples=example_count(120))
@given(
    rule=st.sampled_from(["exact", "top beta", "distance"]),
    block=st.sampled_from([0, 0, 1, 3]),
    beta=st.integers(1, 6),
    tau=st.sampled_from([0.3, 1.6, 4.5, math.inf]),
    epsilon=st.sampled_from([0.0, 1.0, 2.5]),
    fixed=st.booleans(),
    search=SEARCHES,
    prefix=st.sampled_from([None, None, [5, 6], [7]]),
    seed=st.integers(0, 500),
)
def test_acceptance(
    rule: str,
    block: int,
    beta: int,
    tau: float,
    epsilon: float,
    fixed: bool,
    search: dict[str, Any],
    prefix: list[int] | None,
    seed: int,
) -> None:
    """Drafts are copied from random texts. Fixed scores have many ties, and forbid some tokens."""
    generator = torch.Generator().manual_seed(seed)
    task = make_task(VOCABULARY)
    model = make_transformer(task, seed)
    if fixed:
        values = torch.randint(-3, 4, (VOCABULARY,), generator=generator).float()
        # With --unkpen rounding would decide ties.
        values[task.target_dictionary.unk()] += 0.25
        forbidden = torch.rand(VOCABULARY, generator=generator) < 0.2
        forbidden[[EOS, 6]] = False
        model = with_fixed_scores(model, values.masked_fill(forbidden, -torch.inf))
    sample = make_sample(task, SOURCES, seed)
    texts = torch.randint(0, VOCABULARY, (len(SOURCES), 60), generator=generator)
    if prefix is not None:
        search = {**search, "prefix_tokens": torch.tensor([prefix] * len(SOURCES))}
    python, native = make_rule(rule, beta, tau, epsilon)
    if block:
        python, native = with_min_block(block, python), kernels().accept_at_least(block, native)

    copying = CopyDrafter(lambda _: draft_texts(texts[:, None].tolist()), "nearest", WIDTH)
    expected, stats = decode([model], task, sample, copying, rule=python, engine=Engine(), **search)
    output, emitted = run_copying(model, task, sample, texts, native, **search)
    assert_same_output(output, expected)
    assert emitted == [sentence.emitted for sentence in stats]


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        (lambda: kernels().accept_top_beta(12, math.inf), 1.5),
        (lambda: kernels().accept_within_distance(8.0, NUMBERS), 1.05),
        (lambda: kernels().accept_at_least(4, None), 2.5),
    ],
)
def test_relaxed_rules_accept_more(rule: Callable[[], Any], more: float) -> None:
    """Guard `test_acceptance`, which would pass trivially if relaxed rules accepted nothing more."""
    task, model, sample = make_all(VOCABULARY, 3, SOURCES, ending=False)
    texts = torch.randint(5, 11, (3, 60), generator=torch.Generator().manual_seed(0))
    search = {"max_len_b": 30, "min_len": 20}
    counts = []
    for acceptance in (None, rule()):
        _, emitted = run_copying(model, task, sample, texts, acceptance, **search)
        counts.append(sum(map(sum, emitted)) / sum(map(len, emitted)))
    assert counts[1] > more * counts[0]


@settings(UNSHRUNK, max_examples=example_count(80))
@given(
    size=st.integers(5, 300),
    equal=st.booleans(),
    forbidden=st.booleans(),
    search=SEARCHES,
    prefix=st.sampled_from([None, None, [4], [3, 1]]),
    seed=st.integers(0, 999),
)
def test_the_best_token_and_its_probability(
    size: int, equal: bool, forbidden: bool, search: dict[str, Any], prefix: list[int] | None, seed: int
) -> None:
    """Vocabularies have any size; of equal scores the first token is the best."""
    generator = torch.Generator().manual_seed(seed)
    task = make_task(size)
    search = {name: value for name, value in search.items() if name != "bos_token"}
    values = 5 * torch.randn(size, generator=generator)
    values = values.round() if equal else values
    if forbidden:
        values[torch.rand(size, generator=generator) < 0.5] = -torch.inf
        # The tokens of prefixes: fairseq's search never ends a hypothesis with one of no probability.
        values[[EOS, 3, 4]] = torch.tensor([0.0, 0.25, 0.0])
    model = with_fixed_scores(make_transformer(task, 1, ending=False), values)
    sample = make_sample(task, [2, 0])
    if prefix is not None:
        search["prefix_tokens"] = torch.tensor([prefix, [1] * len(prefix)])
    output, _ = decode([model], task, sample, Options("greedy"), **search)
    # Of equal scores fairseq takes whichever its search finds first.
    expected, _ = decode([model], task, sample, Options("greedy"), engine=Engine(), **search)
    assert equal or ids(expected) == ids(fairseq_greedy([model], task, sample, **search))
    assert ids(output) == ids(expected)
    for ours, theirs in zip(scores(output), scores(expected), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

"""Drafts save iterations, in both engines, by policy, and one sentence at a time: without that equal output is easy."""

from functools import cache
from typing import Any

import pytest

from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.native.model import NativeWeights
from fairseq_plugins.decoding.reference.engine import Engine
from tests.decoding.methods.test_blockwise import make_blockwise
from tests.learned import learned_drafter, learned_rewriter
from tests.support import (
    Options,
    assert_same_output,
    emitted_per_iteration,
    fairseq_greedy,
    ids,
    make_generator,
    make_sample,
    make_task,
    make_transformer,
)

# They share the trained drafters of `known`, with those of traces.
pytestmark = pytest.mark.xdist_group("known")

SOURCES = [0, 1, 33, 7, 2, 19, 0, 40, *range(8)]
DRAFTERS: dict[str, dict[str, Any]] = {
    "tokens": {"drafter_attention": "prefix-causal"},
    "full": {"drafter_attention": "full", "share_encoder": True},
    "features": {"drafter_context": "features"},
}
# Decoder, its model and drafter, and tokens per iteration that it reaches at least. Twelve sentences of sixteen are
# known to the drafters. With 10 copies of the most frequent token an iteration would give 1.24.
GAINS = [
    *[(Options("gad", size), "random", kind, 1.25) for kind in DRAFTERS for size in (3, 25)],
    (Options("iad", 6, iad_fallback="gad"), "random", "features", 1.25),
    (Options("iad", 6, iad_fallback="gad"), "random", "full", 1.25),
    (Options("reuse", 9), "random", None, 1.5),
    (Options("reuse", 9, iad_fallback="gad"), "random", "features", 1.8),
    (Options("blockwise"), "heads", None, 1.6),
    (Options("iad"), "rewriter", None, 4.0),
    (Options("jacobi"), "few words", None, 1.2),
    (Options("jacobi", jacobi_init="source"), "few words", None, 1.2),
    (Options("gs-jacobi"), "few words", None, 1.4),
    (Options("hybrid-jacobi", block_size=7, jacobi_length=10), "few words", None, 1.02),
]


class Batch:
    """A verifier, a batch and fairseq's output for it."""

    def __init__(self, kind: str) -> None:
        self.task = make_task({"random": 100, "rewriter": 40}.get(kind, 9))
        self.sample = make_sample(self.task, [4, 12, 7, 20, 3, 9, 15, 11] if kind == "rewriter" else SOURCES)
        if kind == "heads":
            self.task, self.model = make_blockwise(3, 9, identity_first_head=True)
        elif kind == "rewriter":
            self.model = learned_rewriter(self.task, self.sample)
        else:
            self.model = make_transformer(self.task, 11 if kind == "random" else 8)
        self.expected = fairseq_greedy([self.model], self.task, self.sample, max_len_b=40)
        self.drafters: dict[str, Any] = {}
        # Half of an output is known, from another place on.
        self.sample["drafts"] = [[tokens[: len(tokens) // 2], tokens[3:]] for tokens in ids(self.expected)]

    def drafter(self, kind: str | None) -> Any:
        if kind is None:
            return None
        if kind not in self.drafters:
            outputs = ids(self.expected)
            self.drafters[kind] = learned_drafter(self.task, self.model, self.sample, outputs, **DRAFTERS[kind])
        return self.drafters[kind]

    def singles(self) -> list[dict[str, Any]]:
        """Return the sentences one by one, without padding."""
        rows = zip(self.sample["net_input"]["src_tokens"], self.sample["net_input"]["src_lengths"], strict=True)
        nets = [{"src_tokens": row[None, -length:], "src_lengths": length[None]} for row, length in rows]
        return [{"net_input": net, "drafts": [drafts]} for net, drafts in zip(nets, self.sample["drafts"], strict=True)]


known = cache(Batch)


@pytest.mark.parametrize(("how", "kind", "drafter", "least"), GAINS, ids=str)
def test_drafts_save_iterations(how: Options, kind: str, drafter: str | None, least: float) -> None:
    """In both engines as many, unless drafts depend on other sentences: blocks of masks, near the limit."""
    case = known(kind)
    model = case.drafter(drafter)

    def generator_for(options: Options = how, **more: Any) -> tuple[Any, Any]:
        return make_generator([case.model], case.task, options, model, max_len_b=40, **more)

    unrounded = Options(how.spec.name, **{**vars(how.options), **({} if model is None else {"fp32_drafts": True})})
    # Dear steps make the policy draft.
    by_policy = Options(how.spec.name, **{**vars(how.options), "fixed_width": False})
    is_alone, emitted = drafter in (None, "features"), {}
    for name, options, engine in (
        ("kernels", unrounded, None),
        ("PyTorch", how, Engine()),
        ("policy", by_policy, None),
    ):
        generator, stats = generator_for(options, engine=engine)
        if name == "policy":
            costs = [{1.0: first, 2.0: first + further} for first, further in ((9.0, 9.0), (1e-3, 1e-3), (1.0, 0.0))]
            generator.backend.method.policy.costs = kernels().Costs(*costs)
        assert_same_output(generator.generate([], case.sample), case.expected)
        assert emitted_per_iteration(stats.recorded) > (1 + 0.8 * (least - 1) if name == "policy" else least), name
        emitted[name] = [sentence.emitted for sentence in stats.recorded]
    assert emitted["kernels"] == emitted["PyTorch"] or not is_alone
    if is_alone and how.spec.name != "jacobi":  # whose window depends on the sources of a batch
        generator, stats = generator_for(engine=Engine(), active_sentences=5)
        generator.generate([], case.sample)
        assert [sentence.emitted for sentence in stats.recorded] == emitted["PyTorch"]
    generator, stats = generator_for()
    assert_same_output([row for sample in case.singles() for row in generator.generate([], sample)], case.expected)
    assert emitted_per_iteration(stats.recorded) > least


@pytest.mark.parametrize("make", [NativeWeights, Engine], ids=["native", "torch"])
@pytest.mark.parametrize(("how", "drafter"), [(Options("gad", 10), "features"), (Options("jacobi"), None)], ids=str)
def test_drafts_in_int8_save_iterations(make: Any, how: Options, drafter: str | None) -> None:
    """`--int8` rounds weights: the output differs from fairseq's, and drafts are still accepted."""
    case, found = known("random"), []
    for method in (Options("greedy"), how):
        engine = make(int8=True)
        generator, stats = make_generator([case.model], case.task, method, case.drafter(drafter), engine=engine)
        found.append(ids(generator.generate([], case.sample)))
    assert found[0] == found[1] != ids(case.expected)
    assert emitted_per_iteration(stats.recorded) > 1.1

"""Paths of drafts: the compiled kernels choose the same tokens and probabilities as PyTorch."""

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.method import KernelMethod, MethodContext
from fairseq_plugins.decoding.native import kernels
from fairseq_plugins.decoding.reference.drafters import Drafter
from fairseq_plugins.decoding.reference.engine import Engine
from fairseq_plugins.decoding.reference.state import DecodingState, Draft
from fairseq_plugins.decoding.trained_drafter import kernel_drafter
from tests.strategies import UNSHRUNK, example_count
from tests.support import Options, assert_same_output, decode, make_drafter, make_sample, make_task, make_transformer

# Sums of a vocabulary differ by rounding.
ROUNDING = 1e-3


class Watched:
    """Drafts as another drafter, and records position and survival of what the kernels verify: tokens before EOS."""

    def __init__(self, inner: Drafter, eos: int) -> None:
        self.inner, self.eos = inner, eos
        self.seen: list[tuple[int, float]] = []

    def draft(self, state: DecodingState) -> Draft:
        draft = self.inner.draft(state)
        for row, length in enumerate(state.host_lengths if draft.tokens.size(1) else []):
            assert draft.survival is not None
            tokens = draft.tokens[row].tolist()
            end = tokens.index(self.eos) if self.eos in tokens else len(tokens)
            self.seen += enumerate(draft.survival[row, : min(end, state.max_len - length)].tolist())
        return draft

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def assert_in_bins(counts: list[list[float]], seen: list[tuple[int, float]]) -> None:
    """Check counts [width, bins]; rounding may move some to the next bin."""
    for position, row in enumerate(counts):
        found, total = torch.tensor([value for at, value in seen if at == position]), 0.0
        for number, count in enumerate(row[:-1], 1):
            total += count
            limit = number / len(row)
            assert (found * (1 + ROUNDING) < limit).sum() <= total <= (found * (1 - ROUNDING) < limit).sum()
        assert sum(row) == len(found)


@settings(UNSHRUNK, max_examples=example_count(60))
@given(
    kind=st.sampled_from(["features", "full", "prefix-causal"]),
    sources=st.lists(st.one_of(st.integers(0, 9), st.integers(10, 40)), min_size=1, max_size=4),
    width=st.integers(1, 6),
    vocabulary=st.integers(9, 200),
    rank=st.sampled_from([0, 1, 3, 20]),
    state=st.sampled_from([0, 1, 8, 19]),
    share=st.sampled_from([1.0, 0.7]),
    copies=st.booleans(),
    learned=st.booleans(),
    min_len=st.sampled_from([1, 40]),
    seed=st.integers(0, 99),
)
def test_kernels_choose_the_same_path_as_pytorch(
    kind: str,
    sources: list[int],
    width: int,
    vocabulary: int,
    rank: int,
    state: int,
    share: float,
    copies: bool,
    learned: bool,
    min_len: int,
    seed: int,
) -> None:
    """All drafts are accepted and in the output. Masks may copy the source, also beyond a table's end."""
    task = make_task(vocabulary)
    verifier = make_transformer(task, seed)
    reads = {"drafter_context": kind} if kind == "features" else {"drafter_attention": kind}
    sizes = {"transition_rank": rank, "transition_state": state if rank else 0}
    positions = {"decoder_learned_pos": learned, "max_target_positions": 12}
    drafter = make_drafter(task, seed + 1, verifier=verifier, src_embedding_copy=copies, **positions, **sizes, **reads)
    torch.nn.init.normal_(drafter.decoder.mask_vector)
    drafter.decoder.target_counts[:] = torch.arange(vocabulary) + 1
    sample, search = make_sample(task, sources, seed), {"max_len_b": min_len + 9, "min_len": min_len}
    how = Options("gad++", width, top_beta=vocabulary, tau=float("inf"), draft_vocabulary=share, fp32_drafts=True)
    in_pytorch = replace(how.context([verifier], drafter, task, Engine()), is_traced=True)
    assert how.spec.build is not None
    method = how.spec.build(in_pytorch, how.options)
    watched = Watched(method.drafter, task.target_dictionary.eos())
    expected, stats = decode([verifier], task, sample, replace(method, drafter=watched), **search)

    policy = kernels().Policy(width, always_drafts=True)

    def build(context: MethodContext, options: Any) -> KernelMethod:
        assert context.weights is not None
        accept = kernels().accept_top_beta(options.top_beta, options.tau)
        return KernelMethod(context.weights, kernel_drafter(context, options), accept, policy)

    how.spec = replace(how.spec, build_kernels=build)
    ours, same = decode([verifier], task, sample, how, drafter, **search)
    assert_same_output(ours, expected)
    assert [sentence.emitted for sentence in same] == [sentence.emitted for sentence in stats]
    _, seen, tried, right = policy.counts()
    emitted = [count for sentence in same for count in sentence.emitted]
    assert seen == tried and sum(right) >= sum(emitted) - len(emitted)
    # Most drafts are allowed: no padding, no early EOS.
    assert width < 3 or max(sources) < 3 or max(emitted) > 1
    bins = kernels().BINS
    assert_in_bins([seen[t * bins : (t + 1) * bins] for t in range(width)], watched.seen)

"""The drafters without training: what they draft, and that the output stays fairseq's."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.cached_decoder import Span
from fairseq_plugins.decoding.drafters import DecodingState
from fairseq_plugins.decoding.drafters.jacobi import JacobiDrafter
from fairseq_plugins.decoding.drafters.lookup import continuation, latest_place, suffix_match, unique_place
from fairseq_plugins.decoding.drafters.source_copy import SourceCopyDrafter
from fairseq_plugins.decoding.methods import JACOBI, Options
from fairseq_plugins.decoding.verifier import Verifier
from fairseq_plugins.models.blockwise_transformer import BlockwiseTransformer, blockwise_transformer
from tests.strategies import SEARCHES, SOURCES, STEADY, STEADY_MODELS, TRANSFORMERS
from tests.support import (
    assert_same_output,
    decode,
    fairseq_greedy,
    ids,
    make_args,
    make_drafter,
    make_sample,
    make_task,
    make_transformer,
)

METHODS = [
    Options("iad"),
    Options("iad", iad_lookup="recent"),
    Options("jacobi"),
    Options("jacobi", jacobi_init="source"),
    Options("jacobi", jacobi_init="unk", jacobi_pool=True),
    Options("gs-jacobi"),
    Options("gs-jacobi", block_size=1),
    Options("gs-jacobi", block_size=7, jacobi_pool=True),
    Options("hybrid-jacobi", block_size=3, jacobi_length=10),
    Options("hybrid-jacobi", jacobi_length=1),
]


@settings(STEADY_MODELS, max_examples=40)
@given(
    method=st.sampled_from(METHODS),
    options=TRANSFORMERS,
    vocabulary=st.sampled_from([9, 40]),
    sources=SOURCES,
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_untrained_methods_equal_fairseq(
    method: Options, options: dict[str, Any], vocabulary: int, sources: list[int], search: dict[str, Any], seed: int
) -> None:
    task = make_task(vocabulary)
    verifier = make_transformer(task, seed, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([verifier], task, sample, **search)
    drafted, _ = decode([verifier], task, sample, method, **search)
    assert_same_output(drafted, expected)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
@pytest.mark.parametrize("method", METHODS[:9], ids=lambda o: f"{o.decoder}-{o.block_size}-{o.jacobi_init}")
def test_batch_sizes(method: Options, batch_size: int) -> None:
    task = make_task(9)
    verifier = make_transformer(task, 8)
    sample = make_sample(task, [0, 1, 33, 7, 2, 19, 0, *range(25)][:batch_size])
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    drafted, _ = decode([verifier], task, sample, method, max_len_b=30)
    assert_same_output(drafted, expected)


def test_iad_with_a_fallback_equals_fairseq() -> None:
    task = make_task(9)
    verifier, drafter = make_transformer(task, 3), make_drafter(task, 4, block_size=6)
    sample = make_sample(task, [4, 0, 12, 7], 3)
    expected = fairseq_greedy([verifier], task, sample, max_len_b=30)
    drafted, _ = decode([verifier], task, sample, Options("iad", 6, iad_fallback="gad"), drafter, max_len_b=30)
    assert_same_output(drafted, expected)


# Input-guided aggressive decoding


def slow_match(text: list[int], output: list[int]) -> list[int]:
    """Common suffixes by the definition."""
    lengths = []
    for end in range(1, len(text) + 1):
        length = 0
        while length < min(end, len(output)) and text[end - 1 - length] == output[-1 - length]:
            length += 1
        lengths.append(length)
    return lengths


WORDS = st.lists(st.integers(4, 7), min_size=1, max_size=9)


@settings(STEADY, max_examples=80)
@given(pairs=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_suffix_match_equals_a_loop(pairs: list[tuple[list[int], list[int]]]) -> None:
    width, longest = max(len(text) for text, _ in pairs), max(len(output) for _, output in pairs)
    text = torch.tensor([text + [-1] * (width - len(text)) for text, _ in pairs])
    output = torch.tensor([output + [9] * (longest - len(output)) for _, output in pairs])
    match = suffix_match(text, output, torch.tensor([len(output) - 1 for _, output in pairs]))
    unique, is_unique = unique_place(match)
    latest, any_match = latest_place(match)
    for row, (words, known) in enumerate(pairs):
        expected = slow_match(words, known)
        assert match[row, : len(words)].tolist() == expected
        assert match[row, len(words) :].sum() == 0
        # Algorithm 1, line 3: some suffix of the output stands exactly once in the source.
        once = any(sum(length > q for length in expected) == 1 for q in range(len(known)))
        assert bool(is_unique[row]) == once
        if once:
            assert expected[int(unique[row])] == max(expected)
        assert bool(any_match[row]) == (max(expected) > 0)
        if max(expected) > 0:
            assert int(latest[row]) == len(words) - 1 - expected[::-1].index(max(expected))


def test_continuation_stops_at_the_end_of_the_text() -> None:
    text = torch.tensor([[4, 5, 6, -1], [4, 5, 6, 7]])
    tokens, widths = continuation(text, torch.tensor([0, 1]), torch.tensor([True, True]), 3)
    assert widths.tolist() == [2, 2] and tokens.tolist() == [[5, 6], [6, 7]]
    tokens, widths = continuation(text, torch.tensor([0, 1]), torch.tensor([False, False]), 3)
    assert widths.tolist() == [0, 0] and tokens.shape == (2, 0)


def drafts_of(drafter: Any, source: list[int], outputs: list[list[int]]) -> list[list[int]]:
    """What a drafter drafts behind each of these outputs of one sentence."""
    drafter.start({"net_input": {"src_tokens": torch.tensor([source])}}, None)
    result = []
    for output in outputs:
        tokens = torch.full((1, 60), 1)
        tokens[0, : len(output) + 1] = torch.tensor([2, *output])
        draft = drafter.draft(DecodingState(tokens, torch.tensor([len(output)]), [len(output)], 50))
        width = draft.tokens.size(1) if draft.widths is None else int(draft.widths[0])
        result.append(draft.tokens[0, :width].tolist())
    return result


def test_first_copy_is_the_whole_source() -> None:
    assert drafts_of(SourceCopyDrafter(1), [10, 11, 12, 2], [[]]) == [[10, 11, 12, 2]]


def test_copy_after_a_unique_match_only() -> None:
    source = [10, 11, 12, 10, 13, 2]
    outputs = [[20], [20, 11], [20, 10], [20, 12, 10], [10, 11, 12, 10, 13, 2]]
    expected = [[], [12, 10, 13, 2], [], [13, 2], []]
    assert drafts_of(SourceCopyDrafter(1), source, outputs) == expected
    # The most recent of the longest matches, in source or output: 10 alone stands last at place 3.
    assert drafts_of(SourceCopyDrafter(1, recent=True), source, [[20, 10]]) == [[13, 2]]
    assert drafts_of(SourceCopyDrafter(1, recent=True), source, [[30, 31, 32, 30]]) == [[31, 32]]


class ScriptedModel:
    """Says the next token of a fixed output whatever was drafted, as a verifier's scores [1, T, V]."""

    def __init__(self, output: list[int], size: int) -> None:
        self.output = [*output, *[2] * 60]
        self.size = size

    def scores(self, length: int, width: int) -> torch.Tensor:
        best = torch.tensor(self.output[length : length + width])
        return torch.nn.functional.one_hot(best, self.size)[None].float()


def blocks_of(drafter: Any, source: list[int], output: list[int]) -> list[int]:
    """Tokens gained in every iteration when the verifier wants exactly `output`."""
    from fairseq_plugins.decoding.acceptance import accepted_prefix, exact
    from fairseq_plugins.decoding.drafters import Verdict

    drafter.start({"net_input": {"src_tokens": torch.tensor([source])}}, None)
    model, done, gains = ScriptedModel(output, 50), [2], []
    while len(done) - 1 < len(output):
        length = len(done) - 1
        tokens = torch.full((1, 80), 1)
        tokens[0, : len(done)] = torch.tensor(done)
        draft = drafter.draft(DecodingState(tokens, torch.tensor([length]), [length], 50))
        scores = model.scores(length, draft.tokens.size(1) + 1)
        choice = scores.argmax(-1)
        accepted = accepted_prefix(exact(draft, scores, choice), draft.widths)
        lengths = torch.tensor([length])
        drafter.observe(Verdict(draft, choice, accepted, None, None, lengths, Span(length, length), [0]))
        gained = min(int(accepted) + 1, len(output) - length)
        done += choice[0, :gained].tolist()
        gains.append(gained)
    return gains


def test_input_guided_blocks() -> None:
    """One insertion and one replacement: copy, one token at a time until a suffix matches again, copy."""
    source = [10, 11, 12, 13, 14, 15, 2]
    # Unchanged: one iteration. The EOS of the source is copied with it.
    assert blocks_of(SourceCopyDrafter(1), source, source) == [7]
    # 20 inserted after 11: bifurcation there; 20 matches nothing, 12 does.
    assert blocks_of(SourceCopyDrafter(1), source, [10, 11, 20, 12, 13, 14, 15, 2]) == [3, 1, 4]
    # 13 replaced by 21 and 15 by 22.
    assert blocks_of(SourceCopyDrafter(1), source, [10, 11, 12, 21, 14, 22, 2]) == [4, 1, 1, 1]


# Jacobi


@pytest.mark.parametrize("method", [Options(name) for name in JACOBI], ids=list(JACOBI))
def test_jacobi_never_needs_more_iterations_than_tokens(method: Options) -> None:
    task = make_task(100)
    verifier = make_transformer(task, 8, share_decoder_input_output_embed=True)
    _, stats = decode([verifier], task, make_sample(task, [0, 3, 30, 7, 12]), method, max_len_b=40)
    assert all(sentence.iterations <= sentence.tokens for sentence in stats)


def test_jacobi_worst_case_and_best_case() -> None:
    # A verifier that goes its own way whatever it is given converges in one iteration more than the first guess needs.
    output = [10, 11, 12, 13, 14, 2]
    assert blocks_of(JacobiDrafter(1, None, None, 1), [5] * 5 + [2], output) == [1, 5]
    assert blocks_of(JacobiDrafter(1, 3, None, 1), [5] * 5 + [2], output) == [1, 2, 1, 2]
    assert blocks_of(JacobiDrafter(1, 3, 3, 1), [5] * 5 + [2], output) == [1, 2, 1, 1, 1]
    assert blocks_of(JacobiDrafter(1, 1, None, 1), [5] * 5 + [2], output) == [1] * 6


def test_jacobi_starts_from_the_source() -> None:
    source = [10, 11, 12, 13, 14, 2]
    assert blocks_of(JacobiDrafter(1, None, None, None), source, source) == [6]


# Blockwise


def make_blockwise(seed: int, vocabulary: int = 12, **options: Any) -> tuple[Any, BlockwiseTransformer]:
    task = make_task(vocabulary)
    torch.manual_seed(seed)
    args = make_args(blockwise_heads=4, **options)
    blockwise_transformer(args)
    model = BlockwiseTransformer.build_model(args, task)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return task, model.eval()


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("block_size", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_exact_blockwise_equals_fairseq(seed: int, block_size: int, identity: bool) -> None:
    task, model = make_blockwise(seed, identity_first_head=identity)
    sample = make_sample(task, [5, 1, 0, 17, 9], seed)
    expected = fairseq_greedy([model], task, sample, max_len_b=25)
    drafted, _ = decode([model], task, sample, Options("blockwise", block_size), max_len_b=25)
    assert_same_output(drafted, expected)


@settings(STEADY_MODELS, max_examples=20)
@given(
    block_size=st.sampled_from([None, 2, 3]),
    identity=st.booleans(),
    options=TRANSFORMERS,
    sources=SOURCES,
    search=SEARCHES,
    seed=st.integers(0, 1000),
)
def test_exact_blockwise_equals_fairseq_everywhere(
    block_size: int | None,
    identity: bool,
    options: dict[str, Any],
    sources: list[int],
    search: dict[str, Any],
    seed: int,
) -> None:
    task, model = make_blockwise(seed, identity_first_head=identity, **options)
    sample = make_sample(task, sources, seed)
    expected = fairseq_greedy([model], task, sample, **search)
    drafted, _ = decode([model], task, sample, Options("blockwise", block_size), **search)
    assert_same_output(drafted, expected)


@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_blockwise_batch_sizes(batch_size: int) -> None:
    task, model = make_blockwise(3, 9, identity_first_head=True)
    sample = make_sample(task, [0, 1, 33, 7, 2, 19, 0, *range(25)][:batch_size])
    expected = fairseq_greedy([model], task, sample, max_len_b=30)
    drafted, _ = decode([model], task, sample, Options("blockwise"), max_len_b=30)
    assert_same_output(drafted, expected)


def test_fresh_heads_with_identity_are_the_base_model() -> None:
    task = make_task(12)
    args = make_args(blockwise_heads=3, identity_first_head=True)
    blockwise_transformer(args)
    torch.manual_seed(0)
    model = BlockwiseTransformer.build_model(args, task).eval()
    hidden = torch.randn(2, 3, 16)
    states = model.decoder.head_states(hidden, 1, 3)
    torch.testing.assert_close(states, hidden[:, :, None].expand(-1, -1, 3, -1))
    assert model.decoder.head_states(hidden, 2, 3).shape == (2, 3, 2, 16)


@pytest.mark.parametrize("minimum", [1, 2, 4])
def test_one_model_call_an_iteration(monkeypatch: pytest.MonkeyPatch, minimum: int) -> None:
    """m tokens take at least m/k + 1 calls and no more than m; with blocks of at least k, exactly the least."""
    calls = []
    verify = Verifier.verify

    def spy(self: Verifier, *arguments: Any) -> Any:
        calls.append(1)
        return verify(self, *arguments)

    monkeypatch.setattr(Verifier, "verify", spy)
    task, model = make_blockwise(1)
    sample = make_sample(task, [6], 1)
    drafted, stats = decode([model], task, sample, Options("blockwise", min_block=minimum), max_len_b=20, min_len=20)
    tokens = len(ids(drafted)[0])
    assert tokens == 21 and len(calls) == stats[0].iterations
    assert 1 + math.ceil((tokens - 1) / 4) <= len(calls) <= math.ceil(tokens / minimum) + 1
    if minimum == 4:
        assert len(calls) == 1 + math.ceil((tokens - 1) / 4) <= tokens / 4 + 1

"""fairseq's limits against their definition, one position at a time."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.constraints import Constraints
from fairseq_plugins.decoding.reference.verifier import verification
from fairseq_plugins.decoding.suppression import SuppressedTokens
from tests.strategies import DETERMINISTIC, example_count
from tests.support import make_state

PAD, EOS, UNK, SIZE = 1, 2, 3, 8
LIMITS = st.integers(0, 9).flatmap(lambda most: st.tuples(st.integers(0, most), st.just(most)))
PREFIXES = st.lists(st.lists(st.integers(EOS, SIZE - 1), max_size=6), min_size=1, max_size=4)

# A choice is left in any case.
SUPPRESSED = st.sets(st.sampled_from([0, EOS, UNK, 5, 6])).map(lambda tokens: tuple(sorted(tokens)))


def padded(rows: list[list[int]]) -> torch.Tensor:
    width = max(1, *map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])


@settings(DETERMINISTIC, max_examples=example_count(200))
@given(
    limits=LIMITS,
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    width=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 1.5, -2.0, -20.0]),
    prefix_width=st.one_of(st.none(), st.integers(1, 5)),
    suppressed=st.builds(SuppressedTokens, SUPPRESSED, SUPPRESSED),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 99),
)
def test_apply_forbids_what_fairseq_forbids(
    limits: tuple[int, int],
    lengths: list[int],
    width: int,
    penalty: float,
    prefix_width: int | None,
    suppressed: SuppressedTokens,
    dtype: torch.dtype,
    seed: int,
) -> None:
    min_len, max_len = limits
    prefix = None if prefix_width is None else torch.full((len(lengths), prefix_width), 5)
    constraints = Constraints(PAD, UNK, EOS, max_len, min_len, penalty, prefix, suppressed=suppressed)
    scores = torch.randn(len(lengths), width, SIZE, generator=torch.Generator().manual_seed(seed)).to(dtype)
    before, where = scores.float().log_softmax(-1), (torch.tensor(lengths), min(lengths), max(lengths))
    log_probs = before.clone()
    constraints.apply(log_probs, *where)
    best = log_probs.argmax(-1)
    chosen = constraints.penalised(before.gather(2, best[:, :, None])[:, :, 0], best)
    assert torch.equal(chosen, log_probs.amax(-1))
    for row, length in enumerate(lengths):
        for column in range(width):
            position = length + column
            forced = prefix_width is not None and position < min(prefix_width, max_len)
            for token in range(SIZE):
                forbidden = token == PAD
                forbidden |= token == EOS and position < min_len and not forced
                forbidden |= token in suppressed.everywhere
                forbidden |= token in suppressed.at_beginning and position == min(prefix_width or 0, max_len)
                forbidden &= not (token == EOS and position >= max_len)
                forbidden |= token != EOS and position >= max_len
                expected = before[row, column, token] - (penalty if token == UNK else 0.0)
                log_prob = log_probs[row, column, token]
                assert log_prob == -torch.inf if forbidden else log_prob == expected


@settings(DETERMINISTIC, max_examples=example_count(100))
@given(prefixes=PREFIXES, max_len=st.integers(0, 8), seed=st.integers(0, 99))
def test_prefixes_replace_tokens(prefixes: list[list[int]], max_len: int, seed: int) -> None:
    state = make_state(torch.zeros(len(prefixes), 1), [0] * len(prefixes), max_len, prefix=padded(prefixes))
    constraints = state.constraints
    given_tokens = constraints.given_prefix()
    assert given_tokens is not None
    tokens, counts = given_tokens
    assert counts.tolist() == [min(len(prefix), max_len) for prefix in prefixes]
    width = tokens.size(1) + 1
    scores = torch.randn(len(prefixes), width, SIZE, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    limited = scores.clone()
    constraints.apply(limited, state.lengths, 0, 0)
    found = verification(state, scores.clone())
    for row, prefix in enumerate(prefixes):
        known = prefix[:max_len]
        assert found.best[row].tolist() == known + limited[row, len(known) :].argmax(-1).tolist()
        for column, token in enumerate(known):
            assert found.log_probs[row, column, token] == scores[row, column, token]
    state.lengths, state.host_lengths = state.lengths + max_len, [max_len] * len(prefixes)
    assert state.forced_tokens(width) is None

"""Advance of an iteration against its definition, one sentence at a time: ragged batches, EOS inside a draft."""

from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.rules import accept_all, exact, with_min_block
from fairseq_plugins.decoding.reference.state import Advance, Draft, Verification
from tests.strategies import DETERMINISTIC, example_count
from tests.support import make_state

PAD, EOS, SIZE = 1, 2, 7


@dataclass
class Row:
    """One sentence: draft, number of drafted tokens, verifier tokens, and length so far."""

    drafted: list[int]
    meant: int
    best: list[int]
    length: int


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Few different tokens, so that drafts are often right, and EOS occurs anywhere."""
    width = draw(st.integers(0, 5))
    tokens = st.sampled_from([EOS, 4, 5])
    return [
        Row(
            draw(st.lists(tokens, min_size=width, max_size=width)),
            draw(st.integers(0, width)),
            draw(st.lists(tokens, min_size=width + 1, max_size=width + 1)),
            draw(st.integers(0, 3)),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]


def advance_of(search: GreedySearch, rows: list[Row], own_token: bool = True) -> Advance:
    """Run a search; states and features of a column are its number."""
    best = torch.tensor([row.best if own_token else row.best[:-1] for row in rows])
    batch, width = best.shape
    log_probs = torch.full((batch, width, SIZE), -3.0).scatter(2, best[:, :, None], -0.5)
    log_probs[..., 5] -= torch.arange(width) / 16
    column = torch.arange(width, dtype=torch.float) + 10 * torch.arange(batch)[:, None]
    verification = Verification(log_probs, best, column[:, :, None], -column[:, :, None])
    drafted = torch.tensor([row.drafted for row in rows], dtype=torch.long).view(batch, -1)
    tokens = torch.full((batch, 12), PAD)
    state = make_state(tokens, [row.length for row in rows], 9)
    draft = Draft(drafted, torch.tensor([row.meant for row in rows]) if own_token else None)
    return search.advance(state, draft, verification)


def check(advance: Advance, rows: list[Row], expected: list[list[int]], drafted: list[int]) -> None:
    """Compare with the expected tokens of every sentence, and the number of accepted ones."""
    assert advance.host_emitted == advance.num_emitted.tolist() == [len(tokens) for tokens in expected]
    assert advance.num_accepted.tolist() == drafted
    assert advance.finished == [tokens[-1] == EOS for tokens in expected]
    longest = max(map(len, expected))
    assert advance.tokens.shape == advance.log_probs.shape == (len(rows), longest)
    assert advance.hidden is not None and advance.features is not None
    log_probs = advance.verification.log_probs
    for index, tokens in enumerate(expected):
        count = len(tokens)
        assert advance.tokens[index, :count].tolist() == tokens
        assert advance.log_probs[index, :count].tolist() == [
            float(log_probs[index, column, token]) for column, token in enumerate(tokens)
        ]
        # The state that predicted each token, and that of the last one.
        assert advance.hidden[index, :count, 0].tolist() == [10 * index + column for column in range(count)]
        assert advance.last(advance.hidden)[index].tolist() == [[10 * index + count - 1]]
        assert advance.last(advance.features)[index].tolist() == [[-(10 * index + count - 1)]]
    lengths = [row.length for row in rows]
    assert advance.before.tolist() == lengths
    assert (advance.span_before.shortest, advance.span_before.longest) == (min(lengths), max(lengths))


@settings(DETERMINISTIC, max_examples=example_count(300))
@given(rows=batches(), minimum=st.integers(1, 4))
def test_drafts_are_verified(rows: list[Row], minimum: int) -> None:
    """Emits the accepted prefix of the draft and the verifier's own token, up to the first EOS.

    With a minimum block accepted tokens may differ from the verifier's; a minimum of 1 is exact acceptance.
    """
    expected, drafted = [], []
    for row in rows:
        accepted = 0
        while accepted < row.meant and (accepted < minimum - 1 or row.drafted[accepted] == row.best[accepted]):
            accepted += 1
        tokens = [*row.drafted[:accepted], row.best[accepted]]
        tokens = tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens
        expected.append(tokens)
        drafted.append(min(accepted, len(tokens)))
    check(advance_of(GreedySearch(with_min_block(minimum, exact)), rows), rows, expected, drafted)
    if minimum == 1:
        check(advance_of(GreedySearch(), rows), rows, expected, drafted)


@settings(DETERMINISTIC, max_examples=example_count(100))
@given(rows=batches().filter(lambda rows: bool(rows[0].drafted)))
def test_without_a_verifier(rows: list[Row]) -> None:
    """As many columns as drafted tokens: the best token takes the last one."""
    expected = []
    for row in rows:
        tokens = [*row.drafted[:-1], row.best[-2]]
        expected.append(tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens)
    drafted = [min(len(row.drafted) - 1, len(tokens)) for row, tokens in zip(rows, expected, strict=True)]
    check(advance_of(GreedySearch(accept_all), rows, own_token=False), rows, expected, drafted)

"""Acceptance rules against the equations, by hand and by slow loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.method import Method
from fairseq_plugins.decoding.reference.search import GreedySearch
from fairseq_plugins.decoding.reference.search.rules import (
    Rule,
    TopBeta,
    accept_all,
    accepted_prefix,
    exact,
    with_min_block,
    within_distance,
)
from fairseq_plugins.decoding.reference.state import Draft, Verification
from tests.decoding.methods.without_model import ScriptedVerifier
from tests.strategies import DETERMINISTIC, example_count
from tests.support import ScriptedDrafter, decode, ids, make_sample, make_task, make_transformer


def log_probs_of(*rows: list[float]) -> torch.Tensor:
    """Return log-probabilities of a sentence from probabilities."""
    return torch.tensor([rows]).log()


def verified(log_probs: torch.Tensor) -> Verification:
    """Return the verification with these log-probabilities [B, T, V]."""
    return Verification(log_probs, log_probs.argmax(-1))


def test_equations_8_and_9_by_hand() -> None:
    """Four positions with drafted tokens of the verifier's ranks 1, 2, 3 and 4; tau = 1 is a ratio of e = 2.718."""
    verification = verified(
        log_probs_of(
            [0.70, 0.20, 0.06, 0.04],
            [0.50, 0.30, 0.15, 0.05],  # 0.50 / 0.30 = 1.67: within tau
            [0.45, 0.30, 0.20, 0.05],  # 0.45 / 0.20 = 2.25: within tau, third
            [0.30, 0.28, 0.22, 0.20],  # 0.30 / 0.20 = 1.50: within tau, but fourth
            [0.25, 0.25, 0.25, 0.25],  # after the draft
        )
    )
    draft = Draft(torch.tensor([[0, 1, 2, 3]]))
    assert TopBeta(3, 1.0)(draft, verification).tolist() == [[True, True, True, False]]
    assert TopBeta(2, 1.0)(draft, verification).tolist() == [[True, True, False, False]]
    assert TopBeta(4, 0.5)(draft, verification).tolist() == [[True, False, False, True]]
    assert TopBeta(4, math.log(2.25) + 1e-4)(draft, verification).tolist() == [[True, True, True, True]]
    assert TopBeta(4, math.log(2.25) - 1e-4)(draft, verification).tolist() == [[True, True, False, True]]
    assert TopBeta(1, 0.0)(draft, verification).tolist() == exact(draft, verification).tolist()


def test_score_of_the_drafter_by_hand() -> None:
    """SpecDec eq. 6-7 taken literally: the drafter's probability of its token against the verifier's list."""
    verification = verified(log_probs_of([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.6, 0.3, 0.1]))
    # The drafter prefers token 2 at the first position, which the verifier ranks last, and is unsure at the second.
    draft = Draft(torch.tensor([[2, 2]]), log_probs=log_probs_of([0.1, 0.1, 0.8], [0.4, 0.35, 0.25]))
    assert TopBeta(2, 1.0, "drafter")(draft, verification).tolist() == [[True, False]]
    assert TopBeta(3, 1.0, "drafter")(draft, verification).tolist() == [[True, True]]
    assert TopBeta(3, 0.5, "drafter")(draft, verification).tolist() == [[True, False]]
    assert TopBeta(3, 1.0, "verifier")(draft, verification).tolist() == [[False, False]]


@settings(DETERMINISTIC, max_examples=example_count(60))
@given(
    beta=st.integers(1, 7),
    tau=st.one_of(st.floats(0, 4), st.just(math.inf)),
    seed=st.integers(0, 10_000),
    ties=st.booleans(),
)
def test_top_beta_equals_a_loop(beta: int, tau: float, seed: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(3, 5, 7, generator=generator)
    if ties:
        scores = scores.round()
    scores[:, :, 1] = -math.inf
    verification = verified(scores.log_softmax(-1))
    drafted = torch.randint(7, (3, 4), generator=generator)
    log_probs = verification.log_probs
    expected = []
    for sentence in range(3):
        row = []
        for position in range(4):
            token = int(drafted[sentence, position])
            ranked = sorted(log_probs[sentence, position].tolist(), reverse=True)
            own = float(log_probs[sentence, position, token])
            in_beta = own >= ranked[beta - 1]
            in_gap = ranked[0] - own <= tau
            top_1 = token == int(verification.best[sentence, position])
            row.append(top_1 or (own > -math.inf and in_beta and in_gap))
        expected.append(row)
    near = (log_probs.amax(-1)[:, :4] - log_probs[:, :4].gather(2, drafted[:, :, None])[:, :, 0] - tau).abs() < 1e-5
    acceptable = TopBeta(beta, tau)(Draft(drafted), verification)
    assert torch.equal(acceptable | near, torch.tensor(expected) | near)


@settings(DETERMINISTIC, max_examples=example_count(40))
@given(rows=st.lists(st.tuples(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 5)), min_size=1))
def test_accepted_prefix_equals_a_loop(rows: list[tuple[list[bool], int]]) -> None:
    acceptable = torch.tensor([row for row, _ in rows])
    widths = torch.tensor([width for _, width in rows])
    expected = [next((i for i, ok in enumerate(row[:width]) if not ok), width) for row, width in rows]
    assert accepted_prefix(acceptable, widths).tolist() == expected


def test_empty_draft_accepts_nothing() -> None:
    assert accepted_prefix(torch.ones(3, 0, dtype=torch.bool), None).tolist() == [0, 0, 0]


def test_distance_and_minimum_block() -> None:
    """Stern et al. 2018, sections 5.2 and 5.3, over a dictionary of two words and the numbers 0 to 4."""
    values = torch.tensor([math.nan, math.nan, 0.0, 1.0, 2.0, 3.0, 4.0])
    scores = torch.full((1, 5, 7), -5.0)
    scores[0, torch.arange(5), torch.tensor([2, 4, 6, 1, 3])] = 0.0
    scores[0, 0, 0] = -math.inf
    verification = verified(scores)
    draft = Draft(torch.tensor([[3, 6, 6, 0]]))
    assert within_distance(1, values)(draft, verification).tolist() == [[True, False, True, False]]
    assert within_distance(2, values)(draft, verification).tolist() == [[True, True, True, False]]
    assert with_min_block(3, exact)(draft, verification).tolist() == [[True, True, True, False]]
    assert with_min_block(1, exact)(draft, verification).tolist() == exact(draft, verification).tolist()
    forbidden = Draft(torch.tensor([[0, 6, 6, 0]]))
    assert not with_min_block(3, exact)(forbidden, verification)[0, 0]


def test_accept_all() -> None:
    assert accept_all(Draft(torch.tensor([[4, 5]])), verified(torch.zeros(1, 3, 7))).all()


# SpecDec Table 19 (k = 10, top-3, tau = 1), as printed: D is the draft and V its verification, both after the output of
# earlier iterations. V shows relaxed tokens and is conditioned on them, so the verifier's best token at such a
# position, which the vanilla tables show, is given separately.
RELAXED_1 = """
D Nach den Angaben Angaben war der Tunnel noch nicht in
V Nach den vorliegenden war war der Tunnel noch nicht in Betrieb
D Nach den vorliegenden Angaben war der Tunnel noch nicht in Betrieb genommen [EOS]
V Nach den vorliegenden Angaben war der Tunnel noch nicht in Betrieb genommen worden
D Nach den vorliegenden Angaben war der Tunnel noch nicht in Betrieb genommen worden . [EOS]
V Nach den vorliegenden Angaben war der Tunnel noch nicht in Betrieb genommen worden . [EOS]
"""
RELAXED_2 = """
D Gestern hat der Bürger@@ meister von Gut@@ acht eine klare
V Gestern hat der Bürger@@ meister von Gut@@ acht eine klare Antwort
D Gestern hat der Bürger@@ meister von Gut@@ acht eine klare Antwort auf diese Frage gegeben . [EOS]
V Gestern hat der Bürger@@ meister von Gut@@ acht eine klare Antwort auf diese Frage gegeben . [EOS]
"""
# Position of a token that was not the verifier's best, and the best.
BEST_1, BEST_2 = {3: "Einzelheiten"}, {2: "Gut@@"}


class PrintedVerifier(ScriptedVerifier):
    """A verifier whose best tokens are the V lines, followed by unacceptable ones.

    Args:
        lines: the V lines.
        number: symbol -> id.
        best: position -> the best token there; the printed one is second, `gap` below it.
        gap: of log-probabilities.
    """

    def __init__(self, lines: list[list[str]], number: dict[str, int], best: dict[int, str], gap: float) -> None:
        super().__init__([], max(number.values()) + 1)
        self.lines, self.number, self.best, self.gap = iter(lines), number, best, gap

    def scores(self, begin: int, drafted: list[int]) -> torch.Tensor:
        line, scores = next(self.lines), torch.full((len(drafted) + 1, self.size), -20.0)
        for position, row in enumerate(scores, begin):
            printed = line[position] if position < len(line) else "[EOS]"
            row[self.number[printed]] = 0.0
            if position in self.best and printed != self.best[position]:
                row[self.number[self.best[position]]] = self.gap
        return scores


def replay(printed: str, rule: Rule, best: dict[int, str], gap: float = 0.8) -> tuple[str, list[int]]:
    """Decode with the D lines as drafter and the V lines as verifier; return the output and the emitted tokens."""
    lines = [line.split()[1:] for line in printed.strip().splitlines()]
    drafts, verified = lines[::2], lines[1::2]
    task = make_task(4)
    words = sorted({word for line in lines for word in line} - {"[EOS]"} | set(best.values()))
    number = {word: task.target_dictionary.add_symbol(word) for word in words}
    number["[EOS]"] = task.target_dictionary.eos()
    turns = iter(drafts)

    def script(sentence: int, done: int, width: int) -> list[int]:
        return [number[word] for word in next(turns)[done:]][:width]

    method = Method(PrintedVerifier(verified, number, best, gap), ScriptedDrafter(script, 10), GreedySearch(rule))
    output, (stats,) = decode([make_transformer(task, 0, ending=False)], task, make_sample(task, [1]), method)
    assert not list(turns), "every printed iteration took place"
    return task.target_dictionary.string(ids(output)[0]), stats.emitted


@pytest.mark.parametrize(
    ("printed", "best", "rule", "emitted"),
    [
        (RELAXED_1, BEST_1, TopBeta(3, 1.0), [3, 10, 2]),
        (RELAXED_2, BEST_2, TopBeta(3, 1.0), [11, 6]),
    ],
)
def test_worked_examples_of_the_paper(printed: str, best: dict[int, str], rule: Rule, emitted: list[int]) -> None:
    text, each = replay(printed, rule, best)
    assert each == emitted
    assert text == printed.strip().splitlines()[-1][2:].removesuffix(" [EOS]")

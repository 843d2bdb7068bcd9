"""What calls take and how often drafted tokens are right, found while decoding."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_plugins.decoding.drafters import estimates
from fairseq_plugins.decoding.drafters.estimates import Calibration, Cost
from tests.strategies import STEADY


@settings(STEADY)
@given(
    fixed=st.floats(1e-4, 1.0),
    each=st.floats(1e-5, 1.0),
    rows=st.lists(st.integers(1, 60), min_size=3, max_size=30),
    doubt=st.floats(1e-2, 10.0),
)
def test_a_line_is_found(fixed: float, each: float, rows: list[int], doubt: float) -> None:
    """It goes through the mean, and is as steep as the calls say the more their rows differ, and else as guessed."""
    cost, before, guess = Cost(doubt), Cost(doubt), (4.0, 1.0)
    for count in [*rows, 1, 40]:
        cost.observe(count, fixed + each * count)
    found_fixed, found_each = cost.line(guess)
    number, total, squares, seconds, _ = cost.sums
    mean = total / number
    assert found_fixed + mean * found_each == pytest.approx(fixed + mean * each, rel=1e-2)
    for _ in range(int(number)):
        before.observe(mean, seconds / number)
    guessed = before.line(guess)[1]
    spread = squares / number / mean**2 - 1
    expected = (spread * each + doubt * guessed) / (spread + doubt)
    assert found_each == pytest.approx(expected, rel=0.02, abs=0.011 * seconds / total)


def test_cost_before_there_is_data_and_of_always_as_many_rows() -> None:
    cost = Cost(0.5)
    assert cost.line((4.0, 1.0)) == (4.0, 1.0)
    for _ in range(5):
        cost.observe(4, 0.016)
    assert cost.line((4.0, 1.0)) == pytest.approx((0.008, 0.002))
    assert cost.line((400.0, 100.0)) == pytest.approx((0.008, 0.002))


def test_calibration_by_hand() -> None:
    calibration = Calibration()
    survival = numpy.array([[0.95, 0.95 * 0.55, 0.95 * 0.55 * 0.55]])
    # The first token stands, the second does not, after which nothing was tried; then all three stand; then none.
    for accepted in (1, 3, 0):
        calibration.observe(survival, *numpy.array([[3], [accepted + 1], [accepted]]))
    memory, prior = estimates._MEMORY_OF_TOKENS, estimates._PRIOR
    assert calibration.tried[9] == pytest.approx(1 + memory + memory**2)
    assert calibration.right[9] == pytest.approx(memory + memory**2)
    assert calibration.tried[5] == pytest.approx(2 * memory + memory**2)
    assert calibration.right[5] == pytest.approx(2 * memory)
    first, second, _ = calibration(survival)[0]
    assert first == pytest.approx((0.95 * prior + calibration.right[9]) / (prior + calibration.tried[9]))
    assert second == pytest.approx(first * (0.55 * prior + calibration.right[5]) / (prior + calibration.tried[5]))


def test_what_is_not_verified_any_more_is_taken_for_what_the_drafter_says() -> None:
    """Or a few wrong tokens would keep all that are alike from being verified ever again."""
    calibration = Calibration()
    calibration.add([0.0] * 5 + [50.0] + [0.0] * 4, [0.0] * 10)
    assert calibration.right_rate[5] < 0.1
    calibration.add([0.0] * 10, [0.0] * 10, iterations=5000)
    assert calibration.right_rate[5] == pytest.approx(0.55, abs=0.01)

"""How long a job takes at the speed that it states, compared with exact fractions."""

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from scheduler.jobs.speeds import MILLION, is_cut, seconds_at, slowest_on, speed_on

SECONDS = st.integers(1, 10**7)
SPEEDS = st.integers(1, 1000 * MILLION).map(lambda pace: pace / MILLION)


@given(SPEEDS, SECONDS, st.none() | SECONDS)
def test_it_is_the_estimate_divided_by_the_speed_and_never_beyond_the_limit(speed, estimate, limit):
    exact = ceil(Fraction(estimate) / Fraction(round(speed * MILLION), MILLION))

    assert seconds_at(speed, estimate, limit) == (exact if limit is None else min(exact, limit))
    assert is_cut(speed, estimate, limit) == (limit is not None and exact > limit)
    assert seconds_at(1, estimate, limit) == (estimate if limit is None else min(estimate, limit))
    assert seconds_at(speed, None, limit) == limit


def test_a_gang_goes_at_the_pace_of_its_slowest():
    spec = {"throughput": {"A": 0.5, "B": 2}}

    assert slowest_on(spec, ["A", "B", "C"]) == 0.5
    assert slowest_on(spec, ["C"]) == speed_on({}, "A") == slowest_on(spec, []) == 1
    assert seconds_at(0, 60, None) is None, "it can't run there"

"""Figures that add up."""

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.rounding import rounded, shares


@given(st.integers(0, 10**9), st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any))
def test_shares_add_up_and_are_within_one_of_exact(whole: int, weights: list[int]) -> None:
    found = shares(whole, weights)

    assert sum(found) == whole
    assert all(abs(part * sum(weights) - whole * weight) < sum(weights) for part, weight in zip(found, weights, strict=True))


@given(st.lists(st.integers(0, 10**9), max_size=20), st.integers(1, 10**6))
def test_rounded_parts_add_up_to_the_rounded_whole(parts: list[int], unit: int) -> None:
    found = rounded(parts, unit)

    assert sum(found) == (2 * sum(parts) + unit) // (2 * unit)
    assert all(part // unit <= told <= -(-part // unit) for part, told in zip(parts, found, strict=True))


def test_a_fleet_of_512_is_not_513() -> None:
    assert rounded([108_500, 310_500, 93_000], 1000) == [109, 310, 93]

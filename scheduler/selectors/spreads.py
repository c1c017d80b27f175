"""How far measured values lie apart, in three numbers that were measured themselves."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """How many were measured, the middle one, the 95th of 100, and the longest."""

    count: int
    median: float
    p95: float
    longest: float


def spread(values: Iterable[float]) -> Spread:
    ordered = sorted(values)
    if not ordered:
        return Spread(0, 0.0, 0.0, 0.0)
    last = len(ordered) - 1
    return Spread(len(ordered), ordered[last // 2], ordered[-(-95 * last // 100)], ordered[last])

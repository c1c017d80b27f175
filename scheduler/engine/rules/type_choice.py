"""In which of the GPU types that it accepts a job is tried first ("Quota types" in semantics.md; SCH-13)."""

from collections.abc import Mapping
from fractions import Fraction

NO_PRICE = 1 << 80  # above any: a type without a price comes last


def rank(choice: str, prices: Mapping[str, int], gpu_type: str, speed: int, place: int) -> tuple[Fraction, int, int]:
    """Of a type on which the job has a speed above 0 and that comes at a place among those that it names: the least is tried first.

    By what a unit of work costs there, or by the place; the faster type first where these are equal, then by the place.
    """
    first = Fraction(place if choice == "stated" else 0)
    if choice == "cheapest":
        first = Fraction(prices.get(gpu_type, NO_PRICE), speed)
    return first, -speed, place

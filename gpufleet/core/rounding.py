"""Figures that add up: wholes divided so that the parts' sum is the whole, by the largest remainder."""

from collections.abc import Sequence


def shares(whole: int, weights: Sequence[int]) -> list[int]:
    """`whole` divided in proportion to `weights`, as whole numbers whose sum it is. Of equal remainders the first has the larger part."""
    total = sum(weights)
    if not total:
        assert not whole, "something is divided among nobody"
        return [0] * len(weights)
    found = [whole * weight // total for weight in weights]
    remainders = sorted(range(len(weights)), key=lambda place: (-(whole * weights[place] % total), place))
    for place in remainders[: whole - sum(found)]:
        found[place] += 1
    return found


def rounded(parts: Sequence[int], unit: int, whole: int | None = None) -> list[int]:
    """Parts in units, whose sum is the rounded sum of all. Each is the unit below or above its exact value, and nothing stays nothing.

    `whole`: the sum in units where it is rounded by another rule, the unit below or above its exact value, too."""
    whole = (2 * sum(parts) + unit) // (2 * unit) if whole is None else whole
    found = [part // unit for part in parts]
    remainders = sorted((place for place, part in enumerate(parts) if part % unit), key=lambda place: (-(parts[place] % unit), place))
    for place in remainders[: whole - sum(found)]:
        found[place] += 1
    return found

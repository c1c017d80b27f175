"""Dividing a pool of GPUs among the siblings of a quota tree: whole numbers only. Whom a new usage spares within a step: legality.py."""

from collections.abc import Sequence
from typing import NamedTuple

GPU = 1000
MILLION = 1_000_000


class Siblings(NamedTuple):
    """What the children of one node state, by child; `usage` is the decayed share of the fleet in millionths."""

    guaranteed: list[int | None]  # milli-GPU; None: unlimited
    weight: list[int]
    usage: list[int]
    age: list[int]  # place by (created, name), no two the same
    classes: list[list[int]]  # those of equal priority, the highest first


def siblings(guaranteed: list[int | None], weight: list[int], priority: list[int], usage: list[int], age: list[int]) -> Siblings:
    classes = [[place for place, each in enumerate(priority) if each == rank] for rank in sorted(set(priority), reverse=True)]
    return Siblings(guaranteed, weight, usage, age, classes)


def divide(pool: int, wants: Sequence[int], stated: Siblings, usage_weight: int = 0) -> list[int]:
    """The fair share of each child that wants so much, of limit and request the lesser: guarantees first, then the surplus by weight and past usage,
    highest priority first."""
    shares, rest = [], pool
    for want, promised in zip(wants, stated.guaranteed, strict=True):
        most = pool if promised is None else promised
        given = want if want < most else most
        shares.append(given)
        rest -= given
    if rest <= 0:
        return shares
    for members in stated.classes:
        if short := [place for place in members if shares[place] < wants[place]]:
            rest = _divide_class(rest, short, wants, stated, shares, usage_weight)
            if rest <= 0:
                break
    return shares


def _divide_class(rest: int, members: list[int], wants: Sequence[int], stated: Siblings, shares: list[int], usage_weight: int) -> int:
    """Give the surplus to one priority class; returns what is left of it."""
    weight = stated.weight
    lost: dict[int, int] = {}
    while members and rest > 0:
        strengths = [weight[place] for place in members]
        if usage_weight:  # n + k * (n - U), times the sum of weights and a million squared, so that it is a whole number
            taken, gain = usage_weight * sum(strengths), (MILLION + usage_weight) * MILLION
            strengths = [max(0, weight[place] * gain - stated.usage[place] * taken) for place in members]
        if not (total := sum(strengths)):
            return rest  # nobody has a claim to it; it can still be borrowed
        pool, contented, short = rest, False, []
        for place, strength in zip(members, strengths, strict=True):
            exact = pool * strength  # times the total
            whole, lost[place] = divmod(exact, total * GPU)
            part, need = whole * GPU, wants[place] - shares[place]
            if need <= part and need * total < exact:  # it needed less than its exact part
                contented = True
            if part < need:
                short.append(place)
            else:
                part = need
            shares[place] += part
            rest -= part
        members = short
        if not contented:
            break
    # All remainders of the last round have one denominator, so the numerators compare.
    for place in sorted(members, key=lambda place: (-lost[place], stated.age[place])):
        given = min(GPU, wants[place] - shares[place], rest) if weight[place] else 0
        shares[place] += given
        rest -= given
    return rest

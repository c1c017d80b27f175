"""Dividing a pool of GPUs among the siblings of a quota tree. Pure arithmetic on whole numbers."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

GPU = 1000
MILLION = 1_000_000


class Claim(NamedTuple):
    """One sibling's side of a division, in milli-GPU; `usage` is the decayed share of the fleet in millionths."""

    wants: int  # min(limit, request)
    guaranteed: int | None
    weight: int
    priority: int
    usage: int
    created: int
    name: str


new_claim = partial(tuple.__new__, Claim)  # of all the fields at once, past the slow constructor


def divide(pool: int, claims: Sequence[Claim], usage_weight: int = 0) -> list[int]:
    """The fair share of each claim: guarantees first, then the surplus by weight and past usage, highest priority first."""
    shares, rest = [], pool
    classes: dict[int, list[int]] = {}  # by priority, who is still short
    for place, (wants, guaranteed, _, priority, _, _, _) in enumerate(claims):
        promised = pool if guaranteed is None else guaranteed
        if promised < wants:
            classes.setdefault(priority, []).append(place)
            shares.append(promised)
            rest -= promised
        else:
            shares.append(wants)
            rest -= wants
    if rest <= 0:
        return shares
    for priority in sorted(classes, reverse=True) if len(classes) > 1 else classes:
        rest = _divide_class(rest, classes[priority], claims, shares, usage_weight)
        if rest <= 0:
            break
    return shares


def _divide_class(rest: int, members: list[int], claims: Sequence[Claim], shares: list[int], usage_weight: int) -> int:
    """Give the surplus to one priority class; returns what is left of it."""
    if len(members) == 1 and not usage_weight:  # mostly
        (place,) = members
        claim = claims[place]
        given = min(rest, claim.wants - shares[place]) if claim.weight else 0
        shares[place] += given
        return rest - given
    lost: dict[int, int] = {}
    while members and rest > 0:
        strengths = [claims[place].weight for place in members]
        if usage_weight:
            total_weight = sum(strengths)
            strengths = [_strength(claims[place], total_weight, usage_weight) for place in members]
        total = sum(strengths)
        if not total:
            return rest  # nobody has a claim to it; it can still be borrowed
        pool, contented, short = rest, False, []
        for place, strength in zip(members, strengths, strict=True):
            exact = pool * strength  # times the total
            whole, lost[place] = divmod(exact, total * GPU)
            part, need = whole * GPU, claims[place].wants - shares[place]
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
    if len(members) > 1:
        members = sorted(members, key=lambda place: (-lost[place], claims[place].created, claims[place].name))
    for place in members:
        if rest <= 0:
            break
        if claims[place].weight == 0:
            continue
        given = min(GPU, claims[place].wants - shares[place], rest)
        shares[place] += given
        rest -= given
    return rest


def _strength(claim: Claim, total_weight: int, usage_weight: int) -> int:
    """n + k * (n - U), times total_weight and a million squared, so that it is a whole number. Without usage weights compare as they are."""
    return max(0, claim.weight * (MILLION + usage_weight) * MILLION - usage_weight * claim.usage * total_weight)

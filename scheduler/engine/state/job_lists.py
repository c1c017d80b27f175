"""What two lists of jobs have in common, from one plan to the next."""

from collections.abc import Callable, Sequence
from itertools import compress, count, repeat
from operator import attrgetter, is_, is_not
from typing import Any, NamedTuple

from ..model.values import Job
from .work import Work

MANY = 256  # jobs that are compared in one step: those that are equal in all that they state are as good as the same


def alike_at_both_ends(one: Sequence[Job], other: Sequence[Job]) -> tuple[int, int]:
    """How many jobs two lists have in common at their beginning and, behind what differs, at their end."""
    most, first = min(len(one), len(other)), 0
    while first + MANY <= most and one[first : first + MANY] == other[first : first + MANY]:
        first += MANY
    first += next(compress(count(), map(is_not, one[first:], other[first:])), most - first)
    rest = most - first
    last = next(compress(count(), map(is_not, reversed(one), reversed(other))), rest)
    return first, min(rest, last)


class Difference(NamedTuple):
    """What two lists of jobs do not have in common: between the first so many and the last so many that are the same."""

    first: int
    last: int
    now: Sequence[Work]  # who stands there now
    gone: Sequence[Work]
    come: Sequence[Work]
    in_place: bool  # whether who came stands where somebody went, and nobody else has moved


def compared(works: Sequence[Work], one: Sequence[Job], other: Sequence[Job], new: Callable[[Job, int], Work]) -> Difference:
    """The difference between the jobs of which these are the works and others; `new` makes the works of those who came, each at its place."""
    first, last = alike_at_both_ends(one, other)
    before = works[first : len(works) - last]
    jobs = other[first : len(other) - last]
    known = dict(zip(map(id, one[first : len(one) - last]), before, strict=True))
    keys = [*map(id, jobs)]
    now: list[Any] = [*map(known.get, keys)]  # between two jobs that have changed most have not
    places = [*compress(count(), map(is_, now, repeat(None)))]
    for place in places:
        now[place] = new(jobs[place], first + place)
    gone = sorted([known[key] for key in known.keys() - keys], key=attrgetter("order"))
    in_place = len(jobs) == len(before) and [work.order - first for work in gone] == places
    return Difference(first, last, now, gone, [now[place] for place in places], in_place)

"""What two lists of jobs have in common, from one plan to the next."""

from collections.abc import Iterable, Sequence
from itertools import compress, count
from operator import attrgetter, is_not
from typing import Any, NamedTuple

from .roll import Step
from .values import Job
from .work import Work

MANY = 256  # jobs that are compared in one step: those that are equal in all that they state are as good as the same


def alike_at_both_ends(one: Sequence[Job], other: Sequence[Job], beginning: tuple[Job, ...] = ()) -> tuple[int, int]:
    """How many jobs two lists have in common at their beginning and, behind what differs, at their end; `one` begins with `beginning`."""
    most = min(len(one), len(other))
    first = len(beginning) if begins_with(other, beginning) else 0
    while first + MANY <= most and one[first : first + MANY] == other[first : first + MANY]:
        first += MANY
    first += next(compress(count(), map(is_not, one[first:], other[first:])), most - first)
    rest = most - first
    last = next(compress(count(), map(is_not, reversed(one), reversed(other))), rest)
    return first, min(rest, last)


def begins_with(jobs: Sequence[Job], beginning: tuple[Job, ...]) -> bool:
    """Whether a list begins with these. Whatever is not greater than a longer tuple and has no order among its items is its beginning."""
    try:
        return len(beginning) <= len(jobs) and beginning <= jobs  # type: ignore[operator]
    except TypeError:
        return False  # two items differ


class Fresh:
    """Somebody new in a list of jobs, as long as it is not told where he will stand in it."""

    __slots__ = ("before", "job", "order")

    def __init__(self, job: Job, order: int, before: Work | None = None) -> None:
        self.job = job
        self.order = order
        self.before = before  # who has become this one


class Difference(NamedTuple):
    """What two lists of jobs do not have in common: between the first so many and the last so many that are the same."""

    first: int
    last: int
    before: list[Work]  # who stood there
    gone: list[Work]  # of these
    now: list[Any]  # who stands there now
    come: list[Fresh]  # of these
    in_place: bool  # whether who came stands where somebody went, and nobody else has moved


def stepped(works: Sequence[Work], steps: Iterable[Step]) -> Difference:
    """The difference between jobs and what becomes of them by these steps."""
    line: list[Any] = [*works]
    gone: list[Work] = []
    come: dict[Fresh, None] = {}
    first = last = len(line)
    in_place = True
    for place, job, longer in steps:
        if place < first:
            first = place
        behind = len(line) - place - (longer <= 0)
        if behind < last:
            last = behind
        if longer > 0:
            assert job is not None
            in_place = False
            new = Fresh(job, place)
            line.insert(place, new)
            come[new] = None
            continue
        one = line[place]
        if job is None:
            in_place = False
            del line[place]
            if one in come:
                del come[one]
                if one.before is not None:
                    gone.append(one.before)
            else:
                gone.append(one)
        elif one in come:
            one.job = job
        else:
            new = line[place] = Fresh(job, place, one)
            come[new] = None
    gone += [one.before for one in come if one.before is not None]
    gone.sort(key=attrgetter("order"))
    return Difference(first, last, [*works[first : len(works) - last]], gone, line[first : len(line) - last], [*come], in_place)

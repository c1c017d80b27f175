"""What two lists of jobs have in common, from one plan to the next."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import compress, count, repeat
from operator import attrgetter, is_, is_not
from typing import Any, NamedTuple

from ..model.values import Job
from .roll import Step
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


_stated = attrgetter(*(field.name for field in fields(Job) if field.name not in ("checkpoint", "run")))


def has_only_saved(before: Job, now: Job) -> bool:
    """Whether a job has become another one by nothing but its checkpoint, on which only what its eviction would lose depends."""
    return now.run is before.run and bool(_stated(now) == _stated(before))


class Difference(NamedTuple):
    """What two lists of jobs do not have in common: between the first so many and the last so many that are the same."""

    first: int
    last: int
    before: list[Work]  # who stood there
    gone: list[Work]  # of these
    now: list[Any]  # who stands there now
    come: list[Fresh]  # of these
    renewed: list[Fresh]  # of these, who is as he was and has only saved a checkpoint
    in_place: bool  # whether who came stands where somebody went, and nobody else has moved


def compared(works: Sequence[Work], one: Sequence[Job], other: Sequence[Job], beginning: tuple[Job, ...]) -> Difference:
    """The difference between the jobs of which these are the works and others."""
    first, last = alike_at_both_ends(one, other, beginning)
    before = [*works[first : len(works) - last]]
    jobs = other[first : len(other) - last]
    known = dict(zip(map(id, one[first : len(one) - last]), before, strict=True))
    keys = [*map(id, jobs)]
    now: list[Any] = [*map(known.get, keys)]  # between two jobs that have changed most have not
    places = [*compress(count(), map(is_, now, repeat(None)))]
    come = []
    for place in places:
        now[place] = new = Fresh(jobs[place], first + place)
        come.append(new)
    gone = sorted([known[key] for key in known.keys() - keys], key=attrgetter("order"))
    in_place = len(jobs) == len(before) and [work.order - first for work in gone] == places
    return Difference(first, last, before, gone, now, come, [], in_place)


def stepped(works: Sequence[Work], steps: Sequence[Step], *, later: bool) -> Difference:
    """The difference between jobs and what becomes of them by these steps, at the same moment or later."""
    first = last = length = len(works)
    for place, _, longer in steps:
        if place < first:
            first = place
        behind = length - place - (longer <= 0)
        if behind < last:
            last = behind
        length += longer
    if not steps:
        last = 0
    before = [*works[first : len(works) - last]]
    line: list[Any] = [*before]
    gone: list[Work] = []
    come: dict[Fresh, None] = {}
    in_place = True
    for at, job, longer in steps:
        place = at - first
        if longer > 0:
            assert job is not None
            in_place = False
            new = Fresh(job, at)
            line.insert(place, new)
            come[new] = None
            continue
        one = line[place]
        if job is not None:
            if one in come:
                one.job = job
            else:
                new = line[place] = Fresh(job, at, one)
                come[new] = None
            continue
        in_place = False
        del line[place]
        if one not in come:
            gone.append(one)
        else:
            del come[one]
            if one.before is not None:
                gone.append(one.before)
    others, renewed = [], []
    for new in come:
        was = new.before
        if was is not None and later and has_only_saved(was.job, new.job):
            renewed.append(new)
            continue
        others.append(new)
        if was is not None:
            gone.append(was)
    if len(gone) > 1:
        gone.sort(key=attrgetter("order"))
    return Difference(first, last, before, gone, line, others, renewed, in_place)

"""What two lists of jobs have in common, from one plan to the next."""

from collections.abc import Sequence
from itertools import compress, count
from operator import is_not
from typing import NamedTuple

from .values import QUEUED, Job
from .work import Work

MANY = 256  # jobs that are compared in one step: those that are equal in all that they state are as good as the same


def shares_gpus(job: Job) -> bool:
    """Whether more than its own whole GPUs depends on where a job stands, or leaves."""
    run = job.run
    if run is QUEUED:
        return False
    return bool(run.workers or run.leaving) and any(role.parted for role in job.kind.roles)


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


class Difference(NamedTuple):
    """What two lists of jobs do not have in common: between the first so many and the last so many that are the same."""

    first: int
    last: int
    before: list[Work]  # who stood there
    gone: list[Work]  # of these
    now: list[Work | None]  # who is still there, by the place of his job; None: somebody new
    fresh: list[int]  # the places of these

"""The queue played forward, again and again: when a job that waits would start if run times and submissions came out as they did before.

How long jobs take is drawn from how earlier ones took, of their team as far as there are enough and of everyone besides; what runs has already
lasted so long. Each team submits again what it, or now and then another team, submitted at that time of the day on one of the last days. A future
is then played by the engine itself, on a clock that is the coarser the further it looks ahead (`future`). It is the spread of starts over futures
that is asked for, not a plan.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from math import exp, log
from operator import attrgetter
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from scheduler.engine.model.values import QUEUED, Job, Scenario
from scheduler.engine.rules.invariants import InvariantBroken

from .future import Future

logger = logging.getLogger(__name__)
FUTURES = 16
FEWEST = 6  # of those that were to be played
# Plans of a future: for an hour ahead where much happens, for days where little does. A plan costs by the jobs that it looks at, and as much as
# some for itself; setting a future up, and telling what it was not played for, costs as much as a plan. So where there are many jobs each future
# is played for fewer plans, or not at all.
MOST_PLANS = 24
MOST_LOOKS = 5_400_000  # of plans at jobs, in all futures together: a minute of a processor at most
A_PLAN = 500
SET_UP = 1
# So many of a team's own run times weigh as much as those of everyone.
SHRINK = 20
# Before anything has ended: run times lie around their estimates by a lognormal factor.
SPREAD_UNKNOWN = 0.6
UNKNOWN = tuple(exp(SPREAD_UNKNOWN * NormalDist().inv_cdf((place + 0.5) / SHRINK)) for place in range(SHRINK))
# What states neither estimate nor limit, while nothing is known.
LENGTH_UNKNOWN = 3_600_000
RARE = 3  # of those that lasted longer than what runs has by now: where there are fewer, it goes on for a part of that
SHORTEST = 1000
DAY = 86_400_000
LEAST_KNOWN = 2 * 3_600_000  # of submissions, from which on they are expected to go on so
BLOCK = 6 * 3_600_000  # what was submitted within so long comes again together
AHEAD = 14 * DAY


Lasted = tuple[str, int, int]  # quota, what a job had said, and how long it took or has lasted by now


class Past(NamedTuple):
    """How long jobs took as a part of what they had said, in order, of all teams and by team; and who was submitted, by team and in order."""

    everyone: tuple[float, ...] = UNKNOWN
    own: Mapping[str, tuple[float, ...]] = {}
    submitted: Mapping[str, tuple[Job, ...]] = {}


def past_of(lasted: Iterable[Lasted], submitted: Iterable[Job] = (), running: Iterable[Lasted] = ()) -> Past:
    """From jobs that have ended and those that still run, with times in any unit, and from those that were submitted in the last days.

    Those that run count with what they have lasted by now: of what began lately only the short ones have ended.
    """
    own: dict[str, tuple[list[float], list[float]]] = {}
    for place, jobs in enumerate((lasted, running)):
        for quota, stated, took in jobs:
            if stated > 0:
                own.setdefault(quota, ([], []))[place].append(max(took, 1) / stated)
    ended, gone = ([part for both in own.values() for part in both[place]] for place in (0, 1))
    by_quota: dict[str, list[Job]] = {}
    for job in submitted:
        by_quota.setdefault(job.quota, []).append(job)
    in_order = {quota: tuple(sorted(jobs, key=lambda job: job.submitted)) for quota, jobs in sorted(by_quota.items())}
    return Past(run_times([*UNKNOWN, *ended], gone), {quota: run_times(*both) for quota, both in own.items() if both[0]}, in_order)


def run_times(ended: Iterable[float], gone: Iterable[float]) -> tuple[float, ...]:
    """As many run times as have ended, in order, and as if those had ended as well that have lasted so long by now (a Kaplan-Meier estimate)."""
    ordered = sorted([*((value, 0) for value in ended), *((value, 1) for value in gone)])
    left, risen = 1.0, 0.0  # the part that lasts longer, and that was passed
    steps: list[tuple[float, float]] = []
    for place, (value, runs) in enumerate(ordered):
        if not runs:
            part = left / (len(ordered) - place)
            left, risen = left - part, risen + part
            steps.append((risen, value))
    found, at = [], 0
    for place in range(len(steps)):
        wanted = (place + 0.5) / len(steps)
        while at < len(steps) - 1 and steps[at][0] < wanted:
            at += 1
        found.append(steps[at][1])
    return tuple(found)


def stated_length(job: Job) -> int:
    """What a job says it takes."""
    return job.estimate_ms or job.limit_ms or LENGTH_UNKNOWN


class Stage:
    """A scenario as futures begin with it."""

    def __init__(self, scenario: Scenario, past: Past | None = None) -> None:
        self.scenario, self.past = scenario, past or Past()
        self.stands = [job for job in scenario.jobs if job.run.workers or job.run.leaving]
        self.waits = [job for job in scenario.jobs if job.run.state == "queued" and not (job.run.workers or job.run.leaving)]
        first = min((jobs[0].submitted for jobs in self.past.submitted.values()), default=scenario.now)
        # What a job was drawn to take counts, and not what the scenario knows of it.
        bare = tuple(job if job.work_ms is None else replace(job, work_ms=None) for job in scenario.jobs)
        self.bare = replace(scenario, jobs=bare, settings=replace(scenario.settings, forecast="none"))
        self.quotas = {quota.name for quota in scenario.quotas}
        self.known = scenario.now - first  # for how long submissions are known

    def played(self, chance: Random, asked: Collection[str], most_plans: int, parts: Iterable[float] = ()) -> dict[str, int]:
        """One future: by name of those asked for how long each waits.

        `parts`: of what stands and then of what waits, which part of known run times is shorter than the one that is taken; drawn if none is said.
        """
        said = iter(parts)
        left = {job.name: self._left(chance, job, self._gone(job), next(said, None)) for job in (*self.stands, *self.waits)}
        wanted = {job.name for job in self.waits if job.name in asked}
        return Future(self.bare, left, self.coming(chance), wanted, most_plans).waits()

    def coming(self, chance: Random) -> Iterator[tuple[Job, int]]:
        """Who will be submitted: each team does again what it did at this time of the day on one of the last days, drawn anew for every few hours.

        The fewer days are known, the more often it is what another team did.
        """
        days, teams = self.known // DAY, [quota for quota in self.past.submitted if quota in self.quotas]
        if self.known < LEAST_KNOWN:
            return iter(())
        return merge(*(self._again(chance.random(), quota, teams, days) for quota in teams), key=_submitted)

    def _again(self, seed: float, quota: str, teams: Sequence[str], days: int) -> Iterator[tuple[Job, int]]:
        chance = Random(seed)  # noqa: S311 (no secret): its own, as others are asked in turns with it
        now = self.scenario.now
        length = BLOCK if days else self.known
        for begin in range(0, AHEAD, length):
            back = DAY * (1 + begin // DAY + int(chance.random() * days)) if days else self.known + begin
            own = chance.random() * (days + 1) < days
            jobs = self.past.submitted[quota if own else teams[int(chance.random() * len(teams))]]
            first = bisect_right(jobs, now + begin - back, key=attrgetter("submitted"))
            for job in jobs[first:]:
                if job.submitted + back > now + begin + length:
                    break
                at = job.submitted + back
                yield replace(job, quota=quota, submitted=at, not_before=None, deadline=None, work_ms=None, run=QUEUED), self._left(chance, job, 0)

    def _gone(self, job: Job) -> int:
        """For how long it has run by now."""
        return self.scenario.now - job.run.started if job.run.workers and job.run.started is not None else 0

    def _left(self, chance: Random, job: Job, gone: int, part: float | None = None) -> int:
        """How much longer a job runs that has run so long."""
        part = chance.random() if part is None else part
        stated = stated_length(job)
        own, known = self.past.own.get(job.quota, ()), self.past.everyone
        if own and chance.random() * (len(own) + SHRINK) < len(own):
            known = own
        first = bisect_right(known, gone / stated) if gone else 0
        if len(known) - first < RARE:
            left = -gone * log(1 - part) / 3
        else:
            left = known[first + int(part * (len(known) - first))] * stated - gone
        if job.limit_ms is not None:
            left = min(left, job.limit_ms - gone)
        return max(SHORTEST, round(left))


def _submitted(one: tuple[Job, int]) -> int:
    return one[0].submitted


class Waits(NamedTuple):
    """Over the futures, in milliseconds from now: the start is sooner than `low` in a tenth, later than `high` in a tenth, mostly about `middle`."""

    low: int
    middle: int
    high: int


def plans_each(jobs: int, *, futures: int = FUTURES, most_looks: int = MOST_LOOKS) -> int | None:
    """For how many plans each future is played where there are so many jobs. None: setting them up is too much already."""
    plans = most_looks // futures // (jobs + A_PLAN) - SET_UP
    return min(plans, MOST_PLANS) if plans > 0 else None


def waits_foreseen(
    stage: Stage,
    asked: Collection[str],
    *,
    seed: int,
    futures: int = FUTURES,
    most_looks: int = MOST_LOOKS,
    goes_on: Callable[[], bool] = lambda: True,
) -> dict[str, Waits]:
    """By name; who starts in fewer than four fifths of the futures is left out. If the caller does not go on after one of them, those so far say it,
    unless they are too few.

    Over the futures each job is once among the shortest sixteenth of what it may take, once among the next, and so on: so few futures then lie around
    their middle as very many would (Latin hypercube sampling).
    """
    each = plans_each(len(stage.waits) + len(stage.stands), futures=futures, most_looks=most_looks)
    if not asked or each is None:
        return {}
    found: dict[str, list[int]] = {name: [] for name in asked}
    mixed = Random(seed)  # noqa: S311 (no secret)
    turns = [mixed.sample(range(futures), futures) for _ in range(len(stage.stands) + len(stage.waits))]
    begun = 0
    for number in range(futures):
        if not goes_on():
            break
        begun += 1
        chance = Random(seed * futures + number)  # noqa: S311 (no secret)
        parts = [(turn[number] + chance.random()) / futures for turn in turns]
        try:
            waits = stage.played(chance, asked, each, parts)
        except InvariantBroken:
            logger.exception("A future was given up: the engine has broken one of its own rules there")
            continue
        for name, wait in waits.items():
            found[name].append(wait)
    enough = begun == futures or begun >= FEWEST
    return {name: _waits(sorted(those)) for name, those in found.items() if enough and those and 5 * len(those) >= 4 * begun}


def _waits(ordered: Sequence[int]) -> Waits:
    """The middle is the mean of the half in between: of so few it is told by chance less than their median."""
    between = ordered[len(ordered) // 4 : len(ordered) - len(ordered) // 4]
    return Waits(quantile(ordered, 0.1), round(sum(between) / len(between)), quantile(ordered, 0.9))


def quantile(ordered: Sequence[int], part: float) -> int:
    """Of values in order, between two of them in proportion."""
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (ordered[above] - ordered[below]) * (place - below))

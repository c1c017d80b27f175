"""The queue played forward, again and again: when a job that waits would start if run times and submissions came out as they did before.

How long jobs take is drawn from how earlier ones took, of their team as far as there are enough and of everyone besides; what runs has already
lasted so long. Each team submits once more what it submitted in the last days, so many days as chance has it. A future is then played by the order
of queues, the shares, limits and guarantees of the engine's own tree, on counts of free GPUs by node: reservations, moves and reclaims are followed
in a coarser way, and domains, parts of GPUs and windows not at all. It is the spread of starts over futures that is asked for, not a plan.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from math import exp
from operator import attrgetter, itemgetter
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from scheduler.engine.grid import Grid
from scheduler.engine.tree import Tree
from scheduler.engine.values import Job, Preemptible, Scenario

from .playing import Demand, One, Playing

FUTURES = 16
# Events that all futures together may take, some seconds of a processor; so many jobs that are set up cost as much as one. Thousands of waiting jobs
# are not played to their end.
MOST_EVENTS = 20_000
JOBS_AN_EVENT = 50
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
LATER = 1 << 40  # behind all that wait now


class Past(NamedTuple):
    """How long jobs took as a part of what they had said, in order, of all teams and by team; and who was submitted, by team and in order."""

    everyone: tuple[float, ...] = UNKNOWN
    own: Mapping[str, tuple[float, ...]] = {}
    submitted: Mapping[str, tuple[Job, ...]] = {}


def past_of(lasted: Iterable[tuple[str, int, int]], submitted: Iterable[Job] = ()) -> Past:
    """From (quota, stated, lasted) of jobs that have ended, in any unit, and from those that were submitted in the last days."""
    own: dict[str, list[float]] = {}
    for quota, stated, took in lasted:
        if stated > 0:
            own.setdefault(quota, []).append(max(took, 1) / stated)
    everyone = sorted([*UNKNOWN, *(part for parts in own.values() for part in parts)])
    by_quota: dict[str, list[Job]] = {}
    for job in submitted:
        by_quota.setdefault(job.quota, []).append(job)
    in_order = {quota: tuple(sorted(jobs, key=lambda job: job.submitted)) for quota, jobs in sorted(by_quota.items())}
    return Past(tuple(everyone), {quota: tuple(sorted(parts)) for quota, parts in own.items()}, in_order)


def stated_length(job: Job) -> int:
    """What a job says it takes."""
    return job.estimate_ms or job.limit_ms or LENGTH_UNKNOWN


class Stage:
    """A scenario as futures begin with it."""

    def __init__(self, scenario: Scenario, past: Past | None = None) -> None:
        self.scenario, self.past = scenario, past or Past()
        self.grid = Grid(scenario)
        self.tree = Tree(scenario, self.grid.types, self.grid.capacity, [])
        self._kinds: dict[int, tuple[Demand, tuple[int, ...], int]] = {}
        self._shared: set[tuple[int, int]] = set()
        self.stands: list[tuple[One, Job, list[tuple[int, int]]]] = []
        self.waits: list[tuple[One, Job]] = []
        first = min((jobs[0].submitted for jobs in self.past.submitted.values()), default=scenario.now)
        self.known = scenario.now - first  # for how long submissions are known
        for order, job in enumerate(scenario.jobs):
            if job.run.workers or job.run.leaving:
                self.stands.append((self._one(order, job), job, self._seats(job)))
            elif job.run.state == "queued" and self._kind(job)[1]:
                self.waits.append((self._one(order, job), job))

    def _seats(self, job: Job) -> list[tuple[int, int]]:
        """The GPUs it has by node; one that several share counts for the first of them."""
        found: dict[int, int] = {}
        for worker in (*job.run.workers, *job.run.leaving):
            node = self.grid.index[worker.node]
            for gpu in range(worker.gpus.bit_length()):
                if worker.gpus >> gpu & 1 and (node, gpu) not in self._shared:
                    self._shared.add((node, gpu))
                    found[node] = found.get(node, 0) + 1
        return list(found.items())

    def _kind(self, job: Job) -> tuple[Demand, tuple[int, ...], int]:
        """What it asks for, the largest workers first; of which types it can be; and its milli-GPU. No type: it is not played."""
        known = self._kinds.get(id(job.kind))
        if known is None:
            roles = job.kind.roles
            demand = tuple(sorted(((role.gpus, role.least) for role in roles if role.least and role.gpus), reverse=True))
            types = [
                place
                for place, name in enumerate(self.grid.types)
                if all(not role.gpu_types or name in role.gpu_types for role in roles) and job.kind.speed(name)
            ]
            if not demand or any(role.parted for role in roles):
                types = []
            types.sort(key=lambda place: -job.kind.speed(self.grid.types[place]))
            known = self._kinds[id(job.kind)] = demand, tuple(types), 1000 * sum(gpus * count for gpus, count in demand)
        return known

    def _one(self, order: int, job: Job) -> One:
        demand, types, milli = self._kind(job)
        kind = job.kind
        return One(
            name=job.name,
            leaf=self.tree.position[job.quota],
            demand=demand,
            types=types,
            milli=milli,
            order=(-kind.class_rank, -kind.priority, order),
            stated=stated_length(job),
            gives_way=kind.preemptible is Preemptible.ALWAYS,
            fixed=kind.preemptible is Preemptible.NEVER,
        )

    def played(self, chance: Random, asked: Collection[str], most_events: int) -> dict[str, int]:
        """One future: by name of those asked for how long each waits, as far as it was played."""
        scenario, now = self.scenario, self.scenario.now
        self.tree.clear(scenario)
        playing = Playing(self.grid, self.tree, scenario.settings, now)
        for one, job, seats in self.stands:
            one.rest()
            started = job.run.started if job.run.started is not None else now
            until = now + self._left(chance, job, now - started)
            if job.run.state == "stopping":
                until = job.run.until or now
            playing.stand(one, seats, started, until)
        for one, job in self.waits:
            one.rest()
            one.takes = self._left(chance, job, 0)
            one.asked = job.name in asked
        playing.wait_all([one for one, _ in self.waits])
        playing.come(self._coming(chance))
        playing.run(most_events)
        return {name: at - now for name, at in playing.starts.items()}

    def _coming(self, chance: Random) -> Iterator[tuple[int, One]]:
        """Who will be submitted: each team does once more what it did in the last days, so many as chance has it, at the same time of the day."""
        days = self.known // DAY
        parts = []
        for quota, jobs in self.past.submitted.items():
            back = DAY * (1 + int(chance.random() * days)) if days else self.known
            if back >= LEAST_KNOWN and quota in self.tree.position:
                parts.append(self._again(chance, jobs, back))
        return merge(*parts, key=itemgetter(0))

    def _again(self, chance: Random, jobs: Sequence[Job], back: int) -> Iterator[tuple[int, One]]:
        first = bisect_right(jobs, self.scenario.now - back, key=attrgetter("submitted"))
        for number, job in enumerate(jobs[first:]):
            if self._kind(job)[1]:
                one = self._one(LATER + number, job)
                one.takes = self._left(chance, job, 0)
                yield job.submitted + back, one

    def _left(self, chance: Random, job: Job, gone: int) -> int:
        """How much longer a job runs that has run so long."""
        stated = stated_length(job)
        own, known = self.past.own.get(job.quota, ()), self.past.everyone
        if own and chance.random() * (len(own) + SHRINK) < len(own):
            known = own
        first = bisect_right(known, gone / stated) if gone else 0
        if len(known) - first < RARE:
            left = gone * chance.expovariate(3)
        else:
            left = known[first + int(chance.random() * (len(known) - first))] * stated - gone
        if job.limit_ms is not None:
            left = min(left, job.limit_ms - gone)
        return max(SHORTEST, round(left))


class Waits(NamedTuple):
    """Over the futures, in milliseconds from now: the start is sooner than `low` in a tenth, than `middle` in half, later than `high` in a tenth."""

    low: int
    middle: int
    high: int


def events_each(jobs: int, *, futures: int = FUTURES, most_events: int = MOST_EVENTS) -> int:
    """How many events of each future may be played where so many jobs are to be set up for it. None: setting them up is too much already."""
    return max(0, most_events // futures - jobs // JOBS_AN_EVENT)


def waits_foreseen(stage: Stage, asked: Collection[str], *, seed: int, futures: int = FUTURES, most_events: int = MOST_EVENTS) -> dict[str, Waits]:
    """By name; who starts in fewer than four fifths of the futures within the events that may be spent is left out."""
    each = events_each(len(stage.waits) + len(stage.stands), futures=futures, most_events=most_events)
    if not asked or not each:
        return {}
    found: dict[str, list[int]] = {name: [] for name in asked}
    for number in range(futures):
        for name, wait in stage.played(Random(seed * futures + number), asked, each).items():  # noqa: S311 (no secret)
            found[name].append(wait)
    return {name: _waits(sorted(waits)) for name, waits in found.items() if waits and 5 * len(waits) >= 4 * futures}


def _waits(ordered: Sequence[int]) -> Waits:
    return Waits(*(quantile(ordered, part) for part in (0.1, 0.5, 0.9)))


def quantile(ordered: Sequence[int], part: float) -> int:
    """Of values in order, between two of them in proportion."""
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return round(ordered[below] + (ordered[above] - ordered[below]) * (place - below))

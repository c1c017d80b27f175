"""The queue played forward, again and again: when a job that waits would start if run times and submissions came out as they did before.

How long jobs take is drawn from how earlier ones took, of their team as far as there are enough and of everyone besides; what runs has already
lasted so long. Each team submits again what it, or now and then another team, submitted at that time of the day on one of the last days. A future
is then played by the order of queues, the shares, limits and guarantees of the engine's own tree, on counts of free GPUs by node: reservations,
moves and reclaims are followed in a coarser way, and domains, parts of GPUs and windows not at all. It is the spread of starts over futures that is
asked for, not a plan.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import count
from math import exp, log
from operator import attrgetter, itemgetter
from random import Random
from statistics import NormalDist
from typing import NamedTuple

from scheduler.engine.model.values import Job, Preemptible, Scenario
from scheduler.engine.state.grid import Grid
from scheduler.engine.state.tree import Tree

from .one import Demand, One
from .playing import Playing

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
BLOCK = 6 * 3_600_000  # what was submitted within so long comes again together
AHEAD = 14 * DAY
LATER = 1 << 40  # behind all that wait now


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
                self.stands.append((self.one(order, job), job, self._seats(job)))
            elif job.run.state == "queued" and self._kind(job)[1]:
                self.waits.append((self.one(order, job), job))

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
        """Request, the largest workers first; of which types it can be; and its milli-GPU. No type: it is not played."""
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

    def one(self, order: int, job: Job) -> One:
        demand, types, milli = self._kind(job)
        kind = job.kind
        saved = job.checkpoint
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
            saves=(None, 0) if saved is None else (saved.interval_ms, saved.save_ms + saved.restore_ms),
        )

    def played(self, chance: Random, asked: Collection[str], most_events: int, parts: Iterable[float] = ()) -> dict[str, int]:
        """One future: by name of those asked for how long each waits.

        `parts`: of what stands and then of what waits, which part of known run times is shorter than the one that is taken; drawn if none is said.
        """
        said = iter(parts)
        scenario, now = self.scenario, self.scenario.now
        tree = Tree(scenario, self.grid.types, self.grid.capacity, [])
        playing = Playing(self.grid, tree, scenario.settings, now)
        for one, job, seats in self.stands:
            one.rest()
            started = job.run.started if job.run.started is not None else now
            until = now + self._left(chance, job, now - started, next(said, None))
            if job.run.state == "stopping":
                until = job.run.until or now
            playing.stand(one, seats, started, until)
        for one, job in self.waits:
            one.rest()
            one.takes = self._left(chance, job, 0, next(said, None))
            one.asked = job.name in asked
        playing.wait_all([one for one, _ in self.waits])
        playing.come(self.coming(chance))
        playing.run(most_events)
        return {name: at - now for name, at in playing.starts.items()}

    def coming(self, chance: Random) -> Iterator[tuple[int, One]]:
        """Who will be submitted: each team does again what it did at this time of the day on one of the last days, drawn anew for every few hours.

        The fewer days are known, the more often it is what another team did.
        """
        days, teams = self.known // DAY, [quota for quota in self.past.submitted if quota in self.tree.position]
        if self.known < LEAST_KNOWN:
            return iter(())
        number = count(LATER)
        return merge(*(self._again(chance.random(), quota, teams, days, number) for quota in teams), key=itemgetter(0))

    def _again(self, seed: float, quota: str, teams: Sequence[str], days: int, number: Iterator[int]) -> Iterator[tuple[int, One]]:
        chance = Random(seed)  # noqa: S311 (no secret): its own, as others are asked in turns with it
        now, leaf = self.scenario.now, self.tree.position[quota]
        length = BLOCK if days else self.known
        for begin in range(0, AHEAD, length):
            back = DAY * (1 + begin // DAY + int(chance.random() * days)) if days else self.known + begin
            own = chance.random() * (days + 1) < days
            jobs = self.past.submitted[quota if own else teams[int(chance.random() * len(teams))]]
            first = bisect_right(jobs, now + begin - back, key=attrgetter("submitted"))
            for job in jobs[first:]:
                if job.submitted + back > now + begin + length:
                    break
                if self._kind(job)[1]:
                    one = self.one(next(number), job)
                    one.leaf = leaf
                    one.takes = self._left(chance, job, 0)
                    yield job.submitted + back, one

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


class Waits(NamedTuple):
    """Over the futures, in milliseconds from now: the start is sooner than `low` in a tenth, later than `high` in a tenth, mostly about `middle`."""

    low: int
    middle: int
    high: int


def events_each(jobs: int, *, futures: int = FUTURES, most_events: int = MOST_EVENTS) -> int:
    """How many events of each future may be played where so many jobs are to be set up for it. None: setting them up is too much already."""
    return max(0, most_events // futures - jobs // JOBS_AN_EVENT)


def waits_foreseen(stage: Stage, asked: Collection[str], *, seed: int, futures: int = FUTURES, most_events: int = MOST_EVENTS) -> dict[str, Waits]:
    """By name; who starts in fewer than four fifths of the futures is left out.

    Over the futures each job is once among the shortest sixteenth of what it may take, once among the next, and so on: so few futures then lie around
    their middle as very many would (Latin hypercube sampling).
    """
    each = events_each(len(stage.waits) + len(stage.stands), futures=futures, most_events=most_events)
    if not asked or not each:
        return {}
    found: dict[str, list[int]] = {name: [] for name in asked}
    mixed = Random(seed)  # noqa: S311 (no secret)
    turns = [mixed.sample(range(futures), futures) for _ in range(len(stage.stands) + len(stage.waits))]
    for number in range(futures):
        chance = Random(seed * futures + number)  # noqa: S311 (no secret)
        parts = [(turn[number] + chance.random()) / futures for turn in turns]
        for name, wait in stage.played(chance, asked, each, parts).items():
            found[name].append(wait)
    return {name: _waits(sorted(waits)) for name, waits in found.items() if waits and 5 * len(waits) >= 4 * futures}


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

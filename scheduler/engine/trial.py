"""What would happen to a job if it were submitted now: tried on the fleet of one moment, again and again, without changing it.

The fleet is planned once as it stands; a trial adds the job and plans on from there, which takes up nothing but the job (`state.state`). A job that
would wait gets its date from the look-ahead of those that are served before it, picked up from the nearest of a few copies.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

from .ahead.entries import Date
from .ahead.lookahead import Lookahead
from .cycle import settled
from .model.plan import Decision, Stand
from .model.reasons import Reason
from .model.values import Job, Scenario
from .rules.invariants import check
from .rules.times import duration
from .rules.windows import NEVER
from .state.planning import Cycle
from .state.state import Kept
from .state.tree import Division
from .state.work import Work
from .tell.blockers import Blockers
from .tell.decisions import decisions_of
from .tell.forecast import Forecast, Outlook, serving
from .tell.openings import Allowances

NAME = "this job"
COPY_EVERY = 128  # reservations from one copy of the look-ahead to the next, or more where these would be more than
MOST_COPIES = 32  # each has what comes free on every node


class Level(NamedTuple):
    """A node of the tree on the way up from the job's own, in milli-GPU, before the job has anything."""

    quota: str
    used: int
    guaranteed: int | None  # None: unlimited
    limit: int | None
    fair: int


class Trial(NamedTuple):
    at: int | None = None  # the start, in milliseconds from now; None: nobody can say
    never: bool = False  # even the empty fleet, or a limit, refuses it
    reasons: tuple[Reason, ...] = ()  # why not at once
    stands: tuple[Stand, ...] = ()  # its workers, where it starts at once or when others have left
    nodes: tuple[tuple[str, int], ...] = ()  # (node, GPUs) where it starts later
    after: tuple[str, ...] = ()  # who has to leave first
    others: tuple[Decision, ...] = ()  # what happens to other jobs on its account
    backfilled: bool = False
    quota_type: str = ""
    milli: int = 0
    levels: tuple[Level, ...] = ()  # from its leaf up
    guaranteed: bool = False  # within the guarantees on the whole way up
    claimants: tuple[str, ...] = ()  # where borrowed: who has guaranteed GPUs left unused and could take them back
    length: int = 0  # how long it is planned for, in milliseconds


def without_forecast(scenario: Scenario) -> Scenario:
    return replace(scenario, settings=replace(scenario.settings, forecast="none"))


def starts_at_once(scenario: Scenario, kept: Kept) -> list[Decision]:
    """Whom the plan starts without anybody giving way for it, and without a GPU that is split anew."""
    cycle = settled(without_forecast(scenario), kept)
    check(cycle)
    decisions = decisions_of(cycle)
    kept.keep(cycle)
    served = {one.for_job for one in decisions}
    split = [(one.node, 1 << one.gpu) for one in decisions if one.gpu is not None]
    starts = [one for one in decisions if one.action == "start" and not one.after and one.job not in served]
    return [one for one in starts if not any(seat.node == node and seat.gpus & gpu for seat in one.workers for node, gpu in split)]


class Ground:
    """The fleet of one moment. One trial at a time."""

    def __init__(self, scenario: Scenario, kept: Kept | None = None) -> None:
        self.scenario = without_forecast(scenario)
        self.name = unlike(scenario.jobs)  # for who is tried
        self.kept = kept if kept is not None else Kept()
        cycle = settled(self.scenario, self.kept)
        check(cycle)
        self._decided = {(decision.action, decision.job) for decision in decisions_of(cycle)}
        self._line = Line(cycle)
        self.kept.keep(cycle)

    def waiting(self, name: str) -> Job | None:
        """A job that waits here and is asked; None for one that stands by now, or that the plan is not shown."""
        found = next((job for job in self.scenario.jobs if job.name == name), None)
        return found if found is not None and found.run.state == "queued" and not found.run.workers else None

    def trial(self, job: Job, *, dated: bool = True, instead_of: str = "") -> Trial:
        """What becomes of a job that waits from now on, of a name that is nobody else's; if `dated`, with the date of one that does not start.
        Instead of another one, which then is gone; of the same name, it is that one as it would be changed, at its own place in the queue."""
        jobs = self.scenario.jobs
        if instead_of == job.name:
            jobs = tuple(job if one.name == instead_of else one for one in jobs)
        else:
            job = replace(job, not_before=None, submitted=self.scenario.now)
            jobs = (*(one for one in jobs if one.name != instead_of), job)
        cycle = settled(replace(self.scenario, jobs=jobs), self.kept)
        try:
            check(cycle)
            work = next(work for work in reversed(cycle.cluster.works) if work.job.name == job.name)
            return self._told(cycle, work, dated)
        finally:
            self.kept.keep(cycle)

    def _told(self, cycle: Cycle, work: Work, dated: bool) -> Trial:
        decisions = decisions_of(cycle)
        others = tuple(one for one in decisions if one.job != work.job.name and (one.action, one.job) not in self._decided)
        if work.seats:
            own = next(one for one in decisions if one.job == work.job.name)
            wait = max((one.grace_ms for one in others if one.action == "evict"), default=0)
            charged = _charged(cycle, work, work.quota_type)
            return charged._replace(at=wait, stands=own.workers, after=own.after, others=others, backfilled=own.backfilled)
        charged = _charged(cycle, work, next(iter(work.types or work.form.types), 0))
        power = cycle.cluster.power
        never = work.order in cycle.waiting.static or (power is not None and power.never(work) is not None)
        waits = charged._replace(reasons=Blockers(cycle, foresees=True).of(work), never=never)
        if never or not dated:
            return waits
        found = next((entry.date for entry in cycle.book.entries if entry.work is work), None) or self._line.date(cycle, work)
        if found is None:
            return waits
        return waits._replace(at=found.at, nodes=tuple((cycle.grid.nodes[node].name, count) for node, count in sorted(found.places)))


def _charged(cycle: Cycle, work: Work, quota_type: int) -> Trial:
    """What it is charged in a quota type, and where."""
    if not cycle.grid.types:
        return Trial()
    tree, division, held = cycle.tree, cycle.tree.division(quota_type), work.milli if work.seats else 0
    used, promised, milli = division.used, division.guaranteed, held or work.form.least_milli(quota_type)
    path = tree.path[work.home]
    levels = tuple([Level(tree.names[at], used[at] - held, promised[at], tree.limit_for(division, at), division.fair[at]) for at in path])
    within = all(level.guaranteed is None or level.used + milli <= level.guaranteed for level in levels)
    beside = [each for at in path for each in tree.children[tree.parent[at]] if each != at and tree.quotas[each] is not None]
    left = [((division.capacity if (most := promised[each]) is None else most) - used[each], tree.names[each]) for each in beside]
    claimants = () if within else tuple([name for unused, name in sorted(left, key=lambda one: (-one[0], one[1])) if unused > 0])
    name, length = cycle.grid.types[quota_type], min(duration(cycle, work), NEVER)
    return Trial(quota_type=name, milli=milli, levels=levels, guaranteed=within, claimants=claimants, length=length)


class Walk(NamedTuple):
    """A round of the line: whose turn it was, step by step, and what that followed from."""

    shares: tuple[tuple[int, ...], ...]
    waits: dict[int, list[str]]
    turns: list[tuple[int, int, str]]  # a leaf, the milli-GPU that it asked for, and for which job


def shares_of(division: Division) -> tuple[tuple[int, ...], ...]:
    """All that the order of queues depends on, beside who waits."""
    return tuple(division.used), tuple(division.fair), tuple(division.counts_on)


def names_in(queues: dict[int, list[Work]], besides: Work | None) -> dict[int, list[str]]:
    named = ((leaf, [work.job.name for work in queue if work is not besides]) for leaf, queue in queues.items())
    return {leaf: names for leaf, names in named if names}


class Line:
    """Those that wait in the order in which they are served, each with the place that is kept for it in the look-ahead."""

    def __init__(self, cycle: Cycle) -> None:
        forecast = Forecast(cycle)
        book = cycle.book
        ahead = book.fresh_lookahead()
        if any(True for _ in cycle.waiting):
            forecast.everyone()
            for entry in book.entries:
                ahead.reserve(entry.at, entry.length, entry.places)
        self.taken = forecast.taken
        self.reserved = {entry.work.job.name for entry in book.entries}
        self.dates = forecast.dates
        self.copy_every = max(COPY_EVERY, -(-len(self.dates) // MOST_COPIES))
        self.copies: list[Lookahead] = []
        for place, one in enumerate(self.dates):
            if place % self.copy_every == 0:
                self.copies.append(ahead.copy())
            ahead.foresee(one.at, one.length, one.places)
        self.copies.append(ahead)
        self.walks: dict[tuple[int, str], Walk] = {}
        for choice, division in cycle.waiting.rounds():
            queues = self._queues(cycle, choice, division, None)
            turns = [(work.home, asked, work.job.name) for work, asked in serving(cycle, choice, division, queues)]
            self.walks[choice, division.name] = Walk(shares_of(division), names_in(queues, None), turns)

    def date(self, cycle: Cycle, work: Work) -> Date | None:
        """When a job that the plan lets wait could start behind those that are served before it."""
        if "allocate" not in cycle.settings.passes and "backfill" not in cycle.settings.passes:
            return None
        before: set[str] = set()
        for choice, division in cycle.waiting.rounds():
            queues = self._queues(cycle, choice, division, work)
            if work in queues.get(work.home, ()):
                before.update(self._before(cycle, choice, division, queues, work))
                if (found := self._behind(cycle, work, cycle.waiting.tried_types(work, choice), before)) is not None:
                    return found
            before.update(other.job.name for queue in queues.values() for other in queue if other is not work)
        return None

    def _queues(self, cycle: Cycle, choice: int, division: Division, work: Work | None) -> dict[int, list[Work]]:
        return cycle.waiting.of_round(division, choice, lambda one: one is work or one.job.name not in self.reserved)

    def _before(self, cycle: Cycle, choice: int, division: Division, queues: dict[int, list[Work]], work: Work) -> list[str]:
        """Who is served before the job in one round. Where the shares are those of the line, everyone goes in the order of the line until the job
        heads its queue."""
        known = self.walks.get((choice, division.name))
        place = queues[work.home].index(work)
        turns: list[tuple[int, int, str]] = []
        if known is not None and place and known.shares == shares_of(division) and known.waits == names_in(queues, work):
            of_leaf = [step for step, (leaf, *_) in enumerate(known.turns) if leaf == work.home]
            turns = known.turns[: of_leaf[place - 1] + 1]
            gone = Counter(leaf for leaf, *_ in turns)
            queues = {leaf: rest for leaf, queue in queues.items() if (rest := queue[gone[leaf] :])}
        served = takewhile(lambda other: other is not work, (other for other, _ in serving(cycle, choice, division, queues, turns)))
        return [*(name for *_, name in turns), *(other.job.name for other in served)]

    def _behind(self, cycle: Cycle, work: Work, types: tuple[int, ...], before: set[str]) -> Date | None:
        count = sum(one.name in before for one in self.dates)
        nearest = count // self.copy_every
        ahead = self.copies[nearest].copy()
        for one in self.dates[nearest * self.copy_every : count]:
            ahead.foresee(one.at, one.length, one.places)
        rehearsal = None
        if not work.form.plain or cycle.book.hosts_bind:
            rehearsal = cycle.book.rehearsal(ahead)
            for one in self.dates[:count]:
                rehearsal.add(one.at, one.length, one.seats)
        allowances = Allowances(cycle)
        for taken in self.taken:
            if taken.work.job.name in before or taken.work.job.name in self.reserved:
                allowances.take(taken)
        found = Outlook(cycle, ahead, rehearsal, allowances).earliest(work, types)
        return None if found is None else found.date._replace(at=found.at)


def unlike(jobs: Sequence[Job]) -> str:
    """A name that none of the jobs has."""
    taken, name = {job.name for job in jobs}, NAME
    while name in taken:
        name += "'"
    return name

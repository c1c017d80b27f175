"""Submissions of some days played on a fleet by the engine itself, told by quota: how long jobs waited, and how much they held.

It is the `World` of every simulation, with the fleet's topology, parts of GPUs, elastic sizes, decayed usage, and the windows that the calendar
had. Only plans are fewer: the more they cost, the longer it waits from one to the next.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop
from typing import Any

from scheduler.engine.model.values import Job, Scenario

from .calendar import Promised, windows_at
from .world import NEVER, World, milli_of

HOUR = 3_600_000
TOLD_EVERY = 6  # hours from one table to the next
STEPS = (0, 60_000, 300_000, 600_000, 900_000, 1_800_000)  # between plans, in milliseconds; 0: whenever something happens
LONGEST_STEP = 3_600_000
SPEND_MS = 10_000  # of a processor, about so much for the plans of one play
PLANS_A_JOB = 3  # when it comes, and about when it leaves and others have left
Row = Sequence[Any]


def step_of(hours: int, jobs: int, nodes: int) -> int:
    """How long to wait from one plan to the next: as short as what all of them cost allows."""
    each = 2 + nodes / 10 + jobs / 1000  # milliseconds
    return next((step for step in STEPS if min(PLANS_A_JOB * jobs, hours * HOUR / max(1, step)) * each <= SPEND_MS), LONGEST_STEP)


@dataclass(slots=True)
class Had:
    """What the jobs of a quota held, in milli-GPU times milliseconds, and how many milli-GPU they hold since an instant."""

    milli: int = 0
    since: int = 0
    sum: int = 0

    def change(self, more: int, now: int) -> None:
        self.sum += self.milli * (now - self.since)
        self.milli, self.since = self.milli + more, now


class Span(World):
    """One play, with what each quota waits and holds."""

    def __init__(self, scenario: Scenario, works: dict[str, int], calendar: Sequence[Promised], step: int) -> None:
        self.begin, self.step, self.calendar = scenario.now, step, calendar
        self._planned: int | None = None
        self._owed: int | None = None  # since when a plan is due that had to wait for its step
        self._holds: dict[str, int] = {}  # milli-GPU, by job
        self._had: dict[str, Had] = {}
        self._began: list[str] = []  # of those that have come within the span
        super().__init__(scenario, works=works)

    def until(self, moment: int, on: Callable[[], bool]) -> bool:
        """Go on until a moment. False: `on` said no before a plan, and the moment was not reached."""
        while (time := self._next_moment() if self._owed is None else self._owed) is not None:
            at = time if self._planned is None else max(time, self._planned + self.step)
            if at > moment:
                # What happens until the moment is no longer to come then, but still to be planned.
                self._owed = time if time <= moment else None
                break
            if not on():
                return False
            self._happen_until(at)
            self._wake = self._owed = None
            self._plan()
            self._planned = at
        self._happen_until(moment)
        return True

    def _happen_until(self, moment: int) -> None:
        timers = self.timers
        while (time := self._next_timer()) is not None and time <= moment:
            self._pass_time(time)
            _, _, what, name, version = heappop(timers)
            self._happen(what, name, version)
        self._pass_time(moment)

    def _plan(self) -> None:
        shown = windows_at(self.calendar, self.now, self.template.settings.window_horizon_ms) if self.calendar else ()
        if shown != self.template.windows:
            self.template = replace(self.template, windows=shown)
        super()._plan()

    def _next_moment(self) -> int | None:
        """A window that begins, ends or comes into its lead changes what may be done, as does what happens or the engine asks for."""
        time = super()._next_moment()
        if not self.active:
            return time
        turns = (turn for one in self.calendar for turn in (one.start - max(one.lead_ms, one.notice_ms), one.start, one.end) if turn is not None)
        since = self.begin if self._planned is None else self._planned
        turn = min((turn for turn in turns if turn > since), default=NEVER)
        return turn if turn < (NEVER if time is None else time) else time

    def _come(self, job: Job) -> None:
        super()._come(job)
        if job.submitted > self.begin:
            self._began.append(job.name)

    def _note_use(self, job: Job) -> None:
        super()._note_use(job)
        there = job.name in self.active and job.run.state != "reserved"
        milli = sum(milli_of(worker, self.nodes[worker.node]) for worker in job.run.workers) if there else 0
        before = self._holds.pop(job.name, 0)
        if milli:
            self._holds[job.name] = milli
        if milli != before:
            self._had.setdefault(job.quota, Had()).change(milli - before, self.now)

    def table(self) -> dict[str, list[int]]:
        """By quota: jobs submitted within the span, how many of them started, the milliseconds that all of them waited by now, and what was held."""
        found: dict[str, list[int]] = {}
        for quota, had in self._had.items():
            had.change(0, self.now)
            found[quota] = [0, 0, 0, had.sum]
        for name in self._began:
            life = self.lives[name]
            row = found.setdefault(life.job.quota, [0, 0, 0, 0])
            row[0] += 1
            row[1] += life.first_start is not None
            row[2] += (self.now if life.first_start is None else life.first_start) - life.job.submitted
        return dict(sorted(found.items()))


def played(
    scenario: Scenario, rows: Iterable[Row], hours: int, on: Callable[[], bool], calendar: Sequence[Promised] = ()
) -> Iterator[dict[str, Any]]:
    """A message for each hour, with a table every few hours and at the end; as long as `on` says so.

    The scenario's jobs are specimens; a row is [specimen, submitted, milliseconds of work, estimate, limit, quota].
    """
    specimens, jobs, works = scenario.jobs, [], {}
    for order, (place, submitted, work, *stated) in enumerate(sorted(rows, key=lambda row: row[1])):
        estimate, limit, quota = stated or (None, None, specimens[place].quota)
        job = replace(specimens[place], name=f"{order:09d}", quota=quota, submitted=submitted, estimate_ms=estimate, limit_ms=limit)
        jobs.append(job)
        works[job.name] = work
    nodes = tuple(replace(node, repartitioned=()) for node in scenario.nodes)
    world = Span(replace(scenario, nodes=nodes, jobs=tuple(jobs)), works, calendar, step_of(hours, len(jobs), len(nodes)))
    for hour in range(1, hours + 1):
        if not on() or not world.until(scenario.now + hour * HOUR, on):
            return
        told: dict[str, Any] = {"hour": hour, "step": world.step}
        if hour % TOLD_EVERY == 0 or hour == hours:
            told["table"] = world.table()
        yield told

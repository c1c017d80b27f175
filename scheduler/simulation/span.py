"""Submissions of some days played on a fleet by the engine itself: how long jobs waited and how much they held, by quota, by class and over time.

It is the `World` of every simulation, with the fleet's topology, parts of GPUs, elastic sizes, decayed usage, and the windows and power caps that
there were. Only plans are fewer: the more they cost, the longer it waits from one to the next.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from scheduler.engine.model.values import CLASSES, Job, Scenario

from .calendar import Capped, Promised, caps_at, windows_at
from .paced import STEPS, Paced
from .result import fairness_of
from .world import NEVER, Policy, milli_of

HOUR = 3_600_000
TABLES = 28  # that a play tells at most, evenly: of a week one in 6 hours
THERE = 1  # millisecond after the beginning: until then comes what was there, and counts no queue time
SPARE = 0.6  # of the time is counted on: plans grow dearer with a longer step, and with the queue
# Queue times are counted between these, in milliseconds.
WAIT_EDGES = (60_000, 600_000, 1_800_000, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR)
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Pace:
    """How many hours are played, with how long from one plan to the next."""

    hours: int
    step: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a play: milliseconds of each plan, and plans in an hour that is played, more than enough where that is not known."""

    each: float
    plans: float

    def of_hour(self, step: int) -> float:
        return self.each * min(self.plans, HOUR / max(1, step))


def pace_of(hours: int, cost: Cost, *, longest: int, spend: float) -> Pace:
    """As many hours as can be played in so many milliseconds with the longest step, with the finest step that is enough for them."""
    fits = {step: min(hours, SPARE * spend / max(1e-9, cost.of_hour(step))) for step in STEPS if step <= longest}
    return Pace(max(1, int(fits[longest])), next(step for step, found in fits.items() if found == fits[longest]))


def told_every(hours: int) -> int:
    """How many hours lie between two tables of a play."""
    return -(-hours // TABLES)


@dataclass(slots=True)
class Had:
    """What the jobs of a quota held, in milli-GPU times milliseconds, and how many milli-GPU they hold since an instant."""

    milli: int = 0
    since: int = 0
    sum: int = 0

    def change(self, more: int, now: int) -> None:
        self.sum += self.milli * (now - self.since)
        self.milli, self.since = self.milli + more, now


class Span(Paced):
    """One play, with what each quota waits and holds."""

    def __init__(
        self,
        scenario: Scenario,
        works: dict[str, int],
        calendar: Sequence[Promised],
        step: int,
        policy: Policy | None = None,
        caps: Sequence[Capped] = (),
    ) -> None:
        """`caps` stand in for those of the scenario, if there are any."""
        self.begin, self.calendar, self.caps = scenario.now, calendar, caps
        self._is_whole = policy is None  # other policies look for the room of few jobs
        self._cap_turns = sorted({turn for one in caps for turn in one.turns})
        self._caps_turn = scenario.now if caps else NEVER  # when the caps have to be looked at anew
        self._holds: dict[str, int] = {}  # milli-GPU, by job
        self._had: dict[str, Had] = {}
        self._all = Had()
        self._queued = 0  # waiting jobs times milliseconds
        self._last_told = (0, 0)  # what was held and queued by the last hour that was told
        self._began: list[str] = []  # of those that have come within the span
        super().__init__(scenario, policy, works, step)

    def _pass_time(self, time: int) -> None:
        self._queued += max(0, time - self._last) * self._waiting
        super()._pass_time(time)

    def _plan(self) -> None:
        shown = windows_at(self.calendar, self.now, self.template.settings.window_horizon_ms) if self.calendar else ()
        if shown != self.template.windows:
            self.template = replace(self.template, windows=shown)
        if self.now >= self._caps_turn:
            self.template = replace(self.template, power=replace(self.template.power, caps=caps_at(self.caps, self.now)))
            self._caps_turn = self._next_cap_turn(self.now)
        super()._plan()

    def _next_cap_turn(self, since: int) -> int:
        place = bisect_right(self._cap_turns, since)
        return self._cap_turns[place] if place < len(self._cap_turns) else NEVER

    def _next_moment(self) -> int | None:
        """A window that begins, ends or comes into its lead, or a cap, changes what may be done, as does what happens or the engine asks for."""
        time = super()._next_moment()
        if not self.active:
            return time
        turns = (turn for one in self.calendar for turn in (one.start - max(one.lead_ms, one.notice_ms), one.start, one.end) if turn is not None)
        since = self.begin if self._planned is None else self._planned
        turn = min(self._next_cap_turn(since), min((turn for turn in turns if turn > since), default=NEVER))
        return turn if turn < (NEVER if time is None else time) else time

    def _come(self, job: Job) -> None:
        super()._come(job)
        if job.submitted > self.begin + THERE:
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
            self._all.change(milli - before, self.now)

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

    def course(self) -> tuple[int, int]:
        """What was held since this was asked last, in milli-GPU times milliseconds, and how many jobs waited, times milliseconds."""
        self._all.change(0, self.now)
        held, queued = self._last_told
        self._last_told = (self._all.sum, self._queued)
        return self._all.sum - held, self._queued - queued

    def figures(self) -> dict[str, Any]:
        """Of the whole fleet. A job that has not started, or ended, counts with its time so far: none is left out."""
        self._all.change(0, self.now)
        waits: dict[str, list[int]] = {name: [] for name in CLASSES}
        took = 0
        for name in self._began:
            life = self.lives[name]
            took += (self.now if life.ended is None else life.ended) - life.job.submitted
            waits[CLASSES[life.job.kind.class_rank]].append((self.now if life.first_start is None else life.first_start) - life.job.submitted)
        lives = [life for life in self.lives.values() if life.arrived <= self.now]
        return {
            "capacity": 1000 * self.capacity,
            "held": self._all.sum,
            "preemptions": self.totals.preemptions,
            "moves": self.totals.moves,
            "fragmented": self.totals.fragmented,
            "plans": self.totals.plans if self._is_whole else 0,
            "fairness": fairness_of([life for life in lives if life.ended is not None and not life.failed], self.begin)["mean"],
            "lost": sum(life.lost for life in lives),
            "came": len(lives),
            "finished": sum(life.ended is not None and not life.failed for life in lives),
            "over_limit": sum(life.failed for life in lives),
            "waiting": self._waiting,
            "completion": took // len(self._began) if self._began else None,
            "waits": {name: waits_told(found) for name, found in waits.items() if found} | {"all": waits_told([*chain(*waits.values())])},
        }


def waits_told(waits: Sequence[int]) -> dict[str, Any]:
    """How many, their median and 95th percentile in milliseconds, and how many lie between the edges."""
    ordered = sorted(waits)
    counts = [0] * (len(WAIT_EDGES) + 1)
    for wait in ordered:
        counts[bisect_right(WAIT_EDGES, wait)] += 1
    return {"jobs": len(ordered), "p50": _part(ordered, 50), "p95": _part(ordered, 95), "counts": counts}


def _part(ordered: Sequence[int], percent: int) -> int | None:
    """The least value that so many percent do not exceed; None: there is none."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)] if ordered else None


def played(
    scenario: Scenario,
    rows: Iterable[Row],
    hours: int,
    on: Callable[[], bool],
    calendar: Sequence[Promised] = (),
    policy: Policy | None = None,
    step: int = 0,
    caps: Sequence[Capped] = (),
) -> Iterator[dict[str, Any]]:
    """A message for each hour with its course, every few hours and at the end with a table and figures; as long as `on` says so.

    The scenario's jobs are specimens; a row is [specimen, submitted, milliseconds of work, estimate, limit, quota]. `step`: from one plan to the
    next; plays that are compared have the same.
    """
    specimens, jobs, works = scenario.jobs, [], {}
    for order, (place, submitted, work, *stated) in enumerate(sorted(rows, key=lambda row: row[1])):
        estimate, limit, quota = stated or (None, None, specimens[place].quota)
        job = replace(specimens[place], name=f"{order:09d}", quota=quota, submitted=submitted, estimate_ms=estimate, limit_ms=limit)
        jobs.append(job)
        works[job.name] = work
    nodes = tuple(replace(node, repartitioned=()) for node in scenario.nodes)
    world = Span(replace(scenario, nodes=nodes, jobs=tuple(jobs)), works, calendar, step, policy, caps)
    for hour in range(1, hours + 1):
        if not world.until(scenario.now + hour * HOUR, on):
            return
        told: dict[str, Any] = {"hour": hour, "step": world.step, "course": world.course()}
        if hour % told_every(hours) == 0 or hour == hours:
            told |= {"table": world.table(), "figures": world.figures()}
        yield told

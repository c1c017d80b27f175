"""Submissions of some days played forward on a fleet, told by quota: how long jobs waited, and how much they held.

It is played as futures are (`playing`): the order of queues, shares, limits, guarantees and reclaims of the engine's own tree, on counts of free GPUs
by node; domains, parts of GPUs, windows and decayed usage not at all. Jobs come and end at their own times and start at steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop
from typing import Any

from scheduler.engine.model.values import Scenario

from .futures import Stage
from .one import One
from .playing import Playing

HOUR = 3_600_000
TOLD_EVERY = 6  # hours from one table to the next
# The more jobs, the longer the steps at which they start: (up to so many jobs, milliseconds).
STEPS = ((6_000, 300_000), (20_000, 900_000), (50_000, 1_800_000))
LONGEST_STEP = 3_600_000
Row = Sequence[int]


def step_of(jobs: int) -> int:
    return next((step for most, step in STEPS if jobs <= most), LONGEST_STEP)


class Counted(Playing):
    """One play, with what each quota waits and holds."""

    def __init__(self, stage: Stage, come: Sequence[tuple[int, One]], step: int) -> None:
        scenario = stage.scenario
        super().__init__(stage.grid, stage.tree, scenario.settings, scenario.now)
        self.step = step
        self.jobs: dict[int, list[int]] = {}  # by leaf: came within the span, started, the milliseconds that those waited
        self.waiting: dict[str, tuple[int, int]] = {}  # of those that came within the span and wait for their first start: leaf, and since when
        self._come = iter(come)
        self._due = next(self._come, None)

    def _start(self, one: One, seats: list[tuple[int, int]]) -> None:
        super()._start(one, seats)
        known = self.waiting.pop(one.name, None)
        if known is not None:
            row = self.jobs[known[0]]
            row[1] += 1
            row[2] += self.now - known[1]

    def until(self, moment: int) -> None:
        """Go on until a moment, step by step."""
        if self.now == self.begin:
            self._take(self.now)
            self._plan()
        while self.now < moment:
            boundary = min(moment, self.now // self.step * self.step + self.step)
            self._rooms.clear()
            while self.timers and self.timers[0][0] <= boundary:
                at, _, one, version = heappop(self.timers)
                if one.version == version:
                    self.now = max(self.now, at)
                    self._leave(one)
            self._take(boundary)
            self.now = boundary
            self._plan()

    def _take(self, moment: int) -> None:
        """Who has come by then waits."""
        while self._due is not None and self._due[0] <= moment:
            at, one = self._due
            self.wait(one)
            if at > self.begin:
                self.jobs.setdefault(one.leaf, [0, 0, 0])[0] += 1
                self.waiting[one.name] = (one.leaf, at)
            self._due = next(self._come, None)

    def table(self, names: Mapping[int, str]) -> dict[str, list[int]]:
        """By quota: jobs submitted within the span, how many of them started, the milliseconds that all of them waited by now, and what was held."""
        waited: dict[int, int] = {}
        for leaf, since in self.waiting.values():
            waited[leaf] = waited.get(leaf, 0) + self.now - since
        found = {}
        for leaf in sorted({*self.jobs, *self.served, *self.standing}):
            came, started, had = self.jobs.get(leaf, (0, 0, 0))
            held = self.served.get(leaf, 0) + sum(self._had(one) for one in self.standing.get(leaf, {}))
            if came or held:
                found[names[leaf]] = [came, started, had + waited.get(leaf, 0), held]
        return found


def played(scenario: Scenario, rows: Iterable[Row], hours: int, on: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """A message for each hour, with a table every few hours and at the end; as long as `on` says so."""
    specimens = scenario.jobs
    # Moves between nodes make room that counts of free GPUs cannot tell: they are left out, and with them most of the time that it takes.
    stage = Stage(replace(scenario, jobs=(), settings=replace(scenario.settings, max_moves=0)))
    come = []
    for order, (place, submitted, work) in enumerate(sorted(rows, key=lambda row: row[1])):
        job = specimens[place]
        one = stage.one(order, job)
        if one.types:
            one.name, one.takes = str(order), work
            come.append((submitted, one))
    stage.tree.clear(stage.scenario)
    names = {place: name for name, place in stage.tree.position.items()}
    world = Counted(stage, come, step_of(len(come)))
    for hour in range(1, hours + 1):
        if not on():
            return
        world.until(scenario.now + hour * HOUR)
        told: dict[str, Any] = {"hour": hour, "step": world.step}
        if hour % TOLD_EVERY == 0 or hour == hours:
            told["table"] = world.table(names)
        yield told

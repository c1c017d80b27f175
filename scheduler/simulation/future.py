"""One future of a queue: the world of `world` with run times that were drawn, on a clock that is the coarser the further it looks ahead."""

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from heapq import heappop, heappush, merge

from scheduler.engine.cycle import starts_foretold
from scheduler.engine.model.plan import Decision
from scheduler.engine.model.values import Job, Scenario

from .progress import MILLION
from .world import Timer, World

FINEST = 60_000  # milliseconds
COARSE = 4  # what happens within such a part of what it lies ahead happens at once
LATER = 1 << 40  # behind all that are there now


class Future(World):
    """`left`: how much longer each job runs, from now or from its start on; `coming`: who is submitted on the way, and how long each runs.

    `asked`: waiting jobs whose starts are of interest. It is played until all of these have started, for so many plans at most.
    """

    def __init__(self, scenario: Scenario, left: dict[str, int], coming: Iterator[tuple[Job, int]], asked: Set[str], most_plans: int) -> None:
        self.begin = scenario.now
        self._left, self._submitted = left, coming
        self._asked, self._open, self._plans_left = asked, set(asked), most_plans
        super().__init__(scenario, works=left)

    def waits(self) -> dict[str, int]:
        """How long each of those asked for waits, in milliseconds; who never starts is left out."""
        self.run()
        starts = {name: self.lives[name].first_start for name in self._asked - self._open}
        starts = {name: self.active[name].run.until if at is None else at for name, at in starts.items()}
        if self._open:
            starts |= self._foretold()
        return {name: at - self.begin for name, at in starts.items() if at is not None}

    def _foretold(self) -> dict[str, int]:
        """When the others would start from here on, as the engine tells it of jobs that take as long as these do: no factor corrects that."""
        jobs = tuple(replace(job, estimate_ms=self.lives[job.name].work // MILLION, limit_ms=None) for job in self._jobs)
        scenario = self._scenario(jobs)
        foretold = starts_foretold(replace(scenario, settings=replace(scenario.settings, forecast="all", overrun_millionths=MILLION)))
        return {name: at for name, at in foretold.items() if name in self._open}

    # The clock

    def _next_moment(self) -> int | None:
        """When something happens next. But for now, all within a part of what that lies ahead happens at its mean."""
        first = super()._next_moment() if self._open and self._plans_left > 0 else None
        if first is None:
            return None
        ahead = first - self.begin
        timers, until = self.timers, first + max(FINEST, ahead // COARSE) * (ahead > 0)
        near = []
        while (at := self._next_timer()) is not None and at <= until:
            near.append(heappop(timers))
            if near[-1][2] == "arrive":
                self._expect_next()
        moment = max(first, sum(timer[0] for timer in near) // len(near)) if near else first
        for _, serial, what, name, version in near:
            heappush(timers, (moment, serial, what, name, version))
        return moment

    # Who comes, and for how long

    def _arrivals(self, known: Sequence[Timer]) -> Iterator[Timer]:
        return merge(known, self._later())

    def _later(self) -> Iterator[Timer]:
        for number, (job, takes) in enumerate(self._submitted):
            name = f"{job.name} {number}"
            self._know(replace(job, name=name), takes)
            yield job.submitted, LATER + number, "arrive", name, 0

    def _goes_on(self, job: Job, started: int) -> None:
        life, rate = self.lives[job.name], self._rate(job)[0]
        life.first_start = started
        life.brought = (self.now - started) * rate
        life.work = life.progress.work = life.brought + self._left[job.name] * rate
        self._form(job.name, started)

    def _happen(self, what: str, name: str, version: int) -> bool:
        if what != "arrive":
            return super()._happen(what, name, version)
        life = self.lives[name]
        life.job = replace(life.job, submitted=min(life.job.submitted, self.now))
        self._come(life.job.with_run(life.job.run.as_it_waits()))
        return True

    def _plan(self) -> None:
        super()._plan()
        self._plans_left -= 1

    def _carry_out(self, decision: Decision, gone: dict[str, int]) -> None:
        super()._carry_out(decision, gone)
        if decision.action == "start" and decision.job is not None:
            self._open.discard(decision.job)

"""One point played and measured. Every point has the same warm-up and the same end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler.engine.model.values import CLASSES, Job, Kind, Scenario
from scheduler.simulation.paced import Paced
from scheduler.simulation.progress import MILLION
from scheduler.simulation.result import fairness_of, saturated, spread, took_s, under_way
from scheduler.simulation.workload import works_drawn
from scheduler.simulation.world import Life, Policy, milli_of

from .points import Interval, Point, scenario_of
from .policies import POLICIES
from .sharing.rounds import Rounds

CHECKED_EVERY = 64  # plans
NEVER_STARTED = 0.05  # of the jobs that were submitted while it was measured
PERCENTILES = (50, 95)


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted by a moment."""

    useful: int = 0
    useful_by_type: Mapping[str, int] = field(default_factory=dict)
    plans: int = 0
    fragmented: int = 0
    preemptions: int = 0
    moves: int = 0
    lost: int = 0


class Measured(Paced):
    """A world that measures between two moments, and knows what jobs truly are where the scheduler sees them otherwise."""

    def __init__(
        self,
        scenario: Scenario,
        interval: Interval,
        *,
        works: dict[str, int],
        policy: Policy | None = None,
        kinds: Mapping[int, Kind] | None = None,
        step: int = 0,
        on: Callable[[], None] = lambda: None,
    ) -> None:
        self.begin, self.end = scenario.now + interval.warm_up, scenario.now + interval.end
        self.counts = [Counts(), Counts()]  # at the beginning and the end of what is measured
        self.held_by_type: dict[str, int] = {}  # milli-GPU times milliseconds between them
        self._kinds, self._on, self._plans = kinds or {}, on, 0
        self._places: dict[str, dict[str, int]] = {}  # milli-GPU by type, by job
        self._here: dict[str, int] = {}  # the sum of them
        self._useful: dict[str, int] = {}  # by type: milli-GPU times millionths of a millisecond at speed 1.0 that are done and not lost
        self._stretches: dict[str, list[tuple[dict[str, int], int]]] = {}  # by job: places as above, and the work that was done there
        self._booked: dict[str, int] = {}  # by job: the sum of that work
        super().__init__(scenario, policy, works, step)
        self.by_type = self._capacity_by_type()

    def play(self, until: int) -> None:
        if self.step:
            self.until(until, lambda: True)
        else:
            self.run(until)
        self._pass_time(until)  # also where nothing happens any more

    def _pass_time(self, time: int) -> None:
        for place, mark in enumerate((self.begin, self.end)):
            if self._last < mark <= time:
                self._advance(mark)
                for name in self.active:
                    self._book(name)
                lost = sum(life.lost for life in self.lives.values())
                useful, totals = self.totals.useful + under_way(self), self.totals
                by_type = {name: work // MILLION for name, work in self._useful.items()}
                self.counts[place] = Counts(useful, by_type, totals.plans, totals.fragmented, totals.preemptions, totals.moves, lost)
        self._advance(time)

    def _advance(self, time: int) -> None:
        if self.begin <= self._last < self.end:
            for gpu_type, milli in self._here.items():
                self.held_by_type[gpu_type] = self.held_by_type.get(gpu_type, 0) + milli * (time - self._last)
        super()._pass_time(time)

    def _note_use(self, job: Job) -> None:
        super()._note_use(job)
        self._book(job.name)
        there = job.name in self.active and job.run.state != "reserved"  # whose place another may still leave
        for gpu_type, milli in self._places.pop(job.name, {}).items():
            self._here[gpu_type] -= milli
        if there and job.run.workers:
            held: dict[str, int] = {}
            for worker in job.run.workers:
                node = self.nodes[worker.node]
                held[node.gpu_type] = held.get(node.gpu_type, 0) + milli_of(worker, node)
            for gpu_type, milli in held.items():
                self._here[gpu_type] = self._here.get(gpu_type, 0) + milli
            self._places[job.name] = held

    def _book(self, name: str) -> None:
        """What a job has done since the last time was done where it stood. What it has lost is what it did last; one that fails loses all."""
        life, stretches = self.lives[name], self._stretches.setdefault(name, [])
        done = 0 if life.failed else min(life.work, life.progress.done_by(self.now))
        more = done - self._booked.get(name, 0)
        if more > 0:
            stretches.append((self._places.get(name, {}), more))
            self._credit(life, *stretches[-1])
        while more < 0:
            places, work = stretches.pop()
            gone = min(work, -more)
            self._credit(life, places, -gone)
            if gone < work:
                stretches.append((places, work - gone))
            more += gone
        self._booked[name] = done
        if name not in self.active:
            del self._stretches[name], self._booked[name]

    def _credit(self, life: Life, places: Mapping[str, int], work: int) -> None:
        held = sum(places.values())
        for gpu_type, milli in places.items():
            self._useful[gpu_type] = self._useful.get(gpu_type, 0) + work * life.least * milli // held

    def _rate(self, job: Job) -> tuple[int, int]:
        kind = self._kinds.get(id(job.kind))
        return super()._rate(job if kind is None else replace(job, kind=kind))

    def _plan(self) -> None:
        self._plans += 1
        if self._plans % CHECKED_EVERY == 0:
            self._on()
        super()._plan()


def measured(
    scenario: Scenario,
    point: Point,
    interval: Interval,
    on: Callable[[], None] = lambda: None,
    *,
    prices: Mapping[str, float] | None = None,
    step: int = 0,
) -> dict[str, Any]:
    """The state of a point that was played to its end, and its figures. `step`: how far apart plans are; 0: one whenever something happens."""
    played = scenario_of(scenario, point, interval)
    variant = POLICIES[point.policy][0](played)
    if isinstance(variant.policy, Rounds):
        variant.policy.prices = prices or {}
    works = works_drawn(played, point.seed)
    world = Measured(variant.scenario, interval, works=works, policy=variant.policy, kinds=variant.kinds, step=step, on=on)
    world.play(played.now + interval.until)
    figures = figures_of(world)
    if prices:
        figures["cost"] = round(sum(held * prices.get(name, 1.0) for name, held in world.held_by_type.items()) / 3_600_000_000, 2)
    if isinstance(variant.policy, Rounds):
        figures["fragmentation"] = None  # its plans say nothing of it
    shared = {"allocations": variant.policy.chain.told()} if isinstance(variant.policy, Rounds) else {}
    return {"state": "saturated" if _falls_behind(world, interval, figures["jobs"]) else "completed", "figures": figures, **shared}


def _falls_behind(world: Measured, interval: Interval, jobs: Mapping[str, int]) -> bool:
    """Whether jobs come faster than they are completed: some never start, though they had the time after the interval, or the queue keeps growing."""
    return jobs["never_started"] > NEVER_STARTED * jobs["submitted"] or saturated(_after(world.totals.queue, interval.warm_up))


def figures_of(world: Measured) -> dict[str, Any]:
    """Of the jobs that were submitted while it was measured, and of the GPUs meanwhile."""
    lives = [life for life in world.lives.values() if world.begin <= life.arrived < world.end]
    before, after = world.counts
    span = world.end - world.begin
    ended = [life for life in lives if life.ended is not None and not life.failed]
    # A job that still waits counts with its wait so far: it is never left out, and waits at least as long as the time after what is measured.
    waits = [((world.now if life.first_start is None else life.first_start) - life.arrived) / 1000 for life in lives]
    by_class: dict[str, list[float]] = {name: [] for name in CLASSES}
    for life, wait in zip(lives, waits, strict=True):
        by_class[CLASSES[life.job.kind.class_rank]].append(wait)
    plans = after.plans - before.plans
    useful = {name: after.useful_by_type.get(name, 0) - before.useful_by_type.get(name, 0) for name in world.by_type}
    return {
        "jobs": {
            "submitted": len(lives),
            "completed": len(ended),
            "failed": sum(life.failed for life in lives),
            "never_started": sum(life.first_start is None for life in lives),
            "waiting_at_end": sum(not job.run.workers for job in world.active.values()),
        },
        "allocation": _part(sum(world.held_by_type.values()), 1000 * world.capacity * span),
        "allocation_by_type": {name: _part(world.held_by_type.get(name, 0), milli * span) for name, milli in sorted(world.by_type.items())},
        "utilization": _part(after.useful - before.useful, 1000 * world.capacity * span),
        "utilization_by_type": {name: _part(useful[name], milli * span) for name, milli in sorted(world.by_type.items())},
        "fragmentation": _part(after.fragmented - before.fragmented, plans * world.capacity) if plans else None,
        "wait_s": spread(waits, PERCENTILES),
        "wait_s_by_class": {name: spread(found, PERCENTILES) for name, found in by_class.items()},
        "completion_s": spread([took_s(life) for life in ended], PERCENTILES),
        "finish_time_fairness": fairness_of(ended, world.template.now),
        "preemptions": after.preemptions - before.preemptions,
        "moves": after.moves - before.moves,
        "lost_work_gpu_s": (after.lost - before.lost) / 1_000_000,
    }


def _part(some: int, of: int) -> float:
    return round(some / max(1, of), 6)


def _after(queue: Sequence[tuple[int, int]], warm_up: int) -> list[tuple[int, int]]:
    """The course of the queue without the warm-up, in which every queue grows."""
    found, at = list[tuple[int, int]](), 0
    for span, waiting in queue:
        at += span
        if at > warm_up:
            found.append((min(span, at - warm_up), waiting))
    return found

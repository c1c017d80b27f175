"""A week of a fleet from a seed, for `gpufleet bench predictions`: what each job was told when it was submitted, and when it started.

Five teams share a fleet, each with a fifth guaranteed. They submit by day more than by night, four fifths of their jobs in sweeps; what a job takes
is its estimate times a lognormal factor, one in ten fails early, and each day a node is lost for some hours with all that runs on it. Jobs state
estimates and no limits, as a limit would be all that the scheduler goes by. The engine plans at every event as in production.

Two worlds: in `limited` a team can have a quarter more than its guarantee, so that most jobs wait behind those of their own team; in `open` it can
have all that nobody else uses, on a smaller and fuller fleet, so that others' arrivals decide when it starts.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import QUEUED, Job, Scenario
from scheduler.engine.state.state import Kept
from scheduler.scenarios.reading import parse
from scheduler.simulation.futures import Lasted, Stage, Waits, past_of, stated_length, waits_foreseen
from scheduler.simulation.progress import MILLION
from scheduler.simulation.world import World

TYPE = "H100-SXM-80GB"
DAYS, GPUS, TEAMS = 7, 8, 5
DAY_S = 86_400
SWEEPS, SWEEP = 0.8, (20, 80)  # part of all jobs that come in sweeps, and of how many
SHAPES = ((0.45, 1, 1), (0.2, 1, 2), (0.13, 1, 4), (0.14, 1, 8), (0.05, 2, 8), (0.03, 4, 8))
SWEPT = tuple(shape for shape in SHAPES if shape[1] == 1)  # what takes several nodes is submitted one by one
ALONE = (1 - SWEEPS) / ((1 - SWEEPS) + SWEEPS / (sum(SWEEP) / 2))  # part of the submissions that are of one job
SHORTEST_S, LONGEST_S = 1200, 6 * 3600
SPREAD, FAILS = 0.5, 0.1
GRACE_S = 300
MOST_LASTED = 2000  # run times that are learnt from
START = "2026-11-02T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Fleet:
    nodes: int
    load: float  # of the fleet, over the week
    limit: float | None  # of a team, in parts of its guarantee


WORLDS = {"limited": Fleet(16, 0.8, 1.25), "open": Fleet(16, 0.9, None)}


@dataclass(frozen=True, slots=True)
class Outage:
    node: str
    since: int  # seconds from the start
    seconds: int


@dataclass(frozen=True, slots=True)
class Told:
    """What was foreseen of a job that could not start at once when it was submitted, in milliseconds since the start, and what came of it."""

    job: str
    at: int
    waits: Waits
    started: int | None


def week(seed: int, fleet: Fleet, *, days: int = DAYS) -> tuple[Scenario, list[Outage]]:
    load, nodes = fleet.load, fleet.nodes
    guarantee = nodes * GPUS // TEAMS
    draw = random.Random(seed)
    jobs: list[dict[str, Any]] = []
    at = 0.0
    wanted = load * nodes * GPUS * days * DAY_S
    # An estimate's mean by its log-uniform draw, and what the lognormal factor and early failures make of it.
    mean = (LONGEST_S - SHORTEST_S) / math.log(LONGEST_S / SHORTEST_S) * math.exp(SPREAD**2 / 2) * (1 - FAILS / 2)
    each = ALONE * _mean_gpus(SHAPES) + (1 - ALONE) * sum(SWEEP) / 2 * _mean_gpus(SWEPT)
    times = wanted / (mean * each * days * DAY_S)
    while (at := at + draw.expovariate(2.2 * times)) < days * DAY_S:
        if draw.random() * 2.2 < _by_day(at):
            _submit(draw, jobs, round(at))
    asked = sum(job["work_s"] * role["min"] * role["gpus"] for job in jobs for role in job["roles"])
    for job in jobs:  # the load is as it was said, whatever was drawn
        job["estimate_s"], job["work_s"] = (max(1, round(job[key] * wanted / asked)) for key in ("estimate_s", "work_s"))
    names = [f"n{number:03d}" for number in range(nodes)]
    document = {
        "format": "gpufleet-scenario/1",
        "now": START,
        "settings": {"forecast": "none", "preempt_min_runtime_s": 300, "reclaim_min_runtime_s": 300},
        "topology": {"levels": ["leaf"]},
        "nodes": [{"name": name, "gpu_type": TYPE, "gpus": GPUS, "path": {"leaf": f"l{number // 8}"}} for number, name in enumerate(names)],
        "quotas": [
            {"name": f"t{team}", "guaranteed": guarantee} | ({} if fleet.limit is None else {"limit": round(fleet.limit * guarantee)})
            for team in range(TEAMS)
        ],
        "jobs": jobs,
    }
    outages = [Outage(draw.choice(names), int((day + draw.random()) * DAY_S), draw.randrange(1, 6) * 3600) for day in range(days)]
    return parse(document), outages


def _mean_gpus(shapes: Sequence[tuple[float, int, int]]) -> float:
    return sum(part * workers * gpus for part, workers, gpus in shapes) / sum(part for part, _, _ in shapes)


def _by_day(at: float) -> float:
    """How much is submitted at a time of the day, beside the mean."""
    hour = at % DAY_S / 3600
    return 0.4 + (1.8 * math.sin(math.pi * (hour - 7) / 13) if 7 < hour < 20 else 0)


def _submit(draw: random.Random, jobs: list[dict[str, Any]], at: int) -> None:
    count = 1 if draw.random() < ALONE else draw.randint(*SWEEP)
    shapes = SHAPES if count == 1 else SWEPT
    _, workers, gpus = draw.choices(shapes, [part for part, _, _ in shapes])[0]
    estimate = round(math.exp(draw.uniform(math.log(SHORTEST_S), math.log(LONGEST_S))))
    team = draw.randrange(TEAMS)
    for _ in range(count):
        work = estimate * draw.lognormvariate(0, SPREAD) * (draw.random() if draw.random() < FAILS else 1)
        jobs.append(
            {
                "name": f"j{len(jobs):06d}",
                "quota": f"t{team}",
                "submitted": at,
                "roles": [{"name": "worker", "min": workers, "gpus": gpus}],
                "estimate_s": estimate,
                "work_s": work,
                "checkpoint": {"interval_s": 1800, "save_s": 30, "restore_s": 60},
                "grace_s": GRACE_S,
            }
        )


class Watched(World):
    """The world, with nodes that are lost, and with what is foreseen of every job that has to wait when it comes."""

    def __init__(self, scenario: Scenario, outages: Sequence[Outage], seed: int) -> None:
        self.asked: set[str] = set()
        self.told: dict[str, tuple[int, Waits]] = {}  # by job: when, and what
        self.seed = seed
        self._plans = Kept()
        super().__init__(scenario, self._decide)
        for outage in outages:
            self._at(scenario.now + 1000 * outage.since, "lost", outage.node, 0)
            self._at(scenario.now + 1000 * (outage.since + outage.seconds), "back", outage.node, 0)

    def _decide(self, scenario: Scenario) -> Plan:
        plan = make_plan(scenario, self._plans)
        fresh = {job.name for job in scenario.jobs if job.name not in self.asked}
        if fresh:
            self.asked |= fresh
            waiting = fresh - {decision.job for decision in plan.decisions if decision.action == "start"}
            if waiting:
                stage = Stage(scenario, past_of(self._lasted(), self._submitted(), self._running()))
                for name, waits in sorted(waits_foreseen(stage, waiting, seed=self.seed + scenario.now).items()):
                    self.told[name] = (scenario.now, waits)
        return plan

    def _lasted(self) -> list[Lasted]:
        """Of those that have ended by now."""
        ended = [life for life in self.lives.values() if life.ended is not None]
        newest = sorted(ended, key=lambda life: (life.ended, life.job.name))[-MOST_LASTED:]
        return [(life.job.quota, stated_length(life.job), life.work // MILLION) for life in newest]

    def _running(self) -> list[Lasted]:
        """Of those that have run since their first start, how long by now."""
        runs = [(self.lives[job.name], job.run.started) for job in self.active.values() if job.run.workers and not job.run.evictions]
        return [(life.job.quota, stated_length(life.job), self.now - started) for life, started in runs if started is not None]

    def _submitted(self) -> list[Job]:
        """Who has come by now."""
        return [life.job for life in self.lives.values() if life.arrived <= self.now]

    def _happen(self, what: str, name: str, version: int) -> bool:
        if what not in ("lost", "back"):
            return super()._happen(what, name, version)
        self.nodes[name] = replace(self.nodes[name], health="down" if what == "lost" else "healthy")
        self._split = True  # nodes are other ones from now on
        for job in [job for job in self.active.values() if what == "lost" and any(worker.node == name for worker in job.run.workers)]:
            self._interrupt(job.name)
            life = self.lives[job.name]
            life.progress.rate = 0
            life.version += 1
            self._become(replace(job, run=replace(QUEUED, evictions=job.run.evictions)))
        return True

    def story(self) -> list[Told]:
        """In the order of submission."""
        begin = self.template.now
        found = []
        for name, (at, waits) in self.told.items():
            life = self.lives[name]
            found.append(Told(name, at - begin, waits, None if life.first_start is None else life.first_start - begin))
        return found


def played(seed: int, fleet: Fleet, *, days: int = DAYS) -> tuple[list[Told], dict[str, Any]]:
    scenario, outages = week(seed, fleet, days=days)
    world = Watched(scenario, outages, seed)
    world.run(scenario.now + days * DAY_S * 1000)
    handed_out = world.totals.held / (world.capacity * days * DAY_S * 1_000_000)
    world.run()
    lives = world.lives.values()
    waits = [(life.first_start or life.arrived) - life.arrived for life in lives]
    return world.story(), {
        "jobs": len(lives),
        "handed_out": round(handed_out, 3),
        "evictions": world.totals.preemptions,
        "started_at_once": sum(wait < 60_000 for wait in waits),
    }

"""`gpufleet bench engine`: how long the engine takes for the fleets it is meant for."""

import argparse
import gc
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from scheduler.benchmarks import cases
from scheduler.benchmarks.kernel import USUAL_MS, in_kernels, kernel_ms
from scheduler.benchmarks.peak import peak_mib
from scheduler.cli import spell, whole
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.values import Scenario
from scheduler.engine.state.state import Kept
from scheduler.engine.trial import Ground
from scheduler.scenarios.reading import load, parse
from scheduler.scenarios.spelling import spelt
from scheduler.simulation.applying import carried_out
from scheduler.simulation.world import World

Draw = Callable[[int], dict[str, Any]]
SETTLED = ("steady", "steady-refused", "capped", "churn", "wide", "lookahead", "lookahead-deep")  # planned to their fixed point first
DRAWS: dict[str, Draw] = {
    "steady": cases.steady,
    "steady-refused": cases.steady_refused,
    "capped": cases.capped,
    "churn": cases.steady,
    "fill": cases.fill,
    "reclaim-100": cases.reclaim(100),
    "reclaim-500": cases.reclaim(500),
    "reclaim-1000": cases.reclaim(1000),
    "reclaim-4000": cases.reclaim(4000),
    "explain": cases.explain,
    "wide": cases.wide,
    "lookahead": cases.lookahead,
    "lookahead-deep": cases.lookahead_deep,
    "mixed": cases.mixed,
}


WIDE, SMALL = 12_500, 1_562  # nodes between which the growth of the time is measured
ARRIVALS = 200  # of replicas: the slowest of 50 is no 99th of a hundred
ROUNDS = 5  # in which they arrive
TRIALS = 100
CASES = (*DRAWS, "replica", "trial", "simulate", "parse")


def settled(scenario: Scenario, rounds: int = 30) -> Scenario:
    """The same fleet after its plans were carried out until one changes nothing."""
    quiet = replace(scenario, settings=replace(scenario.settings, forecast="none"))
    for _ in range(rounds):
        plan = make_plan(quiet)
        if all(decision.action == "reserve" for decision in plan.decisions):
            break
        quiet = carried_out(quiet, plan)
    return replace(quiet, settings=scenario.settings)


def aged(scenario: Scenario, seed: int) -> Scenario:
    """What runs has been running for a while: at most half as long as it is allowed to."""
    chance = random.Random(seed)
    jobs = []
    for job in scenario.jobs:
        if job.run.workers:
            started = scenario.now - chance.randrange(1000, (job.limit_ms or 36_000_000) // 2)
            checkpoint = job.checkpoint and replace(job.checkpoint, last=started + (scenario.now - started) // 1_800_000 * 1_800_000)
            job = replace(job, run=replace(job.run, since=started, started=started, backfilled=False), checkpoint=checkpoint)
        jobs.append(job)
    return replace(scenario, jobs=tuple(jobs))


def thinned(scenario: Scenario, seed: int, part: float = 0.25) -> Scenario:
    """The same without a part of what runs."""
    chance = random.Random(seed)
    return replace(scenario, jobs=tuple(job for job in scenario.jobs if not job.run.workers or chance.random() >= part))


def typed(case: str, seed: int) -> Scenario:
    scenario = parse(DRAWS[case](seed))
    if case not in SETTLED:
        return scenario
    if case == "wide":
        return settled_wide(scenario, seed)
    scenario = filled(scenario, seed, scenario.settings.passes)
    return thinned(scenario, seed) if case == "churn" else scenario


def settled_wide(scenario: Scenario, seed: int) -> Scenario:
    """So wide a fleet is filled without evictions first; the others settle sooner when everyone may claim his share at once."""
    return filled(scenario, seed, ("allocate", "backfill"))


def filled(scenario: Scenario, seed: int, passes: tuple[str, ...]) -> Scenario:
    empty = replace(scenario, settings=replace(scenario.settings, forecast="none", passes=passes))
    started = carried_out(empty, make_plan(empty))
    return settled(replace(aged(started, seed), settings=scenario.settings))


def measure(action: Callable[[], Any], runs: int) -> dict[str, Any]:
    """Medians by the wall clock, the tail by processor time: a neighbour on the machine is not the engine's tail."""
    action()
    taken = Taken()
    with as_in_the_loop():
        for _ in range(runs):
            taken.time(action)
    return taken.spread()


@contextmanager
def as_in_the_loop() -> Iterator[None]:
    """The garbage collector as the loop's process has it: what has long been there is not looked through again, or each plan would begin
    with the processor's caches full of what the collector has just gone through."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class Taken:
    """What runs took, by the wall clock and by processor time, in seconds."""

    def __init__(self) -> None:
        self.walls: list[float] = []
        self.cpus: list[float] = []

    def time(self, action: Callable[[], Any]) -> None:
        gc.collect(0)
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        self.walls.append(time.perf_counter() - wall)
        self.cpus.append(time.process_time() - cpu)

    @classmethod
    def usual(cls, rounds: Sequence["Taken"]) -> "Taken":
        """What each run took in the median of several rounds."""
        taken = cls()
        taken.walls = [statistics.median(walls) for walls in zip(*(one.walls for one in rounds), strict=True)]
        taken.cpus = [statistics.median(cpus) for cpus in zip(*(one.cpus for one in rounds), strict=True)]
        return taken

    def spread(self) -> dict[str, Any]:
        tail = sorted(self.cpus)[min(len(self.cpus) - 1, int(len(self.cpus) * 0.99))]
        return {
            "median_ms": round(1000 * statistics.median(self.walls), 2),
            "cpu_ms": round(1000 * statistics.median(self.cpus), 2),
            "p99_ms": round(1000 * tail, 2),
            "runs": len(self.walls),
        }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench engine", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be given several times")
    parser.add_argument("--seed", type=whole(0), default=1, help="another scenario of the same shape")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--dump", type=Path, help="write each case's scenario into this folder")
    options = parser.parse_args(arguments)
    results = []
    for case in options.case or CASES:
        before = kernel_ms()
        figures = run_case(case, options.seed, options.runs, options.dump)
        after = kernel_ms()
        measured = [in_kernels(figure, before, after) for figure in figures]
        results.extend(measured)
        if not options.json:
            print("\n".join(told(result) for result in measured), flush=True)
    if options.json:
        print(json.dumps({"cases": results}))
    return 0


def told(result: dict[str, Any]) -> str:
    kernel = f"   kernel {result['kernel_ms']:6.2f} ms   at {USUAL_MS} ms a kernel {result['usual_ms']:10.2f} ms"
    line = f"{result['case']:16} {result['median_ms']:10.2f} ms {result['median_kernels']:9.3f} kernels"
    if result.get("events_per_s"):
        return f"{line} an event, {result['events_per_s']} events a second{kernel}"
    line += f"   processor {result['cpu_ms']:10.2f} ms {result['cpu_kernels']:9.3f} kernels"
    line += f"   p99 {result['p99_ms']:10.2f} ms {result['p99_kernels']:9.3f} kernels   {result['runs']} runs{kernel}"
    if "peak_mib" in result:
        line += f"   grows as n^{result['growth']}   holds {result['peak_mib']} MiB at most"
    return line


def run_case(case: str, seed: int, runs: int, dump: Path | None) -> list[dict[str, Any]]:
    if case == "parse":
        document = json.dumps(spelt(typed("steady", seed)))
        plan = make_plan(load(document))
        read = measure(lambda: load(document), runs)
        emitted = measure(lambda: spell(plan.as_json()), runs)
        return [{"case": "parse", **read, "megabytes": round(len(document) / 1e6, 2)}, {"case": "emit", **emitted}]
    if case == "simulate":
        return [simulate(seed)]
    if case == "replica":
        return [replica(seed, max(runs, ARRIVALS))]
    if case == "trial":
        return [trial(seed, max(runs, TRIALS))]
    scenario = typed(case, seed)
    if dump is not None:
        dump.mkdir(parents=True, exist_ok=True)
        (dump / f"{case}.json").write_text(json.dumps(spelt(scenario)))
    measured = {"case": case, **measure(lambda: make_plan(scenario), runs)}
    if case == "wide":
        measured |= {"growth": growth(measured["cpu_ms"], seed, runs), "peak_mib": peak_mib(scenario)}
    return [measured]


def growth(large_ms: float, seed: int, runs: int) -> float:
    """The power of the fleet's size with which the time grows, from an eighth of the wide fleet to all of it."""
    small = settled_wide(parse(cases.wide(seed, SMALL)), seed)
    small_ms = measure(lambda: make_plan(small), runs)["cpu_ms"]
    return round(math.log(large_ms / small_ms) / math.log(WIDE / SMALL), 3)


def simulate(seed: int) -> dict[str, Any]:
    """Events a second of a whole simulation, planned at every distinct event time."""
    scenario = parse(cases.simulated(seed))
    world = World(replace(scenario, settings=replace(scenario.settings, forecast="none")))
    with as_in_the_loop():
        wall = time.perf_counter()
        world.run()
        took = time.perf_counter() - wall
    events = world.totals.events
    return {
        "case": "simulate",
        "median_ms": round(1000 * took / events, 3),
        "p99_ms": None,
        "runs": 1,
        "events": events,
        "events_per_s": round(events / took),
    }


def replica(seed: int, arrivals: int) -> dict[str, Any]:
    """One inference replica after another arrives at the settled fleet; what one plan can hand to the next is kept.

    All of them several times, and of each arrival the median: what tells is the slowest arrival, not the machine's slowest moment.
    """
    scenario = typed("steady", seed)
    template = parse(cases.replicas(seed, arrivals)).jobs
    leaf = scenario.jobs[0].quota
    kept = Kept()
    make_plan(scenario, kept)
    rounds = [Taken() for _ in range(ROUNDS)]
    with as_in_the_loop():
        for taken in rounds:
            for job in template:
                arrived = replace(scenario, jobs=(*scenario.jobs, replace(job, quota=leaf, submitted=scenario.now)))
                taken.time(partial(make_plan, arrived, kept))
    return {"case": "replica", **Taken.usual(rounds).spread()}


def trial(seed: int, submitted: int) -> dict[str, Any]:
    """Jobs as those that wait are tried on the settled fleet one after the other, as the panel of the submission page does."""
    scenario = typed("steady-refused", seed)
    ground = Ground(scenario)
    waiting = [job for job in scenario.jobs if ground.waiting(job.name)]
    taken = Taken()
    with as_in_the_loop():
        for job in random.Random(seed).sample(waiting, submitted):
            taken.time(partial(ground.trial, replace(job, name=ground.name)))
    return {"case": "trial", **taken.spread()}

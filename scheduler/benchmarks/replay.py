"""`gpufleet bench simulate`: whole simulations, of a drawn fleet and of real traces, in events a second and in what part of the fleet they fill."""

import argparse
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from scheduler.benchmarks import cases as drawn
from scheduler.benchmarks import openb
from scheduler.benchmarks.engine import as_in_the_loop, simulate
from scheduler.benchmarks.kernel import kernel_ms
from scheduler.benchmarks.peak import KIB_PER_UNIT
from scheduler.cli import BAD_INPUT, whole
from scheduler.engine.model.values import PLACEMENTS, Scenario
from scheduler.scenarios.reading import parse
from scheduler.simulation.world import World
from scheduler.traces.rows import TraceFault

CASES = ("fleet", "huge", *openb.LISTS)
TENTHS = 10
HUGE_ARRIVALS = 60_000  # of a million jobs: by then the fleet is full, and as many end as come


@dataclass(frozen=True, slots=True)
class Curve:
    """What part of the GPUs is allocated when so much of them has been asked for, arrival by arrival, in milli-GPU."""

    capacity: int
    arrivals: tuple[tuple[int, int], ...]  # asked for so far, and allocated

    def at(self, percent: int) -> float | None:
        """In percent, on average over the arrivals at which what was asked for rounds to that; None where nothing does."""
        here = [allocated for asked, allocated in self.arrivals if (200 * asked + self.capacity) // (2 * self.capacity) == percent]
        return round(100 * sum(here) / len(here) / self.capacity, 2) if here else None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench simulate", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be given several times")
    parser.add_argument("--traces", type=Path, help="the folder with the lists of the openb trace, which is not part of gpufleet")
    parser.add_argument("--placement", action="append", choices=PLACEMENTS, help="of the traces; may be given several times")
    parser.add_argument("--seed", type=whole(0), action="append", help="the order of arrivals; may be given several times (default 42)")
    parser.add_argument("--arrivals", type=whole(0), help="only the first so many")
    options = parser.parse_args(arguments)
    cases = options.case or ["fleet", *(openb.LISTS if options.traces is not None else ())]
    if options.traces is None and any(case in openb.LISTS for case in cases):
        parser.error("--traces is required for openb and gpuspec33: the folder with the lists of the openb trace, which is not part of gpufleet")
    results = []
    for case in cases:
        for placement in (options.placement or ["pack"]) if case in openb.LISTS else [""]:
            for seed in options.seed or ([42] if case in openb.LISTS else [1]):
                try:
                    result = run_case(case, options.traces, seed, placement, options.arrivals)
                except TraceFault as fault:
                    parser.exit(BAD_INPUT, f"{fault}\n")
                results.append(result)
                if not options.json:
                    print(told(result), flush=True)
    if options.json:
        print(json.dumps({"cases": results}))
    return 0


def run_case(case: str, folder: Path, seed: int, placement: str, most: int | None) -> dict[str, Any]:
    if case == "fleet":
        return {**simulate(seed), "case": case, "seed": seed, "kernel_ms": kernel_ms()}
    if case == "huge":
        return {"case": case, "seed": seed, **huge(parse(drawn.huge(seed)), most or HUGE_ARRIVALS), "kernel_ms": kernel_ms()}
    scenario = parse(openb.replayed(folder, case, seed, placement=placement))
    return {"case": case, "placement": placement, "seed": seed, **played(scenario, most), "kernel_ms": kernel_ms()}


def played(scenario: Scenario, most: int | None = None) -> dict[str, Any]:
    """Every arrival of a trace in which nobody leaves."""
    submitted = sorted(job.submitted for job in scenario.jobs)[:most]
    world, walls = World(scenario), [0.0]
    ends = [submitted[len(submitted) * (place + 1) // TENTHS - 1] for place in range(TENTHS)] if submitted else []
    with as_in_the_loop():
        began = time.perf_counter()
        for end in ends:
            world.run(end)
            walls.append(time.perf_counter() - began)
    took, events = walls[-1], len(submitted)
    tenths = [round(events / TENTHS / (after - before)) for before, after in pairwise(walls)]
    curve = curve_of(world, events)
    return {
        "median_ms": round(1000 * took / max(1, events), 3),
        "p95_ms": None,
        "runs": 1,
        "arrivals": events,
        "started": sum(1 for life in world.lives.values() if life.first_start is not None),
        "events_per_s": round(events / took) if took else None,
        "events_per_s_by_tenth": tenths,
        "allocated_percent": {str(percent): curve.at(percent) for percent in (30, 80, 100, 130)},
    }


def huge(scenario: Scenario, most: int) -> dict[str, Any]:
    """The first of the jobs, while all are held. By processor time: it takes minutes, in which a machine does other things too."""
    submitted = [job.submitted for job in scenario.jobs[:most]]
    world = World(replace(scenario, settings=replace(scenario.settings, forecast="none")))
    seconds, events = [0.0], [0]
    with as_in_the_loop():
        began = time.process_time()
        for place in range(TENTHS):
            world.run(submitted[max(1, len(submitted) * (place + 1) // TENTHS) - 1])
            seconds.append(time.process_time() - began)
            events.append(world.totals.events)
    tenths = zip(pairwise(events), pairwise(seconds), strict=True)
    rates = [round((come - gone) / (end - begin)) if end > begin else 0 for (gone, come), (begin, end) in tenths]
    return {
        "median_ms": round(1000 * seconds[-1] / events[-1], 3),
        "p95_ms": None,
        "runs": 1,
        "jobs": len(scenario.jobs),
        "arrivals": len(submitted),
        "events": events[-1],
        "events_per_s": round(events[-1] / seconds[-1]),
        "events_per_s_by_tenth": rates,
        "running": sum(1 for job in world.active.values() if job.run.workers),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB_PER_UNIT / 1024),
    }


def curve_of(world: World, count: int) -> Curve:
    """Each job starts when it comes, or never: nobody leaves."""
    asked = allocated = 0
    arrivals = []
    for life in sorted(world.lives.values(), key=lambda life: life.arrived)[:count]:
        asked += life.least
        allocated += life.least if life.first_start is not None else 0
        arrivals.append((asked, allocated))
    return Curve(1000 * world.capacity, tuple(arrivals))


def told(result: dict[str, Any]) -> str:
    line = f"{result['case']:10} seed {result['seed']:3} {result.get('placement', ''):7}{result['events_per_s']:6} events a second"
    if "events_per_s_by_tenth" in result:
        line += f"   by tenth {' '.join(map(str, result['events_per_s_by_tenth']))}"
    if "peak_mib" in result:
        line += f" of processor   {result['arrivals']} of {result['jobs']} jobs came, {result['running']} run at the end"
        line += f"   {result['peak_mib']} MiB at most"
    if "allocated_percent" in result:
        shares = ", ".join(f"{share}% at {percent}%" for percent, share in result["allocated_percent"].items() if share is not None)
        line += f"   {result['started']} of {result['arrivals']} jobs started   allocated {shares or 'nothing yet'}"
    return f"{line}   kernel {result['kernel_ms']:.2f} ms"

"""`gpufleet plan`, `gpufleet simulate` and `gpufleet bench engine`: plain files in, plain text out, without Django."""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import orjson

from scheduler.engine.model.values import Scenario
from scheduler.scenarios.faults import ScenarioError
from scheduler.scenarios.reading import load

BAD_INPUT = 2


def plan(arguments: Sequence[str]) -> int:
    """Plan a scenario: what should change now, and why the rest waits."""
    parser = argparse.ArgumentParser(prog="gpufleet plan", description=plan.__doc__)
    parser.add_argument("scenario", nargs="?", default="-", help="a scenario file; - reads standard input")
    parser.add_argument("--explain", action="store_true", help="for people instead of programs")
    parser.add_argument("--jsonl", action="store_true", help="one scenario a line in, one plan a line out")
    options = parser.parse_args(arguments)
    if options.jsonl and options.explain:
        parser.error("--explain tells one plan to people; --jsonl writes many for programs")
    if options.jsonl:
        return _plan_lines(sys.stdin if options.scenario == "-" else _open(options.scenario), sys.stdout)
    document = read(options.scenario)
    if document is None:
        return BAD_INPUT
    gc.disable()  # one plan and out: a collection in the middle finds nothing and costs tens of milliseconds
    from scheduler.engine.cycle import make_plan

    try:
        result = make_plan(load(document))
    except ScenarioError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return BAD_INPUT
    if options.explain:
        from scheduler.presenters.explained import explain

        print(explain(result))
    else:
        print(spell(result.as_json()))
    return 0


def simulate(arguments: Sequence[str]) -> int:
    """Play a scenario forward in time and say what became of its jobs."""
    from scheduler.simulation.policies import POLICIES
    from scheduler.sweeps.command import price
    from scheduler.sweeps.policies import SHARED

    meanings = {name: meaning for name, (_, meaning) in POLICIES.items()} | SHARED
    parser = argparse.ArgumentParser(prog="gpufleet simulate", description=simulate.__doc__)
    parser.add_argument("scenario", nargs="?", default="-", help="a scenario file; - reads standard input")
    parser.add_argument("--until", metavar="LENGTH", help="stop after so long: 14d, 6h, 30m or seconds")
    parser.add_argument("--policy", default="tree", choices=sorted(meanings))
    parser.add_argument("--policies", action="store_true", help="list the policies and stop")
    parser.add_argument("--price", type=price, action="append", default=[], metavar="TYPE=RATE", help="a GPU hour of a type, for cost; else 1")
    parser.add_argument("--seed", type=whole(0), default=0, help="draws service times for jobs that state none")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--per-job", action="store_true", help="a row for every job as well")
    options = parser.parse_args(arguments)
    if options.policies:
        for name, meaning in sorted(meanings.items()):
            print(f"{name:17} {meaning}")
        return 0
    try:
        length = None if options.until is None else length_of(options.until)
    except ValueError:
        print(f"--until: {options.until!r} is not a length; write 14d, 6h, 30m or seconds", file=sys.stderr)
        return BAD_INPUT
    document = read(options.scenario)
    if document is None:
        return BAD_INPUT
    try:
        scenario = load(document)
    except ScenarioError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return BAD_INPUT
    prices = dict(options.price)
    if strange := sorted(prices.keys() - {node.gpu_type for node in scenario.nodes}):
        print(f"--price: the scenario has no GPU of the type {strange[0]}", file=sys.stderr)
        return BAD_INPUT
    result = _play(scenario, options.policy, options.seed, length, options.per_job, prices)
    print(spell(result) if options.json else _told(result))
    return 0


def _play(scenario: Scenario, policy: str, seed: int, length_ms: int | None, per_job: bool, prices: dict[str, float]) -> dict[str, Any]:
    from scheduler.simulation.policies import POLICIES
    from scheduler.simulation.result import summary
    from scheduler.simulation.workload import works_drawn
    from scheduler.simulation.world import World
    from scheduler.sweeps.policies import SHARED
    from scheduler.sweeps.sharing.rounds import BLIND, rounds_of

    shares = rounds_of(policy.removesuffix(BLIND), aware=not policy.endswith(BLIND), prices=prices) if policy in SHARED else None
    scenario = replace(scenario, settings=replace(scenario.settings, forecast="none"))
    world = World(scenario, shares or POLICIES[policy][0], works_drawn(scenario, seed))
    gc.freeze()  # all of it stays until the end: the collector need not go through it again and again, and seldom finds anything
    gc.set_threshold(200_000, 20, 20)
    began = time.perf_counter()
    world.run(None if length_ms is None else scenario.now + length_ms)
    told = summary(world, policy=policy, seed=seed, wall_s=time.perf_counter() - began, per_job=per_job)
    return told | ({"allocations": shares.chain.told()} if shares is not None else {})


def length_of(text: str) -> int:
    factor = {"d": 86_400, "h": 3600, "m": 60, "s": 1}.get(text[-1:], 0)
    number = float(text[:-1] if factor else text)
    if not 0 <= number < 1e9:
        raise ValueError(text)
    return round(number * (factor or 1) * 1000)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Reads an option that is a whole number within bounds."""

    def read_whole(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{text[:40]} is not a whole number from {least} {'on' if most is None else f'to {most}'}")
        return number

    return read_whole


def _told(result: dict[str, Any]) -> str:
    jobs, jct = result["jobs"], result["jct_s"]
    lines = [
        f"Policy {result['policy']}, seed {result['seed']}: {result['simulated_s']:.0f} s simulated in {result['wall_s']:.2f} s, "
        f"{result['events']} events",
        f"  {jobs['completed']} of {jobs['arrived']} jobs completed, {jobs['unfinished']} unfinished, {jobs['failed']} failed",
        "  completion time: no job completed"
        if jct["mean"] is None
        else f"  completion time: mean {jct['mean']} s, median {jct['p50']} s, 95% {jct['p95']} s, 99% {jct['p99']} s",
        f"  makespan {result['makespan_s']:.0f} s, utilization {result['utilization']:.1%}, allocation {result['allocation']:.1%}",
        f"  {result['preemptions']} preemptions, {result['moves']} moves, {result['lost_work_gpu_s']:.0f} GPU-seconds lost",
    ]
    if shares := result.get("allocations"):
        from scheduler.sweeps.telling import allocations_told

        failed = {f"{one['solver']}: {one['reason']}": one["times"] for one in shares["failed"]}
        lines.append(f"  allocations solved: {allocations_told(shares['solved'], failed)}")
    if result["saturated"]:
        lines.append("  The queue kept growing: the fleet is saturated, and times would grow with a longer run.")
    if "per_job" in result:
        lines.append("  seconds from the beginning: job, submitted, started, ended, evictions")
        lines.extend(f"  {' '.join('-' if value is None else f'{value}' for value in row.values())}" for row in result["per_job"])
    return "\n".join(lines)


def bench_engine(arguments: Sequence[str]) -> int:
    from scheduler.benchmarks.engine import main

    return main(arguments)


def bench_simulate(arguments: Sequence[str]) -> int:
    from scheduler.benchmarks.replay import main

    return main(arguments)


def spell(document: dict[str, Any]) -> str:
    """One plan as one line of JSON, the same bytes for the same plan."""
    return orjson.dumps(document).decode()


def _plan_lines(source: TextIO | None, out: TextIO) -> int:
    from scheduler.engine.cycle import make_plan

    if source is None:
        return BAD_INPUT
    status = 0
    for line in source:
        if not line.strip():
            continue
        try:
            out.write(spell(make_plan(load(line)).as_json()))
        except ScenarioError as error:
            status = BAD_INPUT
            faults = [{"path": fault.path, "message": fault.message} for fault in error.faults]
            out.write(spell({"format": "gpufleet-plan/1", "faults": faults}))
        out.write("\n")
        out.flush()
    return status


def _open(name: str) -> TextIO | None:
    try:
        return Path(name).open(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        print(f"{name}: {error.strerror}", file=sys.stderr)
        return None


def read(name: str) -> bytes | None:
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as error:
        print(f"{name}: {error.strerror}", file=sys.stderr)
        return None

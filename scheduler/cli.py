"""`gpufleet plan`, `gpufleet simulate`, `gpufleet trace` and `gpufleet bench engine`: plain files in, plain text out, without Django."""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from scheduler.engine.model.values import Scenario
from scheduler.engine.reading.faults import ScenarioError
from scheduler.engine.reading.scenario import load

if TYPE_CHECKING:
    from scheduler.traces.rows import Imported, Shape

BAD_INPUT = 2
TRACES = ("gavel", "helios", "openb", "philly")  # each a module of scheduler.traces
MOST_NODES = 100_000


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

    parser = argparse.ArgumentParser(prog="gpufleet simulate", description=simulate.__doc__)
    parser.add_argument("scenario", nargs="?", default="-", help="a scenario file; - reads standard input")
    parser.add_argument("--until", metavar="LENGTH", help="stop after so long: 14d, 6h, 30m or seconds")
    parser.add_argument("--policy", default="tree", choices=sorted(POLICIES))
    parser.add_argument("--policies", action="store_true", help="list the policies and stop")
    parser.add_argument("--seed", type=whole(0), default=0, help="draws service times for jobs that state none")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--per-job", action="store_true", help="a row for every job as well")
    options = parser.parse_args(arguments)
    if options.policies:
        for name, (_, meaning) in sorted(POLICIES.items()):
            print(f"{name:8} {meaning}")
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
    result = _play(scenario, options.policy, options.seed, length, options.per_job)
    print(spell(result) if options.json else _told(result))
    return 0


def trace(arguments: Sequence[str]) -> int:
    """Write a trace of another fleet, or with `own` this fleet's past, as a scenario to simulate.

    What cannot be played is counted on standard error; a row that cannot be read ends it with its file and line.
    """
    from scheduler.traces.rows import File, TraceFault

    parser = argparse.ArgumentParser(prog="gpufleet trace", description=trace.__doc__, epilog="gpufleet trace own --help: the fleet's own past.")
    parser.add_argument("kind", choices=TRACES, metavar="KIND", help=f"{', '.join(TRACES)}, or own")
    parser.add_argument("files", nargs="+", metavar="FILE", help="the files of the trace, in any order")
    parser.add_argument(
        "--nodes", action="append", type=_shape, default=[], metavar="COUNTxGPUS[:TYPE]", help="nodes of one size, as 6x4:v100; may be repeated"
    )
    parser.add_argument("--cpus", type=whole(1), metavar="N", help="CPUs of each node of --nodes (without it, CPUs are not scarce)")
    parser.add_argument("--limit", type=whole(1), metavar="N", help="only the first N jobs")
    parser.add_argument("--out", default="-", metavar="FILE", help="where to write the scenario (default -: standard output)")
    options = parser.parse_args(arguments)
    if options.cpus is not None and not options.nodes:
        parser.error("--cpus is of the nodes of --nodes")
    try:
        files = [File(name, _trace_text(name)) for name in options.files]
        shapes = [shape._replace(cpus=options.cpus) for shape in options.nodes]
        found: Imported = import_module(f"scheduler.traces.{options.kind}").imported(files, shapes)
        if not found.jobs:
            raise TraceFault("No row can be played." + "".join(f"\n  {count} left out: {why}" for why, count in found.left_out.most_common()))
    except TraceFault as fault:
        print(fault, file=sys.stderr)
        return BAD_INPUT
    return write_scenario(orjson.dumps(found.scenario(options.limit)), options.out, len(found.jobs), found.left_out.most_common())


def write_scenario(document: bytes, out: str, jobs: int | None, left_out: Sequence[tuple[str, int]]) -> int:
    """Only what `gpufleet simulate` reads is written. What it is, and what is left out of it, is said on standard error."""
    try:
        scenario = load(document)
    except ScenarioError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return BAD_INPUT
    if out == "-":
        sys.stdout.buffer.write(document + b"\n")
        sys.stdout.buffer.flush()
    else:
        try:
            Path(out).write_bytes(document + b"\n")
        except OSError as error:
            print(f"{out}: {error.strerror}", file=sys.stderr)
            return BAD_INPUT
    gpus, played = sum(node.gpus for node in scenario.nodes), len(scenario.jobs)
    head = f"{played} jobs" if jobs is None else f"{played} of {jobs} jobs"
    lines = [f"{head}, {len(scenario.quotas)} queues, {len(scenario.nodes)} nodes with {gpus} GPUs"]
    lines += [f"  {count} left out: {why}" for why, count in left_out]
    print("\n".join(lines), file=sys.stderr)
    return 0


def _trace_text(name: str) -> str:
    from scheduler.traces.rows import TraceFault

    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceFault(f"{name}: {error.strerror if isinstance(error, OSError) else 'is not UTF-8 text'}") from None


def _shape(text: str) -> "Shape":
    from scheduler.traces.rows import Shape

    size, _, gpu_type = text.partition(":")
    count, _, gpus = size.partition("x")
    if not (count.isdecimal() and gpus.isdecimal() and 0 < int(count) <= MOST_NODES and 0 < int(gpus) <= 64):
        raise argparse.ArgumentTypeError(f"{text} is not COUNTxGPUS[:TYPE] with at most {MOST_NODES} nodes of at most 64 GPUs, such as 6x4:v100")
    return Shape(int(count), int(gpus), gpu_type or None)


def _play(scenario: Scenario, policy: str, seed: int, length_ms: int | None, per_job: bool) -> dict[str, Any]:
    from scheduler.simulation.policies import POLICIES
    from scheduler.simulation.result import summary
    from scheduler.simulation.workload import works_drawn
    from scheduler.simulation.world import World

    scenario = replace(scenario, settings=replace(scenario.settings, forecast="none"))
    world = World(scenario, POLICIES[policy][0], works_drawn(scenario, seed))
    gc.freeze()  # all of it stays until the end: the collector need not go through it again and again, and seldom finds anything
    gc.set_threshold(200_000, 20, 20)
    began = time.perf_counter()
    world.run(None if length_ms is None else scenario.now + length_ms)
    return summary(world, policy=policy, seed=seed, wall_s=time.perf_counter() - began, per_job=per_job)


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

"""`gpufleet sweep`: a scenario played at several loads or fleet sizes, under several policies. Without Django."""

import argparse
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from scheduler.cli import BAD_INPUT, length_of, read, whole
from scheduler.engine.model.values import Scenario
from scheduler.scenarios.faults import ScenarioError
from scheduler.scenarios.reading import load

from .points import Axis, Interval, Point, SweepError, interval_of, points_of, round_ms
from .policies import BASELINES, POLICIES
from .running import Folder, folder_of, run, write_whole
from .telling import Row, costs_told, knee_of, knee_text, lacks_figures, rows_of, solvers_told, table

FAILED, STOPPED = 1, 130
OLDER = (
    "An earlier version played {} of {} points: fragmentation, queue times by class, finish-time fairness and utilization by GPU type are without"
    " them. --retry plays them again."
)
T = TypeVar("T")


def main(arguments: Sequence[str]) -> int:
    """Play a scenario at several loads or fleet sizes and find the knee."""
    options = _parser().parse_args(arguments)
    if options.list_policies:
        for name, (_, meaning) in POLICIES.items():
            print(f"{name:14} {meaning}")
        return 0
    document = read(options.scenario)
    if document is None:
        return BAD_INPUT
    axis: Axis = "nodes" if options.nodes else "load"
    try:
        scenario = load(document)
        if not scenario.nodes:
            raise SweepError("$.nodes: a sweep needs a node")
        round_ms(scenario)
        interval = interval_of(scenario, options.warm_up, options.until)
        prices = dict(options.price)
        if strange := sorted(prices.keys() - {node.gpu_type for node in scenario.nodes}):
            raise SweepError(f"--price: the scenario has no GPU of the type {strange[0]}")
        folder = folder_of(options.out or Path(_default_folder(options.scenario)), document, axis, interval, prices)
        points = points_of(list(dict.fromkeys([*options.policies, *BASELINES])), axis, options.nodes or options.load, options.seeds)
        return _sweep(folder, scenario, interval, points, options)
    except ScenarioError as error:
        print(*error.faults, sep="\n", file=sys.stderr)
    except SweepError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
    return BAD_INPUT


def _sweep(folder: Folder, scenario: Scenario, interval: Interval, points: list[Point], options: argparse.Namespace) -> int:
    known = {point: folder.read(point) for point in points}
    again = ("timed out", "failed") if options.retry else ()
    todo = [point for point, one in known.items() if one is None or one["state"] in again or (options.retry and lacks_figures(one))]
    for point in todo:
        folder.of(point).unlink(missing_ok=True)
    done = len(points) - len(todo)
    if done:
        print(f"{done} of {len(points)} points are in {folder.path} already.", file=sys.stderr)

    def told(point: Point) -> None:
        nonlocal done
        done += 1
        result = folder.read(point) or {}
        error = f": {result['error']}" if "error" in result else ""
        print(f"{done}/{len(points)} {point.name}: {result.get('state')}{error}", file=sys.stderr, flush=True)

    try:
        run(folder, scenario, interval, todo, workers=options.workers, limit_s=options.timeout, told=told)
    except KeyboardInterrupt:
        print(f"Stopped: {done} of {len(points)} points are in {folder.path}. The same command goes on.", file=sys.stderr)
        return STOPPED
    results = {point: folder.read(point) or {"state": "failed"} for point in points}
    types = sorted({node.gpu_type for node in scenario.nodes})
    rows, axis = rows_of(results, types), points[0].axis
    print(table(rows, axis, types))
    older = sum(map(lacks_figures, results.values()))
    notes = [OLDER.format(older, len(points))] if older else []
    print(*notes, sep="\n", end="\n" if notes else "", file=sys.stderr)
    print(f"\nMeasured from {interval.warm_up / 3_600_000:.1f} h to {interval.end / 3_600_000:.1f} h of {interval.until / 3_600_000:.1f} h.")
    found = knees(rows, axis)
    print("Knee:", *(f"  {line}" for line in found), sep="\n")
    if spent := costs_told(results):
        print("Cost of the GPUs that jobs held:", *(f"  {line}" for line in spent), sep="\n")
    if shared := solvers_told(results):
        print("Allocations solved:", *(f"  {line}" for line in shared), sep="\n")
    from .page import page  # plotly takes half a second to import

    title = "Standard input" if options.scenario == "-" else Path(options.scenario).name
    write_whole(folder.path / "sweep.html", page(title, rows, found, axis, types, interval, notes).encode())
    print(f"Charts: {folder.path / 'sweep.html'}", file=sys.stderr)
    return FAILED if any(result["state"] == "failed" for result in results.values()) else 0


def knees(rows: Sequence[Row], axis: Axis) -> list[str]:
    return [knee_text(name, knee_of([row for row in rows if row.policy == name], axis), axis) for name in dict.fromkeys(row.policy for row in rows)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpufleet sweep", description=main.__doc__)
    parser.add_argument("scenario", nargs="?", default="-", help="a scenario file; - reads standard input")
    axis = parser.add_mutually_exclusive_group(required=True)
    axis.add_argument("--load", type=_numbers(_load), metavar="LIST", help="factors on the arrival rate: 0.6,0.8,1.0,1.2")
    axis.add_argument("--nodes", type=_numbers(_nodes), metavar="LIST", help="numbers of nodes: 8,12,16")
    axis.add_argument("--list-policies", action="store_true", help="list the policies and stop")
    parser.add_argument("--policies", type=_list(_policy), default=["stated"], metavar="LIST", help="fifo and type-blind are always compared")
    parser.add_argument("--price", type=price, action="append", default=[], metavar="TYPE=RATE", help="a GPU hour of a type, for cost; else 1")
    parser.add_argument("--seeds", type=whole(1, 1000), default=3, metavar="N", help="draws of jobs for each point")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the results; a sweep that is in it goes on")
    parser.add_argument("--workers", type=whole(1, 1024), default=os.cpu_count() or 1, metavar="N", help="points played at a time")
    parser.add_argument("--timeout", type=_seconds, default=600.0, metavar="SECONDS", help="of one point")
    parser.add_argument("--warm-up", type=_span, metavar="LENGTH", help="left out at the beginning and the end: 6h, 30m or seconds")
    parser.add_argument("--until", type=_span, metavar="LENGTH", help="how long to simulate: 14d, 6h, 30m or seconds")
    parser.add_argument("--retry", action="store_true", help="play points again that timed out, failed or lack figures")
    return parser


def _default_folder(scenario: str) -> str:
    return "sweep" if scenario == "-" else f"{Path(scenario).stem}-sweep"


def _list(one: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Each once, as they are written."""
    return lambda text: list(dict.fromkeys(one(part.strip()) for part in text.split(",")))


def _numbers(one: Callable[[str], float]) -> Callable[[str], list[float]]:
    """Each once, the smaller first."""
    return lambda text: sorted(_list(one)(text))


def _load(text: str) -> float:
    number = _number(text)
    if not 0.01 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a load; from 0.01 to 100, 1 being the scenario's own arrival rate")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number


def _nodes(text: str) -> float:
    return float(whole(1, 100_000)(text))


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise argparse.ArgumentTypeError(f"there is no policy {text!r}; there are {', '.join(POLICIES)}")
    return text


def price(text: str) -> tuple[str, float]:
    name, _, rate = text.rpartition("=")
    number = _number(rate)
    if not name or number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price; write TYPE=2.48")
    return name, number


def _seconds(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a length above 0")
    return number


def _span(text: str) -> int:
    try:
        return length_of(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length; write 14d, 6h, 30m or seconds") from None

"""What a sweep says: its knees, its charts and its table."""

from collections.abc import Sequence
from typing import Any

from gpufleet.core.charts import Chart, Series, bars
from scheduler.models import Sweep
from scheduler.services.forecasts.sweeps import asked_of, results_of
from scheduler.sweeps.asking import knees_told
from scheduler.sweeps.page import page
from scheduler.sweeps.points import Interval
from scheduler.sweeps.telling import FLEET, HOUR_S, Column, Row, parts_of, rows_of

HEADS = {
    "wait_p50": "Median queue time",
    "wait_p95": "95th percentile",
    "completion": "Mean completion time",
    "fairness": "Finish-time fairness",
    "fairness_max": "Largest",
    "preemptions": "Preemptions",
    "fragmentation": "Fragmented",
    "utilization": "Utilization",
    "allocation": "Allocated",
}
# By the names of their addresses: the figure, what it is, its unit, and by what it is multiplied.
CHARTS = {
    "queue-time": ("wait_p95", "95th percentile of queue times", "hours", 1 / HOUR_S),
    "completion": ("completion", "Mean completion time", "hours", 1 / HOUR_S),
    "allocated": ("allocation", "Allocated share of GPUs", "%", 100.0),
    "utilization": ("utilization", "Utilization", "%", 100.0),
    "fragmented": ("fragmentation", "Fragmented share of GPUs", "%", 100.0),
    "fairness": ("fairness", "Mean finish-time fairness", "times", 1.0),
}


def rows_told(found: Sweep) -> list[Row]:
    return rows_of(results_of(found), found.terms.get("gpu_types", ()))


def failed_told(found: Sweep) -> str:
    """How many points failed, and the first fault."""
    faults = [result["error"] for result in results_of(found).values() if "error" in result]
    return f"{len(faults)} of {found.played} simulations failed. The first: {faults[0]}" if faults else ""


def knees(found: Sweep, rows: Sequence[Row]) -> list[str]:
    return knees_told(rows, asked_of(found))


def chart_of(name: str, found: Sweep, rows: Sequence[Row]) -> Chart:
    figure, title, unit, factor = CHARTS[name]
    asked = asked_of(found)
    values = {(row.policy, row.value): None if (spread := row.figures[figure]) is None else round(spread.mean * factor, 4) for row in rows}
    lines = [(policy, [values.get((policy, value)) for value in asked.values]) for policy in asked.policies]
    series = [Series(policy, line, f"series-{number}", "bar") for number, (policy, line) in enumerate(lines)]
    first = found.get_axis_display()
    label = f"{title} by {first.lower()}"
    return bars(label=label, unit=unit, first=first, names=[f"{value:g}" for value in asked.values], series=series, each_named=True)


def table_told(found: Sweep, rows: Sequence[Row]) -> dict[str, Any]:
    """Heads, and a line for each policy and value: those of the fleet, then of classes and GPU types."""
    columns: list[Column] = [*FLEET, *parts_of(rows, found.terms.get("gpu_types", ()))]
    lines = [(row.policy, f"{row.value:g}", row.state, [told(row.figures[name]) for _, name, told in columns]) for row in rows]
    return {"heads": [HEADS.get(name, head) for head, name, _ in columns], "lines": lines}


def file_of(found: Sweep) -> str:
    """The page of its charts, which needs no console."""
    asked, rows = asked_of(found), rows_told(found)
    interval = Interval(found.terms["warm_up"], found.terms["until"])
    notes = [f"Only {found.played} of {found.points} points were simulated."] if found.is_cut_off else []
    return page(found.trace_title, rows, knees_told(rows, asked), asked.axis, found.terms["gpu_types"], interval, notes)

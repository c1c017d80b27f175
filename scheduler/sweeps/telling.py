"""What a sweep says: one row for each policy and load, over its seeds, and where each policy has its knee."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler.engine.model.values import CLASSES

from .points import Axis, Point
from .running import STATES

HOUR_S = 3600.0
Results = Mapping[Point, Mapping[str, Any]]
Column = tuple[str, str, Callable[["Spread | None"], str]]  # its head, which figure, and how that is told


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, least and most over seeds."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Row:
    """A policy at one load. Figures are of the seeds that were played to the end, None where none was."""

    policy: str
    value: float
    states: tuple[tuple[str, int], ...]  # how many seeds ended so
    figures: Mapping[str, Spread | None]

    @property
    def is_complete(self) -> bool:
        return [state for state, _ in self.states] == ["completed"]

    @property
    def state(self) -> str:
        """The worst state, with how many seeds had it where not all did."""
        total = sum(count for _, count in self.states)
        state, count = self.states[-1]
        return state if count == total else f"{state} ({count} of {total})"


@dataclass(frozen=True, slots=True)
class Knee:
    value: float | None  # the last before the bend; None: none can be told
    is_reached: bool  # whether the next value is past the bend, or there is none
    unknown: str = ""  # why nothing can be said, where the easiest value has no queue time to compare with


FIGURES = {
    "allocation": ("allocation",),
    "utilization": ("utilization",),
    "fragmentation": ("fragmentation",),
    "wait_p50": ("wait_s", "p50"),
    "wait_p95": ("wait_s", "p95"),
    **{f"wait_p95:{name}": ("wait_s_by_class", name, "p95") for name in CLASSES},
    "completion": ("completion_s", "mean"),
    "fairness": ("finish_time_fairness", "mean"),
    "fairness_max": ("finish_time_fairness", "max"),
    "preemptions": ("preemptions",),
}
OF_TYPES = {"allocation": "allocation_by_type", "utilization": "utilization_by_type"}
# What points of a folder may lack: those that an earlier version played.
ADDED = ("fragmentation", "wait_s_by_class", "finish_time_fairness", "utilization_by_type")


def lacks_figures(result: Mapping[str, Any]) -> bool:
    return "figures" in result and not result["figures"].keys() >= {*ADDED}


def rows_of(results: Results, types: Sequence[str]) -> list[Row]:
    """In the order of the points: by policy, then by load."""
    paths = {**FIGURES, **{f"{what}:{name}": (key, name) for what, key in OF_TYPES.items() for name in types}}
    groups: dict[tuple[str, float], list[Mapping[str, Any]]] = {}
    for point, result in results.items():
        groups.setdefault((point.policy, point.value), []).append(result)
    policies = list(dict.fromkeys(policy for policy, _ in groups))
    found = []
    for (policy, value), of in sorted(groups.items(), key=lambda item: (policies.index(item[0][0]), item[0][1])):
        counts = tuple((state, count) for state in STATES if (count := sum(one["state"] == state for one in of)))
        figures = [one["figures"] for one in of if "figures" in one]
        found.append(Row(policy, value, counts, {name: _spread([_at(one, path) for one in figures]) for name, path in paths.items()}))
    return found


def _at(figures: Mapping[str, Any], path: Sequence[str]) -> float | None:
    found: Any = figures
    for key in path:
        found = None if found is None else found.get(key)
    return None if found is None else float(found)


def _spread(values: Sequence[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(sum(known) / len(known), min(known), max(known)) if known else None


def knee_of(rows: Sequence[Row], axis: Axis) -> Knee:
    """The rows of one policy. From the easiest value on (the lowest load, the largest fleet), the last at which every seed completes and the 95%
    queue time is at most twice that at the easiest value plus an hour."""
    eased = sorted(rows, key=lambda row: row.value if axis == "load" else -row.value)
    if not eased:
        return Knee(None, True)
    if why := _incomparable(eased[0], axis):
        return Knee(None, True, why)
    first = eased[0].figures["wait_p95"]
    if first is None:
        return Knee(None, True)
    last = None
    for row in eased:
        wait = row.figures["wait_p95"]
        if not row.is_complete or wait is None or wait.mean > 2 * first.mean + HOUR_S:
            return Knee(last, True)
        last = row.value
    return Knee(last, False)


def _incomparable(easiest: Row, axis: Axis) -> str:
    state, _ = easiest.states[-1]
    value = value_told(easiest.value, axis)
    if state in ("timed out", "failed"):
        return f"unknown: {value} {easiest.state}" + ("; use --retry with a longer --timeout" if state == "timed out" else "")
    if easiest.is_complete and easiest.figures["wait_p95"] is None:
        return f"no job was submitted in the measured interval at {value}; use a longer --until"
    return ""


def value_told(value: float, axis: Axis) -> str:
    return f"load {value:g}" if axis == "load" else f"{value:g} {'node' if value == 1 else 'nodes'}"


def knee_text(policy: str, knee: Knee, axis: Axis) -> str:
    lower, higher = ("lower", "higher") if axis == "load" else ("larger", "smaller")
    what = "load" if axis == "load" else "fleet size"
    if knee.unknown:
        return f"{policy}: {knee.unknown}"
    if knee.value is None:
        return f"{policy}: past the knee at every {what}; sweep {lower} ones"
    told = f"{knee.value:g}" if axis == "load" else f"{knee.value:g} nodes"
    return f"{policy}: {told}" if knee.is_reached else f"{policy}: not reached at {told}; sweep {higher} ones"


def classes_of(rows: Sequence[Row]) -> list[str]:
    """Classes with jobs, the most urgent first; none where all jobs are of one, whose queue time is that of all."""
    found = [name for name in reversed(CLASSES) if any(row.figures.get(f"wait_p95:{name}") is not None for row in rows)]
    return found if len(found) > 1 else []


def _hours(of: Spread | None) -> str:
    return "-" if of is None else f"{of.mean / HOUR_S:.2f} h"


def _percent(of: Spread | None) -> str:
    return "-" if of is None else f"{of.mean:.1%}"


def _ratio(of: Spread | None) -> str:
    return "-" if of is None else f"{of.mean:.2f}"


def _number(of: Spread | None) -> str:
    return "-" if of is None else f"{of.mean:.1f}".removesuffix(".0")


FLEET: list[Column] = [
    ("wait p50", "wait_p50", _hours),
    ("wait p95", "wait_p95", _hours),
    ("completion", "completion", _hours),
    ("fairness", "fairness", _ratio),
    ("fairness max", "fairness_max", _ratio),
    ("preemptions", "preemptions", _number),
    ("fragmentation", "fragmentation", _percent),
    ("utilization", "utilization", _percent),
    ("allocation", "allocation", _percent),
]


def parts_of(rows: Sequence[Row], types: Sequence[str]) -> list[Column]:
    """Figures of classes, and of GPU types."""
    return [
        *((f"wait p95 {name}", f"wait_p95:{name}", _hours) for name in classes_of(rows)),
        *((f"util {name}", f"utilization:{name}", _percent) for name in types),
        *((f"alloc {name}", f"allocation:{name}", _percent) for name in types),
    ]


def table_of(rows: Sequence[Row], axis: Axis, columns: Sequence[Column]) -> list[list[str]]:
    """The heads, then a line for each row, as texts."""
    lines = [[row.policy, f"{row.value:g}", row.state, *(told(row.figures[name]) for _, name, told in columns)] for row in rows]
    return [["policy", axis, "state", *(head for head, _, _ in columns)], *lines]


def table(rows: Sequence[Row], axis: Axis, types: Sequence[str]) -> str:
    """Figures of the fleet, then those of its parts: together they are wider than a terminal."""
    return "\n\n".join(_aligned(table_of(rows, axis, columns)) for columns in (FLEET, parts_of(rows, types)))


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    texts = (0, 2)  # flush left; numbers are flush right
    return "\n".join(
        "  ".join(cell.ljust(width) if place in texts else cell.rjust(width) for place, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def costs_told(results: Results) -> list[str]:
    """Of each policy and value, the mean over its seeds, where prices were given."""
    spent: dict[tuple[str, float], list[float]] = {}
    for point, result in results.items():
        if (money := result.get("figures", {}).get("cost")) is not None:
            spent.setdefault((point.policy, point.value), []).append(money)
    return [f"{policy} at {value:g}: {sum(money) / len(money):,.2f}" for (policy, value), money in sorted(spent.items())]


def solvers_told(results: Results) -> list[str]:
    """Of each policy of time shares: who solved how many of its programs, and why others did not."""
    solved: dict[str, Counter[str]] = {}
    failed: dict[str, Counter[str]] = {}
    for point, result in results.items():
        if (told := result.get("allocations")) is not None:
            solved.setdefault(point.policy, Counter()).update(told["solved"])
            by_reason = {f"{one['solver']}: {one['reason']}": one["times"] for one in told["failed"]}
            failed.setdefault(point.policy, Counter()).update(by_reason)
    return [f"{policy}: {allocations_told(solved[policy], failed[policy])}" for policy in solved]


def allocations_told(solved: Mapping[str, int], failed: Mapping[str, int]) -> str:
    """`600 by HiGHS simplex, 3 by closed form (HiGHS simplex: time limit reached, 3)`."""
    by = ", ".join(f"{count} by {name}" for name, count in sorted(solved.items())) or "none"
    why = "; ".join(f"{reason}, {count}" for reason, count in sorted(failed.items()))
    return f"{by} ({why})" if why else by

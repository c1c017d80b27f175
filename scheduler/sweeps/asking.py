"""What a sweep of the console plays: values in, faults by field out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.engine.model.values import Scenario

from .points import Axis, Interval, Point, SweepError, points_of, round_ms
from .policies import POLICIES
from .telling import Row, knee_of, knee_text, value_told

LEAST_LOAD, MOST_LOAD = 0.01, 100.0
MOST_NODES = 10_000
MOST_VALUES = 12
MOST_POLICIES = 6
MOST_SEEDS = 10
MOST_POINTS = 200
MOST_HOURS = 366 * 24
MOST_ARRIVALS = 500_000  # of jobs, at the highest arrival rate: each is held in memory
MINUTES = (1, 5, 15, 60)  # that one may take
USUAL_MINUTES = 5
USUAL_POLICIES = ("stated", "fifo")
USUAL_SEEDS = 3
# A policy that goes by money needs prices, which a trace does not have.
NONE_COUNTS = "no job came in the time that counts; enter more hours"
OFFERED: Mapping[str, str] = {name: meaning for name, (_, meaning) in POLICIES.items() if not name.startswith("cost")}

Faults = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Asked:
    axis: Axis
    values: tuple[float, ...]
    policies: tuple[str, ...] = USUAL_POLICIES
    seeds: int = USUAL_SEEDS
    hours: int | None = None  # that are played; None: as long as the jobs of the trace come
    minutes: int = USUAL_MINUTES
    exact: bool = False  # a plan whenever something happens

    @property
    def points(self) -> list[Point]:
        """Of each seed the easiest value first: what there is no time for is of the last seeds, and of those the hardest."""
        return points_of(self.policies, self.axis, sorted(self.values, reverse=self.axis == "nodes"), self.seeds)


def values_of(text: str) -> tuple[float, ...]:
    """`0.6, 0.8 1` as numbers, the smallest first. Raises SweepError at what is none."""
    found = set()
    for part in text.replace(",", " ").split():
        try:
            found.add(float(part))
        except ValueError:
            raise SweepError(f"{part[:20]} is not a number.") from None
    return tuple(sorted(found))


def asked_faults(asked: Asked) -> Faults:
    """By field: `values`, `policies`, `seeds`, `hours` and `minutes`."""
    faults: Faults = {}
    if fault := _values_fault(asked):
        faults["values"] = [fault]
    if unknown := [name for name in asked.policies if name not in OFFERED]:
        faults["policies"] = [f"There is no policy {unknown[0]}; there are {', '.join(OFFERED)}."]
    elif not 1 <= len(asked.policies) <= MOST_POLICIES:
        faults["policies"] = [f"Choose 1 to {MOST_POLICIES} policies."]
    if not 1 <= asked.seeds <= MOST_SEEDS:
        faults["seeds"] = [f"Enter 1 to {MOST_SEEDS} seeds."]
    if asked.hours is not None and not 1 <= asked.hours <= MOST_HOURS:
        faults["hours"] = [f"Enter 1 to {MOST_HOURS:,} hours, or leave this empty."]
    if asked.minutes not in MINUTES:
        faults["minutes"] = [f"Choose {', '.join(map(str, MINUTES[:-1]))} or {MINUTES[-1]} minutes."]
    if not faults and (count := len(asked.points)) > MOST_POINTS:
        faults["values"] = [f"These are {count:,} simulations; at most {MOST_POINTS} are made. Choose fewer values, policies or seeds."]
    return faults


def arrivals_fault(scenario: Scenario, asked: Asked, interval: Interval) -> str:
    highest = max(asked.values) if asked.axis == "load" else 1.0
    count = round(len(scenario.jobs) * highest * interval.until / round_ms(scenario))
    if count <= MOST_ARRIVALS:
        return ""
    return f"About {count:,} jobs would come; at most {MOST_ARRIVALS:,} are simulated. Enter fewer hours, or lower arrival rates."


def _values_fault(asked: Asked) -> str:
    if not 2 <= len(asked.values) <= MOST_VALUES:
        return f"Enter 2 to {MOST_VALUES} values."
    if asked.axis == "load":
        strange = next((one for one in asked.values if not LEAST_LOAD <= one <= MOST_LOAD), None)
        return "" if strange is None else f"{strange:g} is not an arrival rate from {LEAST_LOAD:g} to {MOST_LOAD:g}, 1 being that of the trace."
    strange = next((one for one in asked.values if not (1 <= one <= MOST_NODES and one == int(one))), None)
    return "" if strange is None else f"{strange:g} is not a number of nodes from 1 to {MOST_NODES:,}."


def knees_told(rows: Sequence[Row], asked: Asked) -> list[str]:
    """Of each policy, where its knee is. It cannot be told before the easiest value was played."""
    easiest = asked.points[0].value
    found = []
    for name in asked.policies:
        own = [row for row in rows if row.policy == name]
        knee = knee_of(own, asked.axis)
        if all(row.value != easiest for row in own):
            found.append(f"{name}: unknown: {value_told(easiest, asked.axis)} was not simulated")
        elif knee.unknown and own[0].is_complete:
            found.append(f"{name}: unknown: {NONE_COUNTS}")
        else:
            found.append(knee_text(name, knee, asked.axis))
    return found

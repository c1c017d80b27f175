"""Points of a sweep: one policy, one load or fleet size, one seed. A point and a scenario give the scenario that is played.

Arrivals keep the rhythm of the scenario: its submissions, one round after another, closer together the higher the load. The seed draws which of
its jobs comes at each of them. So at every load, and under every policy, a seed has the same jobs in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from scheduler.engine.model.values import QUEUED, Job, Node, Scenario
from scheduler.simulation.progress import drawn

Axis = Literal["load", "nodes"]


class SweepError(Exception):
    """The scenario cannot be swept. The message says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Point:
    policy: str
    axis: Axis
    value: float  # a factor on the arrival rate, or a number of nodes
    seed: int

    @property
    def name(self) -> str:
        return f"{self.policy}-{self.axis}-{self.value:g}-seed-{self.seed}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Lengths in milliseconds. Figures are of what lies between the warm-up and an equal time before the end."""

    warm_up: int
    until: int

    @property
    def end(self) -> int:
        return self.until - self.warm_up


def points_of(policies: Sequence[str], axis: Axis, values: Sequence[float], seeds: int) -> list[Point]:
    """Seed by seed, so that a sweep that is cut off has the whole range with fewer seeds."""
    return [Point(policy, axis, value, seed) for seed in range(seeds) for value in values for policy in policies]


def round_ms(scenario: Scenario) -> int:
    """How long one round of the scenario's submissions takes: up to the last of them, and one usual gap."""
    times = [job.submitted for job in scenario.jobs]
    if len(times) < 2 or times[0] == times[-1]:
        raise SweepError("$.jobs: a sweep needs an arrival rate: at least two jobs that are submitted at different times")
    return (times[-1] - times[0]) * len(times) // (len(times) - 1)


def interval_of(scenario: Scenario, warm_up: int | None, until: int | None) -> Interval:
    """As stated; else one round of submissions, with a quarter of it before and after what is measured."""
    until = round_ms(scenario) if until is None else until
    interval = Interval(until // 4 if warm_up is None else warm_up, until)
    if interval.end <= interval.warm_up:
        raise SweepError("--warm-up: nothing is left to measure; the warm-up and an equal time at the end must be shorter than --until")
    return interval


def scenario_of(scenario: Scenario, point: Point, interval: Interval) -> Scenario:
    """What is played at a point: an empty fleet, to which jobs come until the end."""
    load = point.value if point.axis == "load" else 1.0
    nodes = nodes_of(scenario.nodes, round(point.value)) if point.axis == "nodes" else scenario.nodes
    settings = replace(scenario.settings, forecast="none")
    return replace(scenario, settings=settings, nodes=nodes, jobs=arrivals(scenario, load, point.seed, interval.until))


def arrivals(scenario: Scenario, load: float, seed: int, until: int) -> tuple[Job, ...]:
    known, now, length = scenario.jobs, scenario.now, round_ms(scenario)
    found = list[Job]()
    while True:
        rounds, place = divmod(len(found), len(known))
        after = round((rounds * length + known[place].submitted - known[0].submitted) / load)
        if after > until:
            return tuple(found)
        found.append(_submitted(known[int(drawn("arrival", seed, len(found)) * len(known))], f"{len(found):08d}", now + after))


def _submitted(job: Job, name: str, at: int) -> Job:
    """The same job anew, with its own moments as far from its submission as they were."""
    later = at - job.submitted
    return replace(
        job,
        name=name,
        submitted=at,
        deadline=None if job.deadline is None else job.deadline + later,
        not_before=None if job.not_before is None else job.not_before + later,
        checkpoint=None if job.checkpoint is None else replace(job.checkpoint, last=None),
        run=QUEUED,
    )


def nodes_of(nodes: Sequence[Node], count: int) -> tuple[Node, ...]:
    """So many nodes, with the GPU types in the proportion of the fleet as nearly as may be.

    Beyond the fleet its nodes come again under other names.
    """
    by_type: dict[str, list[Node]] = {}
    for node in sorted(nodes, key=lambda one: one.name):
        by_type.setdefault(node.gpu_type, []).append(node)
    taken = dict.fromkeys(sorted(by_type), 0)
    found = list[Node]()
    for number in range(1, count + 1):
        # Whose share of so many nodes is least met. Products of whole numbers: no rounding decides.
        gpu_type = max(taken, key=lambda one: (number * len(by_type[one]) - taken[one] * len(nodes), one))
        again, place = divmod(taken[gpu_type], len(by_type[gpu_type]))
        taken[gpu_type] += 1
        node = by_type[gpu_type][place]
        found.append(replace(node, name=f"{node.name}+{again}", island=f"{node.island}+{again}") if again else node)
    return tuple(sorted(found, key=lambda node: (node.path, node.island, node.name)))

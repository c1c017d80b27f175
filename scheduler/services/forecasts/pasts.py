"""What a what-if plays again: the last days of the fleet, or a trace on its own fleet or on this one (UI-10).

Each is cut to as many hours as there is time for: of the days the last ones, of a trace the first ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from quotas.drafts import Tree
from scheduler.engine.model.values import Scenario
from scheduler.services.forecasts.came import Came, stretch_of
from scheduler.services.forecasts.sides import Side, overrun_of, sides
from scheduler.simulation.span import HOUR
from scheduler.snapshots.jobs import Kinds
from scheduler.snapshots.spelling import Speller
from scheduler.snapshots.taking import Snapshot
from scheduler.whatifs.traces import Fitted, coming, hours_of, places_of
from scheduler.whatifs.wanted import Wanted, nodes_changed, settings_changed


@dataclass(frozen=True, slots=True)
class Cut:
    """So many hours, what both sides of them read, and how long each of their jobs takes, in milliseconds."""

    hours: int
    begin: datetime
    works: Sequence[int]
    parts: Sequence[Side]


class Past(Protocol):
    def cut(self, hours: int) -> Cut | None:
        """At most so many hours. None: no job came in them."""


class Days:
    """The last days of this fleet."""

    def __init__(self, snapshot: Snapshot, after: Tree | None, wanted: Wanted, at: datetime) -> None:
        self._snapshot, self._after, self._wanted, self._at = snapshot, after, wanted, at
        self._kinds = Kinds(snapshot.fleet.topology)

    def cut(self, hours: int) -> Cut | None:
        found = stretch_of(self._kinds, self._snapshot.fleet.capacity_milli.keys(), self._at, hours)
        if found is None:
            return None
        parts = sides(self._snapshot, self._after, self._wanted, found.came, found.begin, self._at)
        return Cut(found.hours, found.begin, [one.work for one in found.came], parts)


class TraceThere:
    """A trace on its own fleet, in its own queues."""

    def __init__(self, scenario: Scenario, wanted: Wanted) -> None:
        begin = scenario.now + wanted.from_hour * HOUR
        self._scenario, self._wanted, self._hours = replace(scenario, now=begin), wanted, _hours(scenario, wanted)
        self._coming = coming(scenario, wanted.from_hour, self._hours)

    def cut(self, hours: int) -> Cut | None:
        hours, begin = min(hours, self._hours), self._scenario.now
        found = [one for one in self._coming if one.after < hours * HOUR]
        if not found:
            return None
        rows = [[place, begin + one.after, one.work, one.job.estimate_ms, one.job.limit_ms, one.job.quota] for place, one in enumerate(found)]
        jobs = tuple(one.job for one in found)
        parts = []
        for wanted in (Wanted(), self._wanted):
            settings = settings_changed(replace(self._scenario.settings, forecast="none"), wanted)
            nodes = nodes_changed(self._scenario.nodes, wanted)
            scenario = replace(self._scenario, settings=settings, nodes=nodes, windows=(), demand=(), jobs=jobs)
            lines = [Speller().spell(scenario), json.dumps(rows, separators=(",", ":")).encode(), b"[]", b"[]"]
            parts.append(Side(b"".join(line + b"\n" for line in lines), {quota.name: quota.name for quota in scenario.quotas}, overrun_of(scenario)))
        return Cut(hours, moment_of(begin), [one.work for one in found], parts)


class TraceHere:
    """A trace on this fleet, under this quota tree: its jobs ask for what this fleet has."""

    def __init__(self, scenario: Scenario, snapshot: Snapshot, after: Tree | None, wanted: Wanted, at: datetime) -> None:
        self._snapshot, self._after, self._wanted, self._at = snapshot, after, wanted, at
        self._begin, self._hours = moment_of(scenario.now + wanted.from_hour * HOUR), _hours(scenario, wanted)
        nodes = nodes_by_path(snapshot)
        places = places_of({job.quota for job in scenario.jobs}, nodes.keys(), wanted.queue)
        fitted = Fitted(snapshot.fleet.capacity_milli.keys(), snapshot.fleet.topology.all_levels)
        self._came = [
            Came(
                nodes[places[one.job.quota]],
                fitted.kind(one.job.kind),
                one.job.checkpoint,
                one.job.movable,
                one.after,
                one.work,
                one.job.estimate_ms,
                one.job.limit_ms,
                one.job.name,
            )
            for one in coming(scenario, wanted.from_hour, self._hours)
            if one.job.quota in places
        ]

    def cut(self, hours: int) -> Cut | None:
        hours = min(hours, self._hours)
        came = [one for one in self._came if one.submitted < hours * HOUR]
        if not came:
            return None
        parts = sides(self._snapshot, self._after, self._wanted, came, self._at, self._at, of_these_days=False)
        return Cut(hours, self._begin, [one.work for one in came], parts)


def moment_of(instant: int) -> datetime:
    return datetime.fromtimestamp(instant / 1000, UTC)


def nodes_by_path(snapshot: Snapshot) -> Mapping[str, int]:
    """Quota nodes that are not archived."""
    return {row[2]: row[0] for row in snapshot.tree.rows[0] if row[6] is None}


def _hours(scenario: Scenario, wanted: Wanted) -> int:
    left = max(1, hours_of(scenario) - wanted.from_hour)
    return min(left, wanted.first_hours or left)

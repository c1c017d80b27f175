"""What the two plays of a what-if read: the fleet, the tree and the settings of today as of a moment of the past, and as they would be."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from gpufleet.core.times import millis
from quotas.drafts import Tree
from scheduler.engine.model.values import Job as EngineJob
from scheduler.engine.model.values import Scenario
from scheduler.loop.policy import ruled
from scheduler.services.forecasts.came import Came
from scheduler.services.forecasts.previews import drafted_rows, past_as_of
from scheduler.simulation.calendar import Capped, Promised
from scheduler.snapshots.power import caps_of_span
from scheduler.snapshots.spelling import Speller
from scheduler.snapshots.taking import Snapshot
from scheduler.snapshots.tree import TreeView, archived_nodes, inner_nodes, policy_of, tree_view
from scheduler.snapshots.windows import windows_of_span
from scheduler.whatifs.wanted import (
    Wanted,
    capacity_of,
    nodes_changed,
    settings_changed,
)


@dataclass(frozen=True, slots=True)
class Side:
    """What one play reads, and the node of each of its quotas."""

    text: bytes
    nodes_of: Mapping[str, int | str]  # by key; of a trace in its own queues by name
    overrun: float = 1.0  # the factor on estimates that it plans by


def overrun_of(scenario: Scenario) -> float:
    return scenario.settings.overrun_millionths / 1_000_000


def sides(
    snapshot: Snapshot, after: Tree | None, wanted: Wanted, came: Sequence[Came], begin: datetime, now: datetime, *, of_these_days: bool = True
) -> list[Side]:
    """As it is and as it would be; `after` is the drafted tree.

    Jobs that are not `of_these_days` meet neither reservations nor past usage, and of power caps those that stand for good now.
    """
    found = []
    drafted = snapshot.tree.rows if after is None else drafted_rows(snapshot, after, now)
    for rows, changes in ((snapshot.tree.rows, Wanted(wanted.days)), (drafted, wanted)):
        scenario, tree, calendar, caps = begun(snapshot, rows, {one.quota_id for one in came}, begin, now, changes, of_these_days=of_these_days)
        text = scenario_text(scenario, came, tree.paths, calendar, caps)
        found.append(Side(text, {path: key for key, path in tree.paths.items()}, overrun_of(scenario)))
    return found


def begun(
    snapshot: Snapshot,
    rows: tuple[Any, ...],
    with_jobs: AbstractSet[int],
    begin: datetime,
    now: datetime,
    wanted: Wanted | None = None,
    *,
    of_these_days: bool = True,
) -> tuple[Scenario, TreeView, list[Promised], list[Capped]]:
    """The fleet of today as of a moment of the past, without jobs, under a tree of such rows; and the windows and power caps that it had since."""
    wanted = wanted or Wanted()
    settings = settings_changed(ruled(replace(snapshot.unruled, forecast="none"), policy_of(rows)), wanted)
    hardware = nodes_changed(snapshot.scenario.nodes, wanted)
    if wanted.changes_fleet:  # a guarantee without a number is of all GPUs of a type
        capacity = capacity_of(hardware)
        rows = (*rows[:2], tuple((gpu_type, capacity[gpu_type]) for gpu_type, _ in rows[2]))
    past = past_as_of(begin, settings) if of_these_days else None
    tree = tree_view(rows, inner_nodes(rows) & with_jobs, archived_nodes(rows) & with_jobs, past)
    named = {quota.name for quota in tree.quotas}
    calendar, caps, types = list[Promised](), list[Capped](), snapshot.fleet.capacity_milli.keys()
    power = snapshot.scenario.power
    power = replace(power, caps=tuple(cap for cap in power.caps if cap.start <= millis(now) and cap.end is None))
    if of_these_days:
        power, caps = caps_of_span(begin, now, types, horizon_ms=settings.window_horizon_ms)
        calendar = windows_of_span(
            begin,
            now + timedelta(milliseconds=settings.window_horizon_ms),
            paths={row[0]: row[2] for row in rows[0] if row[2] in named},
            types=types,
            levels=snapshot.fleet.topology.all_levels,
        )
    # What was split anew within the last hour was not by then.
    nodes = tuple(replace(node, repartitioned=()) if node.repartitioned else node for node in hardware)
    scenario = replace(snapshot.scenario, now=millis(begin), settings=settings, nodes=nodes, quotas=tree.quotas, windows=(), jobs=(), power=power)
    return scenario, tree, calendar, caps


def scenario_text(
    scenario: Scenario, came: Sequence[Came], paths: Mapping[int, str], calendar: Sequence[Promised], caps: Sequence[Capped] = ()
) -> bytes:
    """What a play reads: a scenario of specimens in one line, jobs that come in the next, then windows, and power caps in the last."""
    specimens: dict[tuple[int, int, bool], int] = {}
    jobs: list[EngineJob] = []
    rows: list[list[int | str | None]] = []
    for one in came:
        if one.quota_id not in paths:
            continue
        place = specimens.setdefault((id(one.kind), id(one.saving), one.movable), len(specimens))
        if place == len(jobs):
            jobs.append(
                EngineJob(
                    name=f"{place:09d}",
                    quota=paths[one.quota_id],
                    submitted=scenario.now,
                    kind=one.kind,
                    checkpoint=one.saving,
                    movable=one.movable,
                )
            )
        rows.append([place, scenario.now + one.submitted, one.work, one.estimate_ms, one.limit_ms, paths[one.quota_id]])
    lines = [
        Speller().spell(replace(scenario, jobs=tuple(jobs))),
        *(json.dumps(part, separators=(",", ":")).encode() for part in (rows, calendar, caps)),
    ]
    return b"".join(line + b"\n" for line in lines)

"""The fleet's own past as a scenario: what the last days brought, under the hardware and the quota tree of today."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

from gpufleet.core.times import millis
from scheduler.engine.model.values import Job as EngineJob
from scheduler.engine.model.values import PowerCap
from scheduler.loop.policy import policy
from scheduler.services.forecasts.came import jobs_came
from scheduler.services.forecasts.sides import begun
from scheduler.simulation.calendar import Capped, in_cap_order, in_order, parts
from scheduler.snapshots import Snapshots
from scheduler.snapshots.jobs import Kinds
from scheduler.snapshots.spelling import Speller


def history(*, length: timedelta, now: datetime, left_out: Counter[str]) -> bytes:
    """A scenario that begins so long ago; what is left out is counted by reason. It holds no commands, environments or secrets.

    Reservations are known from its beginning on. Those that keep their GPUs idle lend them: a scenario is of one moment and can't say so for later.
    So are power caps, each as long as it was set.
    """
    chosen, begin = policy(), now - length
    snapshot = Snapshots().take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout)
    came = jobs_came(Kinds(snapshot.fleet.topology), now, snapshot.fleet.capacity_milli.keys(), length=length, left_out=left_out)
    scenario, tree, calendar, caps = begun(snapshot, snapshot.tree.rows, {one.quota_id for one in came}, begin, now)
    jobs = tuple(
        EngineJob(
            name=one.name,
            quota=tree.paths[one.quota_id],
            kind=one.kind,
            submitted=millis(begin) + one.submitted,
            estimate_ms=one.estimate_ms,
            limit_ms=one.limit_ms,
            checkpoint=one.saving,
            movable=one.movable,
            work_ms=one.work,
        )
        for one in came
    )
    windows = in_order(part for one in calendar for part in parts(one, one.start - max(one.lead_ms, one.notice_ms) - 1))
    power = replace(scenario.power, caps=in_cap_order(cap for one in caps if (cap := _applied(one)) is not None))
    return Speller().spell(replace(scenario, jobs=jobs, windows=windows, power=power))


def _applied(one: Capped) -> PowerCap | None:
    """A cap as long as it was set; None: it was set at no time at which it applies."""
    start, ends = max(one.start, one.known), [end for end in (one.end, one.gone) if end is not None]
    end = min(ends, default=None)
    return None if end is not None and end <= start else PowerCap(one.pool, one.watts, start, end)

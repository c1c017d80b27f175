"""When each waiting job is expected to start, and what would help it: worked out beside the ticks, from the same snapshot and by the same engine."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from gpufleet.core.times import millis
from scheduler.engine.cycle import make_plan
from scheduler.loop.policy import policy
from scheduler.models import Lease as LeaseRow
from scheduler.models import Outlook
from scheduler.selectors.predictions import Recalled, foresight_now, past_recalled
from scheduler.services.forecasts.beside import GivenUp
from scheduler.services.forecasts.outlooks import Told, outlooks_write, told_by, told_left_out, told_undue
from scheduler.services.forecasts.predictions import Foreseen, predictions_close, predictions_keep, starts_foresee
from scheduler.services.forecasts.standing import share_step_keep, standing_keep
from scheduler.services.loop.lease import FORECAST, TICK, Fenced, Lease, lease_done, lease_release, lease_take
from scheduler.snapshots import Snapshots

EVERY = timedelta(seconds=10)
# Without a new plan predictions only move with the clock.
AT_LEAST_EVERY = timedelta(seconds=60)
# Futures of a large fleet take seconds of a processor, and in one process pages want it too.
REST = 3
AT_MOST_EVERY = timedelta(minutes=2)
TTL_SECONDS = 60.0
AT_ONCE = 250
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ForecastMemory:
    """What one process keeps from forecast to forecast to be sooner."""

    snapshots: Snapshots
    told: dict[int, Told]
    past: Recalled | None = None
    starts: dict[int, Foreseen] = field(default_factory=dict)

    @classmethod
    def empty(cls) -> "ForecastMemory":
        return cls(Snapshots(), {})


def forecast_run(
    *,
    holder: str,
    now: datetime,
    memory: ForecastMemory | None = None,
    force: bool = False,
    beside: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> int | None:
    """Tell waiting jobs what to expect, at most every ten seconds and for a quarter of the time, but every two minutes in any case.

    Returns how many were told something new; None: not now, or not ours.
    """
    memory = memory or ForecastMemory.empty()
    row = LeaseRow.objects.filter(name=FORECAST).first()
    if row is not None and not force and row.next_wake_at is not None and timedelta(0) < row.next_wake_at - now <= AT_MOST_EVERY:
        return None
    lease = lease_take(name=FORECAST, holder=holder, now=now, ttl=TTL_SECONDS)
    if lease is None:
        return None
    try:
        return _forecast(lease, now, memory, force=force, beside=beside, clock=clock)
    except (Fenced, GivenUp) as reason:
        log.warning("%s", reason)
        return None
    finally:
        lease_release(lease=lease, now=now)


def _forecast(lease: Lease, now: datetime, memory: ForecastMemory, *, force: bool, beside: bool, clock: Callable[[], float]) -> int:
    began, chosen = clock(), policy()
    planned = LeaseRow.objects.filter(name=TICK).values_list("done", flat=True).first() or 0
    stale = lease.next_wake_at is None or now - lease.next_wake_at >= AT_LEAST_EVERY
    if planned == lease.done and not stale and not force:
        return 0
    snapshot = memory.snapshots.take(settings=replace(chosen.engine, forecast="all"), now=now, start_timeout=chosen.start_timeout)
    plan = make_plan(snapshot.scenario, snapshot.kept)
    share_step_keep(standing_keep(snapshot.scenario, plan, snapshot.fleet.capacity_milli, now=now))
    waiting = snapshot.calendar.told(plan.waiting)
    told = told_by(waiting, snapshot) | told_left_out(snapshot) | told_undue(now=now)
    predictions_close()
    memory.past = past_recalled(memory.past, kinds=memory.snapshots.kinds, now=now)
    memory.starts = starts_foresee(
        waits={snapshot.jobs[one.job].id: max(0, one.predicted_start - millis(now)) for one in waiting if one.predicted_start is not None},
        known=memory.starts,
        snapshot=snapshot,
        past=memory.past.past,
        foresight=foresight_now(),
        now=now,
        beside=beside,
    )
    told |= {key: told[key]._replace(start=foreseen.start) for key, foreseen in memory.starts.items() if key in told}
    # A tick has told them since: what it wrote has no start.
    behind = set(Outlook.objects.exclude(forecast_at=F("at")).values_list("job_id", flat=True))
    news = {key: said for key, said in told.items() if key in behind or memory.told.get(key) != said}
    # A part at a time: thousands at once would keep the submissions and the ticks of SQLite waiting.
    keys = list(news)
    for first in range(0, len(keys), AT_ONCE):
        with transaction.atomic():
            part = {key: news[key] for key in keys[first : first + AT_ONCE]}
            outlooks_write(told=part, now=now, forecast=True)
            predictions_keep(foreseen={key: memory.starts[key] for key in part if key in memory.starts})
            lease.still_ours_or_raise()
    with transaction.atomic():
        lease_done(lease=replace(lease, wanted=planned), next_wake_at=now + _pace(clock() - began))
    if not memory.told:
        Outlook.objects.exclude(job__in=told).filter(at__lt=now - AT_LEAST_EVERY).delete()
    memory.told = told
    return len(news)


def _pace(took: float) -> timedelta:
    return min(max(EVERY, (1 + REST) * timedelta(seconds=took)), AT_MOST_EVERY)

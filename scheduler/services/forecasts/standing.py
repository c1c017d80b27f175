"""How each node of the quota tree stands, as the newest forecast saw it: that takes a plan of the fleet, and is kept for all processes."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.cache import cache

from quotas.lineup import above
from quotas.models import QuotaNode
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import Scenario
from scheduler.loop.policy import policy
from scheduler.models import ShareStep
from scheduler.snapshots import Snapshots

KEY = "quotas.standing"
# The forecast keeps it at least every two minutes while a scheduler runs; without one a page plans by itself, and what it found is kept as long.
KEPT = timedelta(minutes=3)
Figures = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class TreeStanding:
    """How each node stands, by path and GPU type: what it may count on, what waits for it, and its decayed usage in millionths of the fleet."""

    as_of: datetime
    fair: Figures
    waiting: Figures
    decayed: Figures


def tree_standing(now: datetime) -> TreeStanding:
    """The newest, at most three minutes old. A job that takes several types waits for the first."""
    known = standing_known(now)
    if known is not None:
        return known
    chosen = policy()
    snapshots = Snapshots()
    snapshot = snapshots.take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout)
    return standing_keep(snapshot.scenario, make_plan(snapshot.scenario, snapshots.kept), snapshot.fleet.capacity_milli, now=now)


def standing_known(now: datetime) -> TreeStanding | None:
    """The same for those who would not have the fleet planned for it."""
    known = cache.get(KEY)
    if known is None:
        return None
    as_of = datetime.fromisoformat(known["as_of"])
    if not timedelta(0) <= now - as_of < KEPT:
        return None
    return TreeStanding(as_of, *(_read(known[name]) for name in ("fair", "waiting", "decayed")))


def standing_keep(scenario: Scenario, plan: Plan, gpu_types: Iterable[str], *, now: datetime) -> TreeStanding:
    """What a plan says of it, for all who ask within the next minutes."""
    waiting: dict[tuple[str, str], int] = defaultdict(int)
    types = sorted(gpu_types)
    for job in scenario.jobs:
        for role in () if job.run.workers or job.run.leaving else job.kind.roles:
            gpu_type = next(iter(role.gpu_types or types), "")
            worker = role.devices * (role.share_milli or 1000) if role.parted else 1000 * role.gpus
            for path in above(job.quota):
                waiting[path, gpu_type] += role.least * worker
    fair = {(one.quota, one.quota_type): one.fair for one in plan.shares}
    decayed = {(quota.name, gpu_type): part for quota in scenario.quotas for gpu_type, part in quota.usage}
    found = TreeStanding(now, fair, dict(waiting), decayed)
    written = {"as_of": now.isoformat(), "fair": _written(fair), "waiting": _written(waiting), "decayed": _written(decayed)}
    cache.set(KEY, written, KEPT.total_seconds())
    return found


def share_step_keep(standing: TreeStanding) -> None:
    """The first of an hour is kept for the plot of fairness over time."""
    hour = standing.as_of.replace(minute=0, second=0, microsecond=0)
    if ShareStep.objects.filter(at=hour).exists():
        return
    ids = dict(QuotaNode.objects.filter(archived_at__isnull=True).values_list("path", "public_id"))
    fair: dict[str, dict[str, int]] = defaultdict(dict)
    for (path, gpu_type), milli in standing.fair.items():
        if milli and path in ids:
            fair[ids[path]][gpu_type] = milli
    ShareStep.objects.bulk_create([ShareStep(at=hour, fair=fair)], ignore_conflicts=True)


def _written(figures: Figures) -> list[list[Any]]:
    """As JSON has it, whichever cache it is."""
    return [[path, gpu_type, value] for (path, gpu_type), value in figures.items()]


def _read(rows: list[list[Any]]) -> Figures:
    return {(path, gpu_type): value for path, gpu_type, value in rows}

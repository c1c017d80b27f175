"""The load that running jobs of templates are to bring in the next hours, summed over the fleet, a cluster or a pool."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F, Sum, Window
from django.db.models.functions import RowNumber

from dashboards.fingerprints.contention import Sums, Usage, usage_of
from dashboards.fingerprints.forecast import Going, Step, load_ahead
from dashboards.fingerprints.learning import LEAST_MINUTES
from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.phases import Phase
from dashboards.fingerprints.store import WHOLE_MILLI, first_minute
from scheduler.models import Cluster, Placement, Pool

STEP = timedelta(minutes=5)
MOST_RUNS = 20
# Of a template whose runs do not say how long they load.
NO_LOAD = 0.0


@dataclass(frozen=True, slots=True)
class FleetAhead:
    """Steps of five minutes from `since`. `gpus`: whole GPUs of the running jobs that are in it; `others`: of those of which too little is known."""

    since: datetime
    steps: tuple[Step, ...]
    gpus: int
    others: int


def fleet_ahead(*, hours: int, now: datetime, cluster: Cluster | None = None, pool: Pool | None = None) -> FleetAhead:
    """Three queries, however many runs there are."""
    held: Any = Placement.objects.filter(until__isnull=True, gpu__isnull=False, mig__isnull=True, gpu_milli=WHOLE_MILLI)
    if cluster is not None:
        held = held.filter(node__cluster=cluster)
    if pool is not None:
        held = held.filter(node__pool=pool)
    gpus = {row["attempt_id"]: row["milli"] // WHOLE_MILLI for row in held.order_by().values("attempt_id").annotate(milli=Sum("gpu_milli"))}
    rows = list(RunLearned.objects.filter(attempt__among=sorted(gpus)).order_by("pk")) if gpus else []
    usages, loads = _known({row.template for row in rows}) if rows else ({}, {})
    runs, counted = [], 0
    for row in rows:
        usage = usages.get(row.template)
        if usage is not None and not row.is_weak:
            runs.append(_going(row, usage, gpus[row.attempt_id], loads.get(row.template, NO_LOAD), now))
            counted += gpus[row.attempt_id]
    steps = load_ahead(runs, step=STEP.total_seconds(), count=int(timedelta(hours=hours) / STEP))
    return FleetAhead(now, tuple(steps), counted, sum(gpus.values()) - counted)


def _known(templates: set[str]) -> tuple[dict[str, Usage], Mapping[str, float]]:
    """What the newest runs of each template use, and how long they load on average. Sums over the fleet tell of no single team."""
    newest = (
        RunLearned.objects.filter(template__in=templates, is_weak=False, read__gte=LEAST_MINUTES)
        .annotate(place=Window(RowNumber(), partition_by=F("template"), order_by=[F("since").desc(), F("pk").desc()]))
        .filter(place__lte=MOST_RUNS)
    )
    runs: dict[str, list[Sums]] = {}
    seconds, times = Counter[str](), Counter[str]()
    for template, sums in newest.values_list("template", "sums"):
        runs.setdefault(template, []).append(sums)
        if Phase.LOAD in sums:
            seconds[template] += sums[Phase.LOAD][0]
            times[template] += 1
    usages = {template: usage for template, sums in runs.items() if (usage := usage_of(sums)) is not None}
    return usages, {template: seconds[template] / times[template] for template in seconds}


def _going(row: RunLearned, usage: Usage, gpus: int, load: float, now: datetime) -> Going:
    """By its own period, as far as it has been looked at."""
    began = (row.since - now).total_seconds()
    working = [one for one in usage.phases if one.phase != Phase.LOAD]
    shares = sum(one.share for one in working) or 1.0
    level = sum(one.share * one.levels.get("sm", 0.0) for one in working) / shares
    loading = next((one.levels.get("sm", 0.0) for one in usage.phases if one.phase == Phase.LOAD), level)
    anchor = began + load
    base = (first_minute(row.since) - now).total_seconds()
    for phase, first, minutes, *_ in row.parts:
        if phase == Phase.CHECKPOINT:
            anchor = base + 60 * first + 30 * minutes
    return Going(gpus, began, load, loading, level, 60 * row.period if row.period else None, anchor)

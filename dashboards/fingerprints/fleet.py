"""The load that running jobs of templates are to bring in the next hours, summed over the fleet, a cluster, a pool or a part of the quota tree."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import stdev
from typing import Any, NamedTuple

from django.db.models import F, Q, Sum, Window
from django.db.models.functions import RowNumber

from dashboards.fingerprints.contention import Sums, Usage, usage_of
from dashboards.fingerprints.forecast import Going, Step, load_ahead
from dashboards.fingerprints.learning import LEAST_MINUTES
from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.phases import Phase
from dashboards.fingerprints.store import WHOLE_MILLI, first_minute
from quotas.models import QuotaNode
from scheduler.models import Cluster, Placement, Pool

STEP = timedelta(minutes=5)
MOST_RUNS = 20
# Of a template whose runs do not say how long they load.
NO_LOAD = 0.0


@dataclass(frozen=True, slots=True)
class FleetAhead:
    """Steps of five minutes from `since`. `jobs` and `gpus`: running jobs that are in it and their whole GPUs; `other_jobs` and `others`: those of
    which too little is known, and theirs.
    """

    since: datetime
    steps: tuple[Step, ...]
    jobs: int
    gpus: int
    other_jobs: int
    others: int


def fleet_ahead(
    *, hours: int, now: datetime, cluster: Cluster | None = None, pool: Pool | None = None, quota: QuotaNode | None = None, gpu_type: str = ""
) -> FleetAhead:
    """Of one cluster, pool, GPU type, or subtree of the quota tree alone. Three queries, however many runs there are."""
    held: Any = Placement.objects.filter(until__isnull=True, gpu__isnull=False, mig__isnull=True, gpu_milli=WHOLE_MILLI)
    if gpu_type:
        held = held.filter(gpu__gpu_type=gpu_type)
    if quota is not None:
        held = held.filter(Q(job__quota=quota) | Q(job__quota__path__startswith=f"{quota.path}/"))
    if cluster is not None:
        held = held.filter(node__cluster=cluster)
    if pool is not None:
        held = held.filter(node__pool=pool)
    gpus = {row["attempt_id"]: row["milli"] // WHOLE_MILLI for row in held.order_by().values("attempt_id").annotate(milli=Sum("gpu_milli"))}
    rows = list(RunLearned.objects.filter(attempt__among=sorted(gpus)).order_by("pk")) if gpus else []
    known = _known({row.template for row in rows}) if rows else {}
    runs, counted = [], 0
    for row in rows:
        template = known.get(row.template)
        if template is not None and not row.is_weak:
            runs.append(_going(row, template, gpus[row.attempt_id], now))
            counted += gpus[row.attempt_id]
    steps = load_ahead(runs, step=STEP.total_seconds(), count=int(timedelta(hours=hours) / STEP))
    return FleetAhead(now, tuple(steps), len(runs), counted, len(gpus) - len(runs), sum(gpus.values()) - counted)


class Known(NamedTuple):
    """What the newest runs of a template use, how long they load on average, and how far their SM activity differs once they work."""

    usage: Usage
    load: float
    spread: float


def _known(templates: set[str]) -> dict[str, Known]:
    """Sums over the fleet tell of no single team."""
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
    return {
        template: Known(usage, seconds[template] / times[template] if times[template] else NO_LOAD, _spread(sums))
        for template, sums in runs.items()
        if (usage := usage_of(sums)) is not None
    }


def _spread(runs: Sequence[Sums]) -> float:
    levels = []
    for run in runs:
        working = [(seconds or 0.0, sm) for phase, (seconds, sm, *_) in run.items() if phase not in (Phase.LOAD, Phase.UNKNOWN) and sm is not None]
        if whole := sum(seconds for seconds, _ in working):
            levels.append(sum(seconds * sm / 100 for seconds, sm in working) / whole)
    return stdev(levels) if len(levels) > 1 else 0.0


def _going(row: RunLearned, known: Known, gpus: int, now: datetime) -> Going:
    """By its own period, as far as it has been looked at."""
    began = (row.since - now).total_seconds()
    usage, load, spread = known
    working = [one for one in usage.phases if one.phase != Phase.LOAD]
    shares = sum(one.share for one in working) or 1.0
    level = sum(one.share * one.levels.get("sm", 0.0) for one in working) / shares
    loading = next((one.levels.get("sm", 0.0) for one in usage.phases if one.phase == Phase.LOAD), level)
    anchor = began + load
    base = (first_minute(row.since) - now).total_seconds()
    for phase, first, minutes, *_ in row.parts:
        if phase == Phase.CHECKPOINT:
            anchor = base + 60 * first + 30 * minutes
    return Going(gpus, began, load, loading, level, 60 * row.period if row.period else None, anchor, spread)

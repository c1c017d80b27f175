"""What the scheduler measures of itself, read from the database: the same whichever process is asked, and nothing is lost when one restarts."""

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from django.db.models import BooleanField, Count, ExpressionWrapper, OuterRef, Subquery

from scheduler.loop.measures import MEASURES, Counted, Timed
from scheduler.models import HOLDING, Attempt, Cluster, Job, JobClass, Measure, PlanRecord
from scheduler.selectors.jobs import WAITING
from scheduler.selectors.spreads import Spread, spread
from scheduler.snapshots.jobs import due_filter

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many took up to each bound, from the shortest; the last of them are all."""

    buckets: tuple[tuple[float, int], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Series:
    """One measure, with the values of its labels."""

    measure: Counted | Timed
    counts: dict[Labels, int]
    histograms: dict[Labels, Histogram]


def measured() -> list[Series]:
    """Every counter and histogram as it stands. Two queries."""
    parts: dict[str, dict[Labels, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    names = {str(key): name for key, name in Cluster.objects.values_list("pk", "name")}
    by_name = {measure.name: measure for measure in MEASURES}
    for name, spelt, part, value in Measure.objects.order_by("name", "labels").values_list("name", "labels", "part", "value"):
        measure = by_name.get(name)
        labels = tuple(json.loads(spelt))
        if measure is None or len(labels) != len(measure.labels):
            continue  # of another version of the program
        if "cluster" in measure.labels:
            place = measure.labels.index("cluster")
            if labels[place] not in names:
                continue
            labels = (*labels[:place], names[labels[place]], *labels[place + 1 :])
        parts[name][labels][part] = value
    found = []
    for measure in MEASURES:
        mine = parts[measure.name]
        if isinstance(measure, Counted):
            counts = {labels: sum(told.values()) for labels, told in mine.items()} or ({} if measure.labels else {(): 0})
            found.append(Series(measure, counts, {}))
        else:
            found.append(Series(measure, {}, {labels: _histogram(measure, told) for labels, told in mine.items()}))
    return found


def _histogram(measure: Timed, parts: dict[str, int]) -> Histogram:
    """What was counted under other bounds, by another version, counts from the next larger one on."""
    counted = [(float(part.replace("+Inf", "inf")), value) for part, value in parts.items() if part != "sum"]
    bounds = (*measure.bounds, float("inf"))
    buckets = tuple((bound, sum(value for upper, value in counted if upper <= bound)) for bound in bounds)
    return Histogram(buckets, parts.get("sum", 0) / 1_000_000)


def last_plan_at() -> datetime | None:
    return PlanRecord.objects.order_by("-at", "-id").values_list("at", flat=True).first()


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """One class: what waits now, and for how long those have waited since they last ran that the scheduler could start. Time in which a job
    ran is no wait: what was preempted a minute ago has waited for a minute."""

    job_class: str
    waiting: int
    asked_milli: int
    waited: Spread


def queue_figures(now: datetime) -> list[QueueFigures]:
    ran_until = Attempt.objects.filter(job=OuterRef("pk"), ended_at__isnull=False).order_by("-ended_at").values("ended_at")[:1]
    moments = "submitted_at", "not_before", "deferred_to", Subquery(ran_until)
    is_due = ExpressionWrapper(due_filter(now), output_field=BooleanField())
    asked, waited = defaultdict(list), defaultdict(list)
    rows = Job.objects.filter(state__in=WAITING).order_by().values_list("job_class", "gpus_milli", is_due, *moments)
    for job_class, milli, counts, *since in rows:
        asked[job_class].append(milli)
        if counts:
            waited[job_class].append((now - max(at for at in since if at is not None)).total_seconds())
    return [QueueFigures(name, len(asked[name]), sum(asked[name]), spread(waited[name])) for name in JobClass.values]


def jobs_by_state() -> dict[str, int]:
    live = Job.objects.filter(state__in=(*WAITING, *HOLDING)).order_by().values_list("state").annotate(Count("pk"))
    counted: dict[str, int] = dict(live)
    return {state: counted.get(state, 0) for state in (*WAITING, *HOLDING)}

"""Jobs that a cluster runs beside gpufleet's, for operators: what they hold, and how much they held."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q

from gpufleet.core.ranking import natural
from gpufleet.core.times import millis
from quotas.permissions import Access, Can
from scheduler.models import Cluster, OutsideJob, OutsideSeat

HOUR_MILLIS = 3_600_000


@dataclass(frozen=True, slots=True)
class OutsideRow:
    """A job that holds something now."""

    number: int
    name: str
    person: str
    partition: str
    since: datetime
    nodes: tuple[str, ...]
    gpus: int

    @property
    def milli(self) -> int:
        return 1000 * self.gpus


@dataclass(frozen=True, slots=True)
class OutsidePerson:
    """What the jobs of one person held in a span of time, in GPU-milliseconds: whole, so that sums are exact."""

    person: str
    jobs: int
    gpu_millis: int

    @property
    def gpu_hours(self) -> float:
        return self.gpu_millis / HOUR_MILLIS


def outside_jobs(access: Access, cluster: Cluster) -> list[OutsideRow]:
    """The longest first. Two queries."""
    access.must_everywhere(Can.OPERATE)
    rows = list(OutsideJob.objects.filter(cluster=cluster, until__isnull=True).order_by("since", "number"))
    nodes: dict[int, set[str]] = defaultdict(set)
    gpus: dict[int, int] = defaultdict(int)
    for job, node, gpu in OutsideSeat.objects.filter(job__in=rows).order_by().values_list("job_id", "node__name", "gpu_id"):
        nodes[job].add(node)
        gpus[job] += gpu is not None
    return [
        OutsideRow(row.number, row.name, row.person, row.partition, row.since, tuple(sorted(nodes[row.pk], key=natural)), gpus[row.pk])
        for row in rows
    ]


def outside_usage(access: Access, cluster: Cluster, *, start: datetime, end: datetime) -> list[OutsidePerson]:
    """What each person's jobs held between two moments, the most first: the part of the cluster that no quota is charged for. One query."""
    access.must_everywhere(Can.OPERATE)
    rows = (
        OutsideJob.objects.filter(cluster=cluster, since__lt=end)
        .filter(Q(until__isnull=True) | Q(until__gt=start))
        .annotate(gpus=Count("seats__gpu"))
        .order_by()
        .values_list("person", "number", "since", "until", "gpus")
    )
    sums: dict[str, int] = defaultdict(int)
    jobs: dict[str, set[int]] = defaultdict(set)
    for person, number, since, until, gpus in rows:
        sums[person] += gpus * (millis(min(until or end, end)) - millis(max(since, start)))
        jobs[person].add(number)
    found = [OutsidePerson(person, len(jobs[person]), total) for person, total in sums.items()]
    return sorted(found, key=lambda one: (-one.gpu_millis, one.person))

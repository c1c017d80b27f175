"""What limits submissions to a queue, and how much of that is used."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count

from gpufleet.core.prepared import Prepared
from quotas.models import QuotaNode
from quotas.permissions import at_or_below
from quotas.selectors.budgets import above_of
from scheduler.jobs.submission_rates import BURST_MINUTES, instant, room
from scheduler.models import WAITING, Job, SubmissionRate

BUSIEST = 5
STATED = Prepared(
    lambda paths: QuotaNode.objects.filter(path__among=paths).order_by("-depth").values_list("pk", "path", "submits_per_minute", "waiting_limit")
)

COUNTED: Prepared[int] = Prepared(
    lambda node: (
        Job.objects.filter(quota=node, state__in=WAITING).order_by().values("quota").annotate(jobs=Count("pk")).values_list("jobs", flat=True)
    )
)


@dataclass(frozen=True, slots=True)
class Limit:
    """So many jobs at most, at this node with all below it that states no limit of its own."""

    node: int
    path: str
    most: int
    is_stated: bool = True  # not: as the settings have it, for this queue alone


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a queue. None: nothing limits it."""

    rate: Limit | None
    waiting: Limit | None


def limits_of(queues: Mapping[int, str]) -> dict[int, Limits]:
    """By key, of queues that are given with their paths."""
    above = {path: above_of(path)[::-1] for path in queues.values()}
    rows = {path: (key, rate, waiting) for key, path, rate, waiting in STATED(sorted({step for way in above.values() for step in way}))}
    found = {}
    for queue, path in queues.items():
        way = [(step, *rows[step]) for step in above[path] if step in rows]
        rate = next((Limit(key, step, stated) for step, key, stated, _ in way if stated is not None), None)
        waiting = next((Limit(key, step, stated) for step, key, _, stated in way if stated is not None), None)
        waiting = waiting or Limit(queue, path, settings.WAITING_LIMIT, is_stated=False)
        found[queue] = Limits(rate if rate is not None and rate.most else None, waiting if waiting.most else None)
    return found


def waiting_under(limit: Limit) -> int:
    """How many jobs wait that the limit is about."""
    if not limit.is_stated:
        return COUNTED.first(limit.node) or 0
    waiting = Job.objects.filter(at_or_below(limit.path, "quota__path"), state__in=WAITING)
    below = QuotaNode.objects.filter(path__startswith=f"{limit.path}/", waiting_limit__isnull=False)
    for path in below.values_list("path", flat=True):
        waiting = waiting.exclude(at_or_below(path, "quota__path"))
    return waiting.count()


@dataclass(frozen=True, slots=True)
class Submitter:
    username: str
    name: str
    jobs: int


@dataclass(frozen=True, slots=True)
class SubmissionUse:
    """Of a node with all below it: its limits and what is used of them. None as a limit: there is none."""

    rate: Limit | None
    room: int  # how many jobs the rate lets pass at once now
    submitted: int  # in the last `BURST_MINUTES`
    waiting: int
    waiting_limit: Limit | None
    each_waiting: int  # limit of each queue where no node states one; 0: there is none
    busiest: tuple[Submitter, ...]


def submission_use(node: QuotaNode, *, now: datetime) -> SubmissionUse:
    limits, within = limits_of({node.pk: node.path})[node.pk], at_or_below(node.path, "quota__path")
    full_at_us = SubmissionRate.objects.filter(node=limits.rate.node).values_list("full_at_us", flat=True).first() if limits.rate else None
    stated = limits.waiting if limits.waiting is not None and limits.waiting.is_stated else None
    recent = Job.objects.filter(within, submitted_at__gt=now - timedelta(minutes=BURST_MINUTES), submitted_at__lte=now).order_by()
    counted = recent.values_list("owner__username", "owner__display_name").annotate(jobs=Count("pk")).order_by("-jobs", "owner__username")
    people = list(counted)
    return SubmissionUse(
        rate=limits.rate,
        room=room(full_at_us or 0, limits.rate.most, instant(now)) if limits.rate else 0,
        submitted=sum(jobs for *_, jobs in people),
        waiting=Job.objects.filter(within, state__in=WAITING).count(),
        waiting_limit=stated,
        each_waiting=limits.waiting.most if limits.waiting is not None and stated is None else 0,
        busiest=tuple(Submitter(username, name or username, jobs) for username, name, jobs in people[:BUSIEST] if username is not None),
    )

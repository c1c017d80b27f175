"""Services that would break their level beside jobs of a template, by what both were seen to use: told to the scheduler, which keeps them apart.

The prediction is the latency of the service times the factor by which the template slows it down (`contention`). A factor of nothing keeps nobody
apart: a service that is over its objective by itself is not the fault of neighbours.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Avg

from dashboards.fingerprints.contention import Usage, beside
from dashboards.fingerprints.neighbours import usages_of
from dashboards.slo.models import ServiceLevel, ServiceSample
from gpufleet.core.audit import SYSTEM
from gpufleet.core.progress import turn_take
from quotas.permissions import Access, Can, Grant
from scheduler.models import ENDED, Job, JobClass, JobState
from scheduler.services.loop.neighbours import apart_learn

TURN = "neighbours"
PACE = timedelta(minutes=10)
# The latency of a service is the mean of so long: one bad minute beside somebody is no reason to keep them apart for ever.
LATENCY_OF = timedelta(hours=6)
# Bounds of one round, the newest first.
MOST_SERVICES, MOST_TEMPLATES, MOST_PAIRS = 300, 300, 2000
# A factor that is no more than rounding.
LEAST_FACTOR = 1.01
EVERYONE = Access(SYSTEM, (Grant("", frozenset({Can.SEE})),))


@dataclass(frozen=True, slots=True)
class Service:
    job: str  # public id
    template: str
    figure: str
    latency_ms: float
    allowed_ms: int


def neighbours_turn(*, now: datetime) -> bool | None:
    """One round. None: another process just did it. Returns whether other pairs than before are kept apart."""
    with transaction.atomic():
        if turn_take(name=TURN, now=now, at_least=PACE) is None:
            return None
    return neighbours_round(now=now)


def neighbours_round(*, now: datetime) -> bool:
    """Five queries, however many services and templates there are."""
    services = _services(now)
    others = _templates() if services else []
    usages = usages_of(EVERYONE, sorted({one.template for one in services} | {*others}), now=now) if services else {}
    return apart_learn(pairs=pairs_of(services, {key: usages[key] for key in others if key in usages}, usages), now=now)


def pairs_of(services: Iterable[Service], others: Mapping[str, Usage], own: Mapping[str, Usage]) -> list[dict[str, Any]]:
    """Which of these services may not be beside jobs of which templates, and what is predicted there."""
    found = []
    for one in services:
        usage = own.get(one.template)
        if usage is None:
            continue
        for template, other in sorted(others.items()):
            slower = beside(usage, other)
            for where, factor in (("node", slower.node), ("gpu", slower.gpu)):
                predicted = one.latency_ms * factor
                if factor >= LEAST_FACTOR and predicted > one.allowed_ms:
                    told = {"figure": one.figure, "predicted_ms": round(predicted), "allowed_ms": one.allowed_ms}
                    found.append({"service": one.job, "template": template, "where": where} | told)
                    break  # off the whole node is off its GPUs
    return found[:MOST_PAIRS]


def _services(now: datetime) -> list[Service]:
    """Those with a template, an objective and a latency that was read lately."""
    levels = (
        ServiceLevel.objects.exclude(job__state__in=[*ENDED, JobState.DRAFT])
        .filter(job__job_class=JobClass.INFERENCE, job__template__isnull=False)
        .order_by("-job_id")
        .values_list("job_id", "job__public_id", "job__template", "title", "objective_ms")[:MOST_SERVICES]
    )
    rows = list(levels)
    read = (
        ServiceSample.objects.filter(job__in=[row[0] for row in rows], at__gt=now - LATENCY_OF)
        .values("job_id")
        .annotate(mean=Avg("latency_ms"))
        .values_list("job_id", "mean")
    )
    latency: dict[int, float | None] = defaultdict(lambda: None, dict(read) if rows else {})
    return [
        Service(name, template, title, mean, allowed)
        for key, name, template, title, allowed in rows
        if template is not None and (mean := latency[key]) is not None
    ]


def _templates() -> list[str]:
    """Of the other work that waits or runs."""
    rows = Job.objects.exclude(state__in=[*ENDED, JobState.DRAFT]).exclude(job_class=JobClass.INFERENCE).filter(template__isnull=False)
    return [key for key in rows.order_by("template").values_list("template", flat=True).distinct()[:MOST_TEMPLATES] if key is not None]

"""Pairs of jobs that may not be neighbours as the engine knows them: its `apart`, and of which tenant each job is.

Jobs of a template are one tenant. A job that gave way for a service is one of its own, with the pairs of its template and those of its own.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Q

from gpufleet.core.prepared import Prepared
from scheduler.engine.model.values import Apart
from scheduler.models import ENDED, Job, JobClass, KeptApart, Relieved

PAIRS: Prepared[tuple[list[dict[str, Any]]]] = Prepared(lambda: KeptApart.objects.values_list("pairs"))
JOBS: Prepared[tuple[Any, ...]] = Prepared(
    lambda services, templates: (
        Job.objects.exclude(state__in=ENDED)
        .filter(Q(public_id__among=services) | Q(template__among=templates))
        .order_by("id")
        .values_list("id", "public_id", "job_class", "template")
    )
)
# Jobs that gave way for services, and stay away.
AWAY: Prepared[tuple[int, str, int, str, str | None, float, int]] = Prepared(
    lambda at: (
        Relieved.objects.filter(Q(until__isnull=True) | Q(until__gt=at))
        .exclude(service__state__in=ENDED)
        .exclude(job__state__in=ENDED)
        .order_by("id")
        .values_list("service_id", "service__public_id", "job_id", "job__public_id", "job__template", "latency_ms", "objective_ms")
    )
)


class Neighbours(NamedTuple):
    apart: tuple[Apart, ...] = ()
    tenants: Mapping[int, str] = {}  # by job; of most none


def neighbours_now(*, learned: bool = True, away_at: datetime | None = None) -> Neighbours:
    """In three queries at most: `learned` are the pairs that are predicted, and `away_at` is given where those who gave way stay away."""
    pairs = next((rows for (rows,) in PAIRS()), []) if learned else []
    away = list(AWAY(away_at)) if away_at is not None else []
    if not pairs and not away:
        return Neighbours()
    apart = [Apart(*(pair[name] for name in ("service", "template", "where", "figure", "predicted_ms", "allowed_ms"))) for pair in pairs]
    services, templates = {one.service for one in apart}, {one.other for one in apart}
    tenants = {}
    for key, name, job_class, template in JOBS(sorted(services), sorted(templates)) if pairs else ():
        if job_class != JobClass.INFERENCE:
            tenants[key] = template
        elif name in services:
            tenants[key] = name
    of_template = {template: [pair for pair in apart if pair.other == template] for template in templates}
    for _, _, _, name, template, *_ in away:
        apart += [pair._replace(other=name) for pair in of_template.get(template or "", ())]
    by_key = {pair[:3]: pair for pair in apart}
    for service, service_name, job, name, _, latency, allowed in away:
        tenants |= {service: service_name, job: name}
        by_key[service_name, name, "node"] = Apart(service_name, name, "node", "latency", round(latency), allowed, measured=True)
    return Neighbours(tuple(sorted(by_key.values())), {key: tenant for key, tenant in tenants.items() if tenant})

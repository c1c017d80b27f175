"""Pairs of jobs that may not be neighbours as the engine knows them: its `apart`, and of which tenant each job is."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.db.models import Q

from gpufleet.core.prepared import Prepared
from scheduler.engine.model.values import Apart
from scheduler.models import ENDED, Job, JobClass, KeptApart

PAIRS: Prepared[tuple[list[dict[str, Any]]]] = Prepared(lambda: KeptApart.objects.values_list("pairs"))
JOBS: Prepared[tuple[Any, ...]] = Prepared(
    lambda services, templates: (
        Job.objects.exclude(state__in=ENDED)
        .filter(Q(public_id__among=services) | Q(template__among=templates))
        .order_by("id")
        .values_list("id", "public_id", "job_class", "template")
    )
)


class Neighbours(NamedTuple):
    apart: tuple[Apart, ...] = ()
    tenants: Mapping[int, str] = {}  # by job; of most none


def neighbours_now() -> Neighbours:
    """Two queries at most: one where nothing was learnt."""
    pairs = next((rows for (rows,) in PAIRS()), [])
    if not pairs:
        return Neighbours()
    apart = tuple(sorted(Apart(*(pair[name] for name in ("service", "template", "where", "figure", "predicted_ms", "allowed_ms"))) for pair in pairs))
    services, templates = {one.service for one in apart}, {one.other for one in apart}
    tenants = {}
    for key, name, job_class, template in JOBS(sorted(services), sorted(templates)):
        if job_class != JobClass.INFERENCE:
            tenants[key] = template
        elif name in services:
            tenants[key] = name
    return Neighbours(apart, {key: tenant for key, tenant in tenants.items() if tenant})

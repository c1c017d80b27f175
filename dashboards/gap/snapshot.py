"""The fleet as it is at one moment, read for the gap."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
from django.db.models import Sum

from dashboards.gap.causes import AWAY, BROKEN, UP, Ask, Device, Hold, Part, Piece, Reserved, Role, pieces, summed
from dashboards.models import NO_READING
from dashboards.selectors import WAITING, frames_newest
from gpufleet.core.moment import one_moment
from quotas.models import Phase, QuotaShare
from quotas.models.windows import Idle
from quotas.selectors.windows import lasting_at
from scheduler.jobs.stored import least_of, roles_of
from scheduler.models import IN_SERVICE, Gpu, Health, Job, Placement, PromisedSeat
from scheduler.selectors.holders import outside_seats
from scheduler.services.loop.usage import phase_of
from scheduler.snapshots.fleet import domains_of_nodes

BROKEN_STATES = (Health.DOWN, Health.REPAIRING)
# Further jobs of the queue change nothing: by then hardly anything is free.
MOST_ASKS = 2_000
WIDEST = "cluster"  # workers of one job stand together at least so far, unless it may span clusters


def gap_now(*, now: datetime) -> dict[Part, int]:
    """The parts of the fleet, in milli-GPU, out of one snapshot."""
    return summed(pieces_now(now=now))


def pieces_now(*, now: datetime) -> list[Piece]:
    """The same, GPU by GPU."""
    with one_moment():
        return pieces(_devices(now), _asks(), reserved_now(now))


def _devices(now: datetime) -> list[Device]:
    holds: dict[int, list[Hold]] = defaultdict(list)
    rows = Placement.objects.filter(until__isnull=True, gpu__isnull=False).order_by("gpu_id", "id")
    columns = (
        "gpu_id",
        "gpu_milli",
        "job__job_class",
        "job__quota_id",
        "job__state",
        "attempt__running_at",
        "attempt__stop_asked_at",
        "leaving_since",
        "joining",
        "job_id",
    )
    for gpu, milli, job_class, quota, state, running_at, asked_at, leaving, joining, job in rows.values_list(*columns):
        phase = phase_of(state=state, running_at=running_at, stop_asked_at=asked_at, leaving_since=leaving, joining=joining)
        holds[gpu].append(Hold(milli, job_class, quota, phase == Phase.STARTING, job))
    for gpu in outside_seats().values_list("gpu_id", flat=True):
        holds[gpu].append(Hold(1000, "", None, is_starting=False))
    promised: dict[int, int] = dict(PromisedSeat.objects.filter(gpu__isnull=False).order_by().values_list("gpu_id").annotate(Sum("gpu_milli")))
    sm = _readings(now)
    gpus = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True).order_by("pk")
    facts = gpus.values_list("pk", "node_id", "gpu_type_id", "node__pool__name", "health", "node__health", "node__spare")
    places = domains_of_nodes()
    return [
        Device(
            key,
            node,
            gpu_type,
            pool or "",
            health_state(health, above),
            sm.get(key),
            holds.get(key, ()),
            promised.get(key, 0),
            spare,
            places.get(node, {}),
        )
        for key, node, gpu_type, pool, health, above, spare in facts
    ]


def health_state(*healths: str) -> str:
    """What a GPU is good for by its own health and its node's."""
    if any(health in BROKEN_STATES for health in healths):
        return BROKEN
    return UP if all(health in IN_SERVICE for health in healths) else AWAY


def _readings(now: datetime) -> dict[int, int]:
    found: dict[int, int] = {}
    for frame in frames_newest():
        if frame.is_fresh(now):
            read = frame.sm != NO_READING
            found.update(zip(frame.ids[read].tolist(), np.minimum(frame.sm[read], 100).tolist(), strict=True))
    return found


def _asks() -> Iterable[Ask]:
    """What waits, as the queue has it: higher numbers first, then who came first."""
    rows = Job.objects.filter(state__in=WAITING, held_at__isnull=True).order_by("-priority", "submitted_at", "pk")
    for spec, milli, codes in rows.values_list("spec", "gpus_milli", "outlook__codes")[:MOST_ASKS]:
        if ask := ask_of(spec, milli, behind=" window " in (codes or "")):
            yield ask


def ask_of(spec: Mapping[str, Any], milli: int, *, behind: bool = False) -> Ask | None:
    """What a job asks for; `behind`: a window that is to come keeps it waiting. Of several roles those with parts of GPUs are left out."""
    forms = roles_of(spec) or [{}]
    roles = []
    for form in forms:
        workers, gpus, types = least_of(form), int(form.get("gpus") or 0), frozenset(form.get("gpu_types") or ())
        level = _level_of(form)
        if workers and gpus:
            roles.append(Role(workers, gpus, types, level=level))
        elif workers and milli and len(forms) == 1:
            # A slice or a share: a part of one GPU a worker.
            roles.append(Role(workers, 1, types, max(1, min(1000, milli // workers)), level))
    spans = (spec.get("topology") or {}).get("span_clusters")
    return Ask(tuple(roles), _level_of(spec) or ("" if spans else WIDEST), behind) if roles else None


def _level_of(form: Mapping[str, Any]) -> str:
    return (form.get("topology") or {}).get("required") or ""


def reserved_now(now: datetime) -> list[Reserved]:
    """What active windows hold for their owners beyond what these use. Windows that lend what is unused hold nothing back."""
    windows = list(
        lasting_at(now)
        .filter(reservation__idle=Idle.HELD)
        .order_by("id")
        .values_list(
            "reservation__gpu_type", "reservation__gpus_milli", "reservation__quota_id", "reservation__quota__path", "reservation__job_class"
        )
    )
    if not windows:
        return []
    held: dict[tuple[str, str, str], int] = defaultdict(int)
    rows = (
        Placement.objects.filter(until__isnull=True, gpu__isnull=False)
        .order_by()
        .values_list("job__quota__path", "job__job_class", "gpu__gpu_type_id")
    )
    for path, job_class, gpu_type, milli in rows.annotate(Sum("gpu_milli")):
        held[path, job_class, gpu_type] = milli
    shares = QuotaShare.objects.filter(node__in=[row[2] for row in windows if row[2]])
    promised = {(node, kind): milli for node, kind, milli in shares.values_list("node_id", "gpu_type", "guaranteed_milli")}
    found = []
    for gpu_type, milli, quota, path, job_class in windows:
        used = sum(
            amount
            for (at, of, kind), amount in held.items()
            if kind == gpu_type and (of == job_class if path is None else at == path or at.startswith(f"{path}/"))
        )
        beyond = max(0, used - (promised.get((quota, gpu_type)) or 0))
        if milli > beyond:
            found.append(Reserved(gpu_type, milli - beyond, quota, path or "", job_class or ""))
    return found

"""Who holds which GPU now. A holder is named only inside the subtrees where the reader may see; outside it is "another team"."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Min, Q, QuerySet, Sum

from quotas.permissions import Access, Can
from scheduler.backends.registry import KUBERNETES
from scheduler.models import OutsideSeat, Placement

ANOTHER_TEAM = "another team"
OUTSIDE = "a job outside gpufleet"


@dataclass(frozen=True, slots=True)
class Holder:
    """One worker's hold. `job_id`, `job_name`, `quota` and `role` are empty where the reader may not know them."""

    gpu_id: int | None
    mig_id: int | None
    gpu_index: int | None
    gpu_milli: int
    since: datetime
    named: bool
    job_id: str
    job_name: str
    job_state: str
    quota: str
    role: str
    worker: int
    until: datetime | None = None
    outside: str = ""  # of a job that is not ours: what an operator is told of it

    @property
    def label(self) -> str:
        return self.outside or (self.job_name if self.named else ANOTHER_TEAM)


@dataclass(frozen=True, slots=True)
class HoldingJob:
    """A job with the number of parts that it holds in one place. Jobs that the reader may not know are counted together."""

    holder: Holder
    parts: int
    milli: int


def holding_jobs(holders: Sequence[Holder]) -> list[HoldingJob]:
    """The jobs behind holds, in the order in which they first stand there."""
    counts = Counter((holder.job_id, holder.outside) for holder in holders)
    milli: Counter[tuple[str, str]] = Counter()
    for holder in holders:
        milli[holder.job_id, holder.outside] += holder.gpu_milli
    first = {(holder.job_id, holder.outside): holder for holder in reversed(holders)}
    return [HoldingJob(first[job], count, milli[job]) for job, count in counts.items()]


def open_placements() -> QuerySet[Placement]:
    """What jobs of gpufleet hold now. Every question about free hardware goes through here and `outside_seats`."""
    return Placement.objects.filter(until__isnull=True)


def outside_seats() -> QuerySet[OutsideSeat]:
    """The GPUs that jobs hold which are not ours."""
    return OutsideSeat.objects.filter(job__until__isnull=True, gpu__isnull=False)


def gpu_holders(access: Access, gpu_ids: Collection[int]) -> dict[int, list[Holder]]:
    """The open holds on each of the GPUs. Two queries."""
    found: dict[int, list[Holder]] = {}
    for holder in [*_holders(access, open_placements().filter(gpu_id__in=gpu_ids)), *_outside(access, outside_seats().filter(gpu_id__in=gpu_ids))]:
        if holder.gpu_id is not None:
            found.setdefault(holder.gpu_id, []).append(holder)
    return found


def node_holders(access: Access, node_id: int) -> list[Holder]:
    """The open holds on a node, by GPU. Two queries."""
    return [*_holders(access, open_placements().filter(node_id=node_id)), *_outside(access, outside_seats().filter(node_id=node_id))]


def nodes_jobs(access: Access, node_ids: Collection[int]) -> dict[int, list[HoldingJob]]:
    """The jobs on each of the nodes, the largest first. Two queries, which count workers where they stand."""
    found: dict[int, list[HoldingJob]] = {}
    placements = open_placements().filter(node_id__in=node_ids).order_by()
    rows = placements.values_list("node_id", "job__public_id", "job__name", "job__state", "job__quota__path").annotate(
        Min("since"), Sum("gpu_milli"), Count("pk")
    )
    for node, *job, since, milli, parts in rows:
        holder = _holder(access, None, None, None, milli, since, *job, "", 0, None)
        found.setdefault(node, []).append(HoldingJob(holder, parts, milli))
    seats = outside_seats().filter(node_id__in=node_ids).order_by()
    told = access.can_everywhere(Can.OPERATE)
    outsiders = seats.values_list("node_id", "job__number", "job__person", "job__name", "job__cluster__backend")
    for node, *named, since, parts in outsiders.annotate(Min("job__since"), Count("pk")):
        found.setdefault(node, []).append(HoldingJob(_outsider(told, None, None, 1000 * parts, since, *named), parts, 1000 * parts))
    return {node: sorted(_unknown_as_one(jobs), key=_largest_first) for node, jobs in found.items()}


def _unknown_as_one(jobs: Sequence[HoldingJob]) -> list[HoldingJob]:
    """Jobs that the reader may not know as one, as `holding_jobs` has them."""
    found: dict[tuple[str, str], HoldingJob] = {}
    for job in jobs:
        key = (job.holder.job_id, job.holder.outside)
        before = found.get(key)
        found[key] = job if before is None else HoldingJob(before.holder, before.parts + job.parts, before.milli + job.milli)
    return list(found.values())


def _largest_first(job: HoldingJob) -> tuple[int, str, str]:
    return -job.milli, job.holder.job_id, job.holder.outside


def gpu_past_holders(access: Access, gpu_id: int, limit: int = 20) -> list[Holder]:
    """Who held a GPU before, the latest first. One query."""
    past = Placement.objects.filter(gpu_id=gpu_id, until__isnull=False)
    return _holders(access, past, "-since", "-pk", limit=limit)


def jobs_on(condition: Q) -> int:
    """How many jobs hold something that the condition names. One query."""
    return open_placements().filter(condition).values("job_id").distinct().count()


def _holders(access: Access, placements: QuerySet[Placement], *order: str, limit: int | None = None) -> list[Holder]:
    rows = placements.order_by(*(order or ("gpu__index", "mig__start", "pk"))).values_list(
        "gpu_id",
        "mig_id",
        "gpu__index",
        "gpu_milli",
        "since",
        "job__public_id",
        "job__name",
        "job__state",
        "job__quota__path",
        "role",
        "worker",
        "until",
    )
    return [_holder(access, *row) for row in rows[:limit]]


def _outside(access: Access, seats: QuerySet[OutsideSeat]) -> list[Holder]:
    """Operators are told whose it is and what the cluster calls it; others that it is not ours."""
    told = access.can_everywhere(Can.OPERATE)
    rows = seats.order_by("gpu__index", "pk").values_list(
        "gpu_id", "gpu__index", "job__since", "job__number", "job__person", "job__name", "job__cluster__backend"
    )
    return [_outsider(told, gpu, index, 1000, since, number, person, name, backend) for gpu, index, since, number, person, name, backend in rows]


def _outsider(
    told: bool, gpu: int | None, index: int | None, milli: int, since: datetime, number: int, person: str, name: str, backend: str
) -> Holder:
    named = f"Pod {person}/{name}" if backend == KUBERNETES else f"Slurm job {number} of {person or 'nobody'}"
    outside = named if told else OUTSIDE
    return Holder(gpu, None, index, milli, since, False, "", "", "", "", "", 0, outside=outside)


def _holder(access: Access, gpu_id: Any, mig_id: Any, index: Any, milli: int, since: datetime, *job: Any) -> Holder:
    public_id, name, state, path, role, worker, until = job
    if access.can(Can.SEE, path):
        return Holder(gpu_id, mig_id, index, milli, since, True, public_id, name, state, path, role, worker, until)
    return Holder(gpu_id, mig_id, index, milli, since, False, "", "", "", "", "", 0, until)

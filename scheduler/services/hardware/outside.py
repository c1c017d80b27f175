"""Jobs of a cluster that gpufleet did not start: what they hold is written down for as long as they hold it. They are never touched (JOB-2)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from django.db import transaction

from gpufleet.core.live.feed import feed_publish
from scheduler.backends.slurm.gres import Gres
from scheduler.models import Cluster, Gpu, GpuMode, MigInstance, Node, OutsideJob, OutsideSeat, Placement
from scheduler.services.loop.lease import lease_want


@dataclass(frozen=True, slots=True)
class Seat:
    node: int
    gpu: int | None
    cpus: int = 0
    memory_mib: int = 0


class Holding(Protocol):
    """A job of Slurm, or a pod of Kubernetes: what it holds on each of its nodes alike. `gpus` are their indices, as far as they are told."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def partition(self) -> str: ...
    @property
    def running(self) -> bool: ...
    @property
    def nodes(self) -> tuple[str, ...]: ...
    @property
    def gpus(self) -> Mapping[str, tuple[int, ...]]: ...
    @property
    def gpu_count(self) -> int: ...
    @property
    def cpus(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def started_at(self) -> datetime | None: ...


def outside_follow(*, cluster: int, jobs: Iterable[Holding], now: datetime, gres: Mapping[str, str] | None = None) -> int:
    """Write down what the jobs hold now, and that the others of the cluster hold nothing any more. Returns how many jobs began, ended or changed.

    `gres` is what each node has: where a GPU is split, Slurm's numbers are of instances, too. A part that is held takes the whole GPU.
    """
    holding = sorted((job for job in jobs if job.running and job.nodes), key=lambda job: job.id)
    with transaction.atomic():
        # Whoever removes the cluster ends what is written down by then, and waits for this.
        if not Cluster.objects.select_for_update(no_key=True).filter(pk=cluster, removed_at__isnull=True).exists():
            return 0
        open_jobs = {job.number: job for job in OutsideJob.objects.select_for_update().filter(cluster=cluster, until__isnull=True)}
        if not holding and not open_jobs:
            return 0
        held = _held(open_jobs.values())
        seats = _seats(cluster, holding, gres or {}, {number: held[job.pk] for number, job in open_jobs.items()})
        over = [job for number, job in open_jobs.items() if seats.get(number) != held[job.pk]]
        begun = [job for job in holding if job.id not in open_jobs or seats[job.id] != held[open_jobs[job.id].pk]]
        for job in over:
            job.until = max(now, job.since)
        OutsideJob.objects.bulk_update(over, ["until"])
        rows = [_row(cluster, job, since=now if job.id in open_jobs else min(job.started_at or now, now)) for job in begun]
        OutsideJob.objects.bulk_create(rows)
        OutsideSeat.objects.bulk_create(
            [
                OutsideSeat(job=row, node_id=seat.node, gpu_id=seat.gpu, cpus=seat.cpus, memory_mib=seat.memory_mib)
                for row in rows
                for seat in sorted(seats[row.number], key=lambda seat: (seat.node, seat.gpu or 0))
            ],
            batch_size=500,
        )
        touched = {seat.node for row in rows for seat in seats[row.number]} | {seat.node for job in over for seat in held[job.pk]}
        if touched:
            feed_publish(changes={"nodes": [{"id": key} for key in sorted(touched)], "overview": [{"id": 1}]})
            lease_want()
    return len({job.number for job in over} | {row.number for row in rows})


def _row(cluster: int, job: Holding, *, since: datetime) -> OutsideJob:
    return OutsideJob(cluster_id=cluster, number=job.id, name=job.name[:200], person=job.user[:100], partition=job.partition[:100], since=since)


def _held(jobs: Iterable[OutsideJob]) -> Mapping[int, frozenset[Seat]]:
    found: dict[int, set[Seat]] = {job.pk: set() for job in jobs}
    for job, *seat in OutsideSeat.objects.filter(job__in=list(found)).values_list("job_id", "node_id", "gpu_id", "cpus", "memory_mib"):
        found[job].add(Seat(*seat))
    return {key: frozenset(seats) for key, seats in found.items()}


def _seats(cluster: int, jobs: Sequence[Holding], gres: Mapping[str, str], before: Mapping[int, frozenset[Seat]]) -> dict[int, frozenset[Seat]]:
    """By number of the job. Where Slurm does not tell which GPUs of a node they are: those of before, else the last that nobody is known to hold."""
    names = {name for job in jobs for name in job.nodes}
    nodes = dict(Node.objects.filter(cluster=cluster, removed_at__isnull=True, name__in=names).values_list("name", "pk"))
    gpus: dict[int, dict[int, int]] = defaultdict(dict)
    for key, node, index in Gpu.objects.filter(node__in=nodes.values(), removed_at__isnull=True).values_list("pk", "node_id", "index"):
        gpus[node][index] = key
    gpus.update(_numbered({nodes[name]: there for name, text in gres.items() if name in nodes and (there := Gres.read(text)).profiles}))
    taken = set(Placement.objects.filter(until__isnull=True, node__in=nodes.values(), gpu__isnull=False).values_list("gpu_id", flat=True))
    for job in jobs:
        taken |= {gpus[nodes[name]][index] for name, told in job.gpus.items() if name in nodes for index in told if index in gpus[nodes[name]]}
    found = {}
    for job in jobs:
        mine: set[Seat] = set()
        for name in job.nodes:
            if name not in nodes:
                continue
            node = nodes[name]
            mine.add(Seat(node, None, -(-job.cpus // len(job.nodes)), -(-job.memory_mib // len(job.nodes))))
            told = [gpus[node][index] for index in job.gpus.get(name, ()) if index in gpus[node]]
            if not told and job.gpu_count:
                free = [key for _, key in sorted(gpus[node].items(), reverse=True) if key not in taken]
                kept = {seat.gpu for seat in before.get(job.id, ()) if seat.node == node}
                told = sorted(free, key=lambda key: key not in kept)[: -(-job.gpu_count // len(job.nodes))]
                taken.update(told)
            mine.update(Seat(node, key) for key in told)
        found[job.id] = frozenset(mine)
    return found


def _numbered(there: Mapping[int, Gres]) -> dict[int, dict[int, int]]:
    """By node, of those where some GPUs are split: the GPUs by Slurm's numbers."""
    if not there:
        return {}
    parts: dict[tuple[int, str], list[int]] = defaultdict(list)
    rows = Gpu.objects.filter(node__in=list(there), removed_at__isnull=True)
    for node, gpu in rows.exclude(mode=GpuMode.MIG).order_by("node", "index").values_list("node_id", "pk"):
        parts[node, ""].append(gpu)
    instances = MigInstance.objects.filter(gpu__in=rows, removed_at__isnull=True).order_by("gpu__node", "gpu__index", "start")
    for node, profile, gpu in instances.values_list("gpu__node_id", "profile", "gpu_id"):
        parts[node, profile].append(gpu)
    found = {}
    for node, gres in there.items():
        every = enumerate(gres.named(range(sum(count for _, count in gres.types))))
        found[node] = {place: parts[node, profile][number] for place, (profile, number) in every if number < len(parts[node, profile])}
    return found

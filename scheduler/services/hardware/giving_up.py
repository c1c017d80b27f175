"""Jobs of a cluster that is gone for good. Nobody can be asked any more how they end, so an operator says that they have.

They end when the cluster was seen last, and are charged up to then: nobody knows that they ran any longer (docs/adr/0005).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db import transaction
from django.db.models import Count, Q

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.live.news import News
from quotas.permissions import Access, Can
from scheduler.backends.base import BackendError, FolderSilent, attempt_key
from scheduler.backends.kubernetes.errors import KubernetesSilent
from scheduler.backends.registry import UnknownBackend, backend_for, exists, kubernetes_settings, slurm_settings
from scheduler.backends.slurm import shared
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.jobs.stored import least_of, roles_of
from scheduler.models import IN_SERVICE, Attempt, Cluster, Job, JobState, KubernetesCluster, Node, Order, SlurmCluster
from scheduler.selectors.holders import open_placements
from scheduler.selectors.nodes import Guest, job_guests
from scheduler.services.hardware.hardware import check_confirmed
from scheduler.services.hardware.kubernetes import client_of
from scheduler.services.jobs.prices import Repeated, repeated_work
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Ended, attempts_ended
from scheduler.services.loop.usage import usage_moment

WAITING = (JobState.QUEUED, JobState.RESERVED, JobState.PREEMPTED)


class After(StrEnum):
    """What becomes of the jobs."""

    REQUEUE = "requeue"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Left:
    """A job there. `fits`: the GPUs of another cluster that answers are of its types and as many on a node as it needs."""

    guest: Guest
    fits: bool
    stop_to: str = ""  # what it becomes that was asked to leave before

    def waits_again(self, after: str) -> bool:
        """One that was asked to leave becomes what it was to become."""
        return self.stop_to in WAITING if self.stop_to else after == After.REQUEUE and self.fits


@dataclass(frozen=True, slots=True)
class GivenUp:
    jobs: int
    requeued: int


def why_not(cluster: Cluster) -> str:
    """Why its jobs cannot be given up; empty: they can. A Slurm cluster is asked once more, and its shared folder, as without it none answers."""
    if cluster.silent_since is None:
        return f"{cluster.name} answers: cancel or drain its jobs instead."
    if (connected := KubernetesCluster.objects.filter(cluster=cluster).first()) is not None:
        return _why_not_of_kubernetes(cluster, connected)
    row = SlurmCluster.objects.filter(cluster=cluster).first()
    try:
        if row is None or not SlurmClient(slurm_settings(row)).partitions():
            return ""
        shared.look_at(shared.top_in(row.folder, row.tag))
    except (SlurmSilent, FolderSilent):
        return ""
    except BackendError as fault:
        return f"{cluster.name} could not be asked, so its jobs may go on: {fault}"
    return f"{cluster.name} answers again: its jobs go on."


def _why_not_of_kubernetes(cluster: Cluster, row: KubernetesCluster) -> str:
    try:
        with client_of(kubernetes_settings(row)) as client:
            client.get("/version")
        if row.folder:
            shared.look_at(shared.top_in(row.folder, row.tag))
    except (KubernetesSilent, FolderSilent):
        return ""
    except BackendError as fault:
        return f"{cluster.name} could not be asked, so its jobs may go on: {fault}"
    return f"{cluster.name} answers again: its jobs go on."


def jobs_left(*, access: Access, cluster: Cluster, now: datetime) -> list[Left]:
    keys = list(open_placements().filter(node__cluster=cluster).order_by("job_id").values_list("job_id", flat=True).distinct())
    fits = fits_elsewhere(cluster)
    asked = Attempt.objects.filter(job__in=keys, ended_at__isnull=True, stop_asked_at__isnull=False)
    leave_to = dict(asked.order_by("pk").values_list("job_id", "stop_to"))
    return [Left(guest, fits(guest.job), leave_to.get(guest.job.pk) or "") for guest in job_guests(access, keys, now=now)]


def held_unseen(*, access: Access, cluster: Cluster, left: Sequence[Left], now: datetime) -> Repeated:
    """The GPU time that these jobs held since the cluster does not answer, or since they began. It is not charged."""
    since = cluster.silent_since or now
    seconds = {one.guest.job.pk: max(0, int((now - max(since, one.guest.run.began)).total_seconds())) for one in left}
    return repeated_work(access, {key: count for key, count in seconds.items() if count}, {one.guest.job.pk: one.guest.job for one in left}, now=now)


def cluster_give_up(*, access: Access, cluster: Cluster, after: str, reason: str, confirm: str, now: datetime) -> GivenUp:
    """End all that runs there in the books: what it holds is free, and each job fails or waits again. Should the cluster come back after all, what
    still runs there of it is ended."""
    access.must_everywhere(Can.OPERATE)
    unknown = "" if after in list(After) else "Choose what becomes of the jobs: requeue or fail."
    check_confirmed(cluster.name, confirm=confirm, reason=reason, jobs=unknown)
    if fault := why_not(cluster):
        raise Conflict(fault)
    news = News()
    with transaction.atomic():
        now = usage_moment(now=now)
        if not Cluster.objects.select_for_update().filter(pk=cluster.pk, silent_since__isnull=False).exists():
            raise Conflict(f"{cluster.name} answers again: its jobs go on.")
        left = {one.guest.job.pk: one for one in jobs_left(access=access, cluster=cluster, now=now)}
        opened = Attempt.objects.filter(job__in=left, ended_at__isnull=True).order_by("pk")
        runs = list(opened.values_list("pk", "job_id", "job__public_id", "number"))
        why = f"Cluster {cluster.name} is gone, and its jobs were given up: {reason.strip()}"[:300]
        since = Cluster.objects.values_list("silent_since", flat=True).get(pk=cluster.pk) or now
        ends = [
            Ended(run, None, why, node_lost=left[job].waits_again(after), ended_at=since, end_is_told=True, is_last=True) for run, job, _, _ in runs
        ]
        attempts_ended(ends=ends, unseen={run: since for run, *_ in runs}, now=now, news=news, actor=access.actor, want=False)
        # Nobody waits any more for what was to be told there. Should the cluster come back, what runs of its ended runs is ended as a stray.
        untold = Order.objects.filter(cluster=cluster, done_at__isnull=True, attempt__ended_at__isnull=False)
        untold.update(done_at=now, fault=f"Cluster {cluster.name} is gone.")
        with suppress(UnknownBackend):
            backend_for(cluster).give_up(keys=[attempt_key(job=job, attempt=number) for _, _, job, number in runs], now=now)
        found = GivenUp(len(left), sum(one.waits_again(after) for one in left.values()))
        audit_record(
            actor=access.actor,
            action="cluster.give_up",
            kind="cluster",
            object_id=cluster.public_id,
            after={"silent_since": since.isoformat(), "jobs": found.jobs, "requeued": found.requeued},
            reason=reason.strip(),
        )
        news.publish()
        lease_want()
    return found


def fits_elsewhere(cluster: Cluster) -> Callable[[Job], bool]:
    """Whether another cluster that answers has the GPUs that a job needs, free or not."""
    there = Node.objects.filter(removed_at__isnull=True, health__in=IN_SERVICE, cluster__silent_since__isnull=True).exclude(cluster=cluster)
    rows = there.annotate(size=Count("gpus", Q(gpus__removed_at__isnull=True))).values_list("cluster_id", "cluster__backend", "gpu_type_id", "size")
    sizes: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for key, backend, gpu_type, size in rows.order_by("pk"):
        if exists(backend):
            sizes[key].append((gpu_type or "", size))
    return lambda job: any(all(_has_room(role, nodes) for role in roles_of(job.spec)) for nodes in sizes.values())


def _has_room(role: Mapping[str, Any], nodes: Sequence[tuple[str, int]]) -> bool:
    types, each, least = role.get("gpu_types"), role.get("gpus") or 1, least_of(role) or 1
    return sum(size // each for gpu_type, size in nodes if not types or gpu_type in types) >= least

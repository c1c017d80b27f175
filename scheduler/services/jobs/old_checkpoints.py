"""Checkpoints that nobody resumes from any more: their files are deleted, then their rows (JOB-4).

Killed anywhere in between, the next turn finds nothing to delete and the row goes. What fails is told in the log and by the doctor, and tried again.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from gpufleet.core.audit import SYSTEM, audit_record
from scheduler.backends.base import Backend, BackendError, FolderSilent, OldCheckpoint
from scheduler.models import Attempt, Checkpoint, Placement
from scheduler.services.jobs.checkpoints import TOLD_TO_A_RUN, checkpoints_prune

LONGEST = 60.0  # seconds of one turn
LATE = timedelta(hours=1)  # a turn comes every ten minutes
A_STEP = 500  # rows that are written down together
JOBS_NAMED = 50  # in an entry of the audit log
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Deleted:
    checkpoint: int
    job: str
    bytes: int


def checkpoints_to_delete() -> "QuerySet[Checkpoint]":
    """Those whose files may lie somewhere, and that no run which goes on was told or writes. A row that an attempt names stays, without a place.

    Files on a cluster that was removed are left alone until it is back.
    """
    is_gone = Exists(Placement.objects.filter(attempt=OuterRef("attempt"), node__cluster__removed_at__isnull=False))
    named = Exists(Attempt.objects.filter(resumed_from=OuterRef("pk")))
    no_longer_written = Q(verified_at__isnull=False) | Q(attempt__ended_at__isnull=False)
    where = Q(removed_at__isnull=False) & (~Q(location="") | ~named)
    return Checkpoint.objects.filter(~TOLD_TO_A_RUN, ~is_gone, no_longer_written, where).order_by("pk")


def checkpoints_late(*, now: datetime) -> "QuerySet[Checkpoint]":
    """Those whose files should have gone long ago."""
    return checkpoints_to_delete().filter(removed_at__lt=now - LATE)


def old_checkpoints_delete(*, backends: Mapping[int, Backend], now: datetime) -> int:
    """One turn. Returns how many were deleted; those that could not be keep none of the others from it."""
    checkpoints_prune(now=now)
    until, after, done = monotonic() + LONGEST, 0, 0
    silent: set[Path] = set()
    while monotonic() < until and (rows := list(checkpoints_to_delete().filter(pk__gt=after).select_related("attempt__job")[:A_STEP])):
        deleted = _files_delete(rows, backends, silent, until)
        if deleted:
            _write_down(deleted)
        after, done = rows[-1].pk, done + len(deleted)
    return done


def _files_delete(rows: Sequence[Checkpoint], backends: Mapping[int, Backend], silent: set[Path], until: float) -> list[Deleted]:
    """Leaves out those in folders that are `silent`, and adds those that turn out to be."""
    clusters = _clusters_of(rows)
    deleted = []
    for row in rows:
        if monotonic() > until:
            break
        attempt = row.attempt
        if not silent.isdisjoint(Path(row.location).parents):
            continue
        old = OldCheckpoint(attempt.job.public_id, attempt.number, row.step, row.location)
        try:
            freed = sum(_backend(backends, cluster).delete_checkpoint(old) for cluster in clusters[attempt.pk])
        except FolderSilent as fault:
            silent.add(fault.folder)
            log.warning("the files of step %d of %s, and others there, stay for now: %s", old.step, old.job, fault)
            continue
        except BackendError as fault:
            log.warning("the files of step %d of %s stay for now: %s", old.step, old.job, fault)
            continue
        deleted.append(Deleted(row.pk, old.job, freed))
    return deleted


def _clusters_of(rows: Sequence[Checkpoint]) -> dict[int, list[int]]:
    """Of each attempt those where it ran."""
    found = defaultdict(list)
    ran = Placement.objects.filter(attempt__in={row.attempt_id for row in rows}).order_by().distinct()
    for attempt, cluster in ran.values_list("attempt_id", "node__cluster_id"):
        found[attempt].append(cluster)
    return found


def _backend(backends: Mapping[int, Backend], cluster: int) -> Backend:
    if cluster not in backends:
        raise BackendError("This console has no such back-end.")
    return backends[cluster]


def _write_down(deleted: Sequence[Deleted]) -> None:
    keys = [one.checkpoint for one in deleted]
    with transaction.atomic():
        Checkpoint.objects.filter(pk__in=keys, resumed_by__isnull=True).delete()
        Checkpoint.objects.filter(pk__in=keys).update(location="")
        if freed := sum(one.bytes for one in deleted):
            jobs = sorted({one.job for one in deleted if one.bytes})
            after = {"checkpoints": sum(one.bytes > 0 for one in deleted), "bytes": freed, "jobs": len(jobs), "first_jobs": jobs[:JOBS_NAMED]}
            audit_record(actor=SYSTEM, action="checkpoints.delete", kind="installation", object_id="1", after=after)

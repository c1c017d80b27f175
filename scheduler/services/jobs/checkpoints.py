"""Checkpoints: told by ranks with their attempt's token, found as manifest files, or seen by a back-end. All come to the same rows (JOB-4).

One counts once every shard is there. A job resumes from its newest one that counts; a few are kept beside it. Older ones are removed here, and their
files are deleted outside of any tick (`old_checkpoints`).
"""

import hmac
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q

from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from scheduler.backends.base import SeenCheckpoint
from scheduler.models import Attempt, Checkpoint, CheckpointShard, Job, Order, OrderKind
from scheduler.services.jobs.tokens import token_digest
from scheduler.services.loop.runs import OfJob

KEPT = 3  # complete ones a job
MOST_SHARDS = 100_000
LOCATION_LENGTH = 500
COMPLETE: Prepared[tuple[int, int]] = Prepared(
    lambda jobs: (
        Checkpoint.objects.filter(job__among=jobs, verified_at__isnull=False, removed_at__isnull=True)
        .order_by("verified_at", "step", "id")
        .values_list("job_id", "id")
    )
)

PRESENT: Prepared[Checkpoint] = Prepared(
    lambda jobs: Checkpoint.objects.filter(job__among=jobs, removed_at__isnull=True).only("job_id", "step", "verified_at", "reported_at")
)
# A worker that a launcher restarts is told what its run began from. One that joins is told the newest one when its order is sent: what was complete
# until then is kept, as no more than that is written down.
TOLD_TO_A_RUN = Exists(Attempt.objects.filter(resumed_from=OuterRef("pk"), ended_at__isnull=True)) | Exists(
    Order.objects.filter(
        Q(done_at__isnull=True) | Q(done_at__gte=OuterRef("verified_at")),
        kind=OrderKind.RESIZE,
        attempt__job=OuterRef("job"),
        attempt__ended_at__isnull=True,
    )
)


def checkpoint_newest(*, job: int) -> Checkpoint | None:
    """The one that a job resumes from."""
    newest = dict(COMPLETE([job]))
    return Checkpoint.objects.get(pk=newest[job]) if newest else None


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    bytes: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of one checkpoint of an attempt: perhaps not all of its shards yet."""

    attempt_id: int
    job_id: int
    step: int
    location: str
    shards_expected: int
    shards: tuple[Shard, ...]


def attempt_of_token(token: str) -> Attempt | None:
    """The open attempt whose ranks have this token."""
    digest = token_digest(token)
    found = Attempt.objects.select_related("job").filter(token_digest=digest, ended_at__isnull=True).first()
    return found if found is not None and hmac.compare_digest(found.token_digest, digest) else None


def shard_report(
    *, attempt: Attempt, step: int, shard: Shard, shards_expected: int, location: str, now: datetime, news: News | None = None
) -> Checkpoint:
    """A rank says that its part of a checkpoint is safely written. Said twice, it counts once; what contradicts the first report is refused."""
    faults: dict[str, list[str]] = {}
    if not 1 <= shards_expected <= MOST_SHARDS:
        faults["shards"] = [f"Must be between 1 and {MOST_SHARDS}."]
    elif not 0 <= shard.number < shards_expected:
        faults["shard"] = [f"Must be between 0 and {shards_expected - 1}."]
    if step < 0:
        faults["step"] = ["Must not be below 0."]
    if len(location) > LOCATION_LENGTH:
        faults["location"] = [f"Must not be longer than {LOCATION_LENGTH} characters."]
    known = Checkpoint.objects.filter(attempt=attempt, step=step).first()
    if known is not None and known.shards_expected != shards_expected and not faults:
        faults["shards"] = [f"Other ranks said that step {step} has {known.shards_expected} shards."]
    if faults:
        raise ValidationError(faults)
    told = Told(attempt.pk, attempt.job_id, step, location, shards_expected, (shard,))
    checkpoints_tell(told=[told], now=now, news=news)
    return Checkpoint.objects.get(attempt=attempt, step=step)


def told_of(attempt: OfJob, seen: SeenCheckpoint) -> Told:
    shards = tuple(Shard(number) for number in seen.shards)
    return Told(attempt.pk, attempt.job_id, seen.step, seen.location[:LOCATION_LENGTH], seen.shards_expected, shards)


def checkpoints_tell(*, told: Sequence[Told], now: datetime, news: News | None = None) -> int:
    """Write down what is told, in few statements. Returns how many became complete by it."""
    if not told:
        return 0
    own = news or News()
    with transaction.atomic():
        # The job's row is the lock, as for everything that happens to a job.
        jobs = {one.job_id for one in told}
        list(Job.objects.select_for_update(no_key=True).filter(pk__among=jobs).order_by("pk").values_list("pk"))
        rows = _rows(told, now)
        complete = _with_shards(told, rows, now)
        Checkpoint.objects.filter(pk__among=complete).update(verified_at=now)
        if complete:
            _prune(jobs, now)
            own.add("jobs", *sorted(jobs))
        if news is None:
            own.publish()
    return len(complete)


def _rows(told: Sequence[Told], now: datetime) -> Mapping[tuple[int, int], Checkpoint]:
    wanted = {(one.attempt_id, one.step): one for one in told}
    Checkpoint.objects.bulk_create(
        [
            Checkpoint(
                job_id=one.job_id,
                attempt_id=one.attempt_id,
                step=one.step,
                location=one.location,
                shards_expected=one.shards_expected,
                reported_at=now,
            )
            for one in wanted.values()
        ],
        ignore_conflicts=True,
    )
    found = Checkpoint.objects.filter(attempt__among={one.attempt_id for one in told}, step__among={one.step for one in told})
    return {(row.attempt_id, row.step): row for row in found}


def _with_shards(told: Sequence[Told], rows: Mapping[tuple[int, int], Checkpoint], now: datetime) -> list[int]:
    """Add the shards. Returns the keys of checkpoints that are complete now and were not."""
    open_rows = {row.pk: row for one in told if (row := rows[one.attempt_id, one.step]).verified_at is None}
    present: dict[int, set[int]] = defaultdict(set)
    for key, number in CheckpointShard.objects.filter(checkpoint__among=open_rows).values_list("checkpoint_id", "number"):
        present[key].add(number)
    fresh = []
    for one in told:
        row = rows[one.attempt_id, one.step]
        if row.pk not in open_rows:
            continue
        for shard in one.shards:
            if 0 <= shard.number < row.shards_expected and shard.number not in present[row.pk]:
                present[row.pk].add(shard.number)
                fresh.append(CheckpointShard(checkpoint=row, number=shard.number, bytes=shard.bytes, digest=shard.digest[:128], reported_at=now))
    CheckpointShard.objects.bulk_create(fresh, ignore_conflicts=True)
    return [key for key, row in open_rows.items() if len(present[key]) == row.shards_expected]


def checkpoints_prune(*, now: datetime) -> None:
    """Of jobs that no longer run, also what only their last run was told: nothing of theirs becomes complete any more."""
    runs = Exists(Attempt.objects.filter(job=OuterRef("job"), ended_at__isnull=True))
    complete = Checkpoint.objects.filter(~runs, verified_at__isnull=False, removed_at__isnull=True).order_by("job")
    for job in list(complete.values("job").annotate(n=Count("pk")).filter(n__gt=KEPT).values_list("job", flat=True)):
        with transaction.atomic():
            Job.objects.select_for_update(no_key=True).only("pk").get(pk=job)
            _prune([job], now)


def _prune(jobs: Iterable[int], now: datetime) -> None:
    """Keep the newest complete ones of each job, and what is newer than they are."""
    kept: Counter[int] = Counter()
    gone = []
    for row in sorted(PRESENT(jobs), key=lambda row: (row.verified_at or row.reported_at, row.step, row.pk), reverse=True):
        if kept[row.job_id] >= KEPT:
            gone.append(row.pk)
        kept[row.job_id] += row.verified_at is not None
    Checkpoint.objects.filter(~TOLD_TO_A_RUN, pk__among=gone).update(removed_at=now)

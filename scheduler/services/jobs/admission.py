"""Whether there is room for what is submitted: how fast a person and a node of the quota tree may submit, and how many jobs may wait at a node.

The rows of all that is judged are locked to the end of the caller's transaction: of two that submit at once each sees what the other took.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import DatabaseError, connection
from django.db.models import Q

from gpufleet.core.faults import TooMany
from gpufleet.core.models import User
from gpufleet.core.prepared import Prepared, PreparedUpdate
from quotas.models import QuotaNode
from scheduler.jobs.submission_rates import full_after, instant, moment_of, opens_at
from scheduler.loop.measures import SUBMISSIONS_LIMITED
from scheduler.models import SubmissionRate
from scheduler.selectors.submission_limits import Limit, limits_of, waiting_under
from scheduler.services.loop.measuring import measures_write, tally

AGAIN_SECONDS = 60  # after which to try again where nobody knows when jobs start
OF_USER = Prepared(
    lambda user: SubmissionRate.objects.select_for_update().filter(user=user).values_list("pk", "full_at_us"),
)
OF_NODES = Prepared(
    lambda nodes: SubmissionRate.objects.select_for_update().filter(node__among=nodes).order_by("node").values_list("node_id", "pk", "full_at_us")
)
USED = PreparedUpdate(lambda key, full_at: (SubmissionRate.objects.filter(pk=key), {"full_at_us": full_at}))


@dataclass(frozen=True, slots=True)
class Wish:
    """A job, or an array of so many, for a queue. What was kept as a draft counts when it is kept, and waits once it is submitted."""

    quota: QuotaNode
    count: int
    counts: bool = True
    waits: bool = True


@dataclass(slots=True)
class _Bucket:
    """A submission rate whose row is locked."""

    row: int
    full_at_us: int
    is_changed: bool = False


def submissions_admit(*, wishes: Sequence[Wish], user: User | None, now: datetime) -> ValidationError | None:
    """Count them all, in the caller's transaction, or none and return why not: `TooMany` where the same passes later."""
    admission = _Admission(wishes, user, now)
    if fault := admission.refusal(wishes):
        _count(fault)
        return fault
    admission.take(wishes)
    admission.write()
    return None


def submissions_admit_each(*, wishes: Sequence[Wish], user: User | None, now: datetime) -> list[ValidationError | None]:
    """Count those that there is room for, one after the other, in the caller's transaction. Returns why not, of each in its place."""
    if not wishes:
        return []
    admission, found = _Admission(wishes, user, now), []
    for wish in wishes:
        if fault := admission.refusal([wish]):
            _count(fault)
        else:
            admission.take([wish])
        found.append(fault)
    admission.write()
    return found


def submissions_refused(*, wishes: Sequence[Wish], user: User | None, now: datetime) -> ValidationError | None:
    """Why they would not pass at this moment. Nothing is locked or counted."""
    return _Admission(wishes, user, now, locks=False).refusal(wishes)


def _count(fault: ValidationError) -> None:
    if isinstance(fault, TooMany):
        tally.count(SUBMISSIONS_LIMITED, fault.limit)


@contextmanager
def refusals_counted() -> Iterator[None]:
    """Around a transaction that may be refused: a process that runs no scheduler has no other time to write down that it was."""
    try:
        yield
    except TooMany:
        refusals_write()
        raise


def refusals_write() -> None:
    if not connection.in_atomic_block:
        with suppress(DatabaseError):  # it is counted with the next one
            measures_write()


class _Admission:
    def __init__(self, wishes: Sequence[Wish], user: User | None, now: datetime, *, locks: bool = True) -> None:
        self.user, self.now, self.now_us = user, now, instant(now)
        self.limits = limits_of({wish.quota.pk: wish.quota.path for wish in wishes})
        self.per_minute = settings.SUBMITS_PER_MINUTE if user is not None else 0
        kept = {limit.node for each in self.limits.values() for limit in (each.rate, each.waiting) if limit is not None}
        self.own, self.buckets = self._locked(sorted(kept)) if locks else self._seen(kept)
        self.waiting: dict[int, int] = {}

    def _locked(self, nodes: list[int]) -> tuple[_Bucket | None, dict[int, _Bucket]]:
        """The person's and those of nodes, always in this order."""
        own = None
        if self.user is not None and self.per_minute:
            if not (rows := OF_USER(self.user.pk)):
                SubmissionRate.objects.bulk_create([SubmissionRate(user=self.user)], ignore_conflicts=True)
                rows = OF_USER(self.user.pk)
            own = _Bucket(*rows[0])
        found = OF_NODES(nodes) if nodes else []
        if missing := sorted(set(nodes) - {row[0] for row in found}):
            SubmissionRate.objects.bulk_create([SubmissionRate(node_id=node) for node in missing], ignore_conflicts=True)
            found = OF_NODES(nodes)
        return own, {node: _Bucket(row, full_at) for node, row, full_at in found}

    def _seen(self, nodes: Collection[int]) -> tuple[_Bucket | None, dict[int, _Bucket]]:
        rows = SubmissionRate.objects.filter(Q(node__in=nodes) | Q(user=self.user, user__isnull=False))
        told = rows.values_list("node_id", "user_id", "full_at_us")
        found: dict[tuple[int | None, int | None], int] = {(node, user): full_at for node, user, full_at in told}
        own = _Bucket(0, found.get((None, self.user.pk), 0)) if self.user is not None and self.per_minute else None
        return own, {node: _Bucket(0, found.get((node, None), 0)) for node in nodes}

    def refusal(self, wishes: Sequence[Wish]) -> ValidationError | None:
        """Why they do not pass together; nothing is counted."""
        what, total = _named(wishes), sum(wish.count for wish in wishes if wish.counts)
        kinds: list[str] = []
        told: list[str] = []
        waits: list[int] = []
        if self.own is not None and total and self.user is not None:
            self._judge_rate(self.own, self.user.username, total, self.per_minute, what, kinds, told, waits)
        for limit, count in _sums((self.limits[wish.quota.pk].rate, wish.count) for wish in wishes if wish.counts):
            self._judge_rate(self.buckets[limit.node], limit.path, count, limit.most, what, kinds, told, waits)
        for limit, count in _sums((self.limits[wish.quota.pk].waiting, wish.count) for wish in wishes if wish.waits):
            if count > limit.most:
                return ValidationError({"quota": [f"{limit.path} may have {_jobs(limit.most, 'waiting ')} at once, too few for {what}."]})
            if self._waiting(limit) + count > limit.most:
                kinds.append("waiting")
                told.append(f"{limit.path} may have {_jobs(limit.most, 'waiting ')} at once, with no room for {what} now.")
                waits.append(AGAIN_SECONDS)
        if not told:
            return None
        return TooMany({"quota": told}, limit=kinds[0], wait_seconds=max(waits))

    def _judge_rate(
        self, bucket: _Bucket, whom: str, count: int, per_minute: int, what: str, kinds: list[str], told: list[str], waits: list[int]
    ) -> None:
        wait_us = opens_at(bucket.full_at_us, count, per_minute) - self.now_us
        if wait_us <= 0:
            return
        seconds = -(-wait_us // 1_000_000)
        at = moment_of(self.now_us) + timedelta(seconds=seconds)
        day = "" if at.date() == self.now.date() else f"{at:%Y-%m-%d} "
        fits = "fit" if what.startswith("these") else "fits"
        kinds.append("person" if bucket is self.own else "node")
        told.append(f"{whom} may submit {_jobs(per_minute)} a minute; {what} {fits} at {day}{at:%H:%M:%S} UTC.")
        waits.append(seconds)

    def _waiting(self, limit: Limit) -> int:
        if limit.node not in self.waiting:
            self.waiting[limit.node] = waiting_under(limit)
        return self.waiting[limit.node]

    def take(self, wishes: Sequence[Wish]) -> None:
        if self.own is not None:
            self._fill(self.own, sum(wish.count for wish in wishes if wish.counts), self.per_minute)
        for limit, count in _sums((self.limits[wish.quota.pk].rate, wish.count) for wish in wishes if wish.counts):
            self._fill(self.buckets[limit.node], count, limit.most)
        for limit, count in _sums((self.limits[wish.quota.pk].waiting, wish.count) for wish in wishes if wish.waits):
            self.waiting[limit.node] = self._waiting(limit) + count

    def _fill(self, bucket: _Bucket, count: int, per_minute: int) -> None:
        if count:
            bucket.full_at_us, bucket.is_changed = full_after(bucket.full_at_us, count, per_minute, self.now_us), True

    def write(self) -> None:
        for bucket in (*([self.own] if self.own is not None else []), *self.buckets.values()):
            if bucket.is_changed:
                USED(bucket.row, bucket.full_at_us)


def _sums(pairs: Iterable[tuple[Limit | None, int]]) -> list[tuple[Limit, int]]:
    """How many jobs each limit is about."""
    found: dict[Limit, int] = defaultdict(int)
    for limit, count in pairs:
        if limit is not None:
            found[limit] += count
    return list(found.items())


def _named(wishes: Sequence[Wish]) -> str:
    total = sum(wish.count for wish in wishes)
    return "this job" if total == 1 else f"this array of {total:,}" if len(wishes) == 1 else f"these {total:,} jobs"


def _jobs(count: int, kind: str = "") -> str:
    return f"{count:,} {kind}{'job' if count == 1 else 'jobs'}"

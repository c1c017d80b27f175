"""What came in the last days, as it is played again: when it came, how long it would run, and what was there when they began."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Max, Q, QuerySet

from gpufleet.core.times import MILLISECOND
from quotas.models import LedgerEntry
from scheduler.engine.model.values import Checkpoint, Kind
from scheduler.models import Attempt, Dependency, Job
from scheduler.simulation.futures import LENGTH_UNKNOWN
from scheduler.simulation.span import HOUR, THERE
from scheduler.snapshots.jobs import Kinds, unmet_dependencies

LENGTH = timedelta(days=7)
SHORTEST = 60_000
MOST_NAMED = 500  # jobs in one question
PUT_OUT = ("preempted", "moved", "lost")  # outcomes of runs that others ended, or their node
COLUMNS = (
    "public_id",
    "spec",
    "job_class",
    "priority",
    "preemptible",
    "submitted_at",
    "not_before",
    "deferred_to",
    "estimate_seconds",
    "limit_seconds",
    "ended_at",
    "held_at",
)


@dataclass(frozen=True, slots=True)
class Came:
    """A job of the last days: when it came, and how long it would run with its smallest gang, in milliseconds, the former from the beginning.

    What ran when they began comes with them, and what waited then just after it: it finds taken what it found taken.
    """

    quota_id: int
    kind: Kind
    saving: Checkpoint | None
    movable: bool
    submitted: int
    work: int
    estimate_ms: int | None
    limit_ms: int | None
    name: str


def jobs_came(kinds: Kinds, now: datetime, types: Collection[str], *, length: timedelta = LENGTH, left_out: Counter[str] | None = None) -> list[Came]:
    """What was submitted in the last days or was there when they began, as of when it was due and free of others.

    Jobs that left without having run or still wait for others are left out, as are drafts, and jobs of GPU types that there are no more. All but
    drafts are counted by reason.
    """
    left_out = Counter() if left_out is None else left_out
    begin = now - length
    ran: dict[int, list[tuple[datetime, datetime | None, str]]] = defaultdict(list)
    attempts = Attempt.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=begin))
    for job, started, running, ended, outcome in attempts.order_by("id").values_list("job_id", "started_at", "running_at", "ended_at", "outcome"):
        ran[job].append((running or started, ended, outcome))
    others = Dependency.objects.filter(on__ended_at__gt=begin).values("job").annotate(last=Max("on__ended_at")).values_list("job", "last")
    free_at = dict(others.order_by())
    rows = submitted_by(now, length).annotate(for_others=unmet_dependencies())
    read = []
    for key, quota, name, spec, *facts in rows.order_by("submitted_at", "id").values_list("id", "quota_id", *COLUMNS, "for_others"):
        *asked, at, not_before, deferred_to, estimate, limit, ended, on_hold, for_others = facts
        mine = ran.get(key, [])
        if not mine and (ended is not None or on_hold is not None or for_others):
            left_out["ended without having run" if ended is not None else "held, or waits for other jobs"] += 1
            continue
        asks = kinds.asks(spec, *asked)
        if isinstance(asks, str):
            left_out["cannot be read any more"] += 1
            continue
        if any(role.gpu_types and not any(one in types for one in role.gpu_types) for role in asks.kind.roles):
            left_out["asks for GPU types that the fleet no longer has"] += 1
            continue
        due = max(moment for moment in (at, not_before, deferred_to, free_at.get(key)) if moment is not None)
        read.append((name, quota, asks, mine, due, estimate, limit, ended is not None))
    uneven = [name for name, _, asks, mine, *_ in read if mine and (asks.kind.elastic or asks.kind.throughput)]
    held = _held_since(uneven, begin, now)
    found = []
    for name, quota, asks, mine, due, estimate, limit, is_over in read:
        runs_then = any(since <= begin and (until is None or until > begin) for since, until, _ in mine)
        ran_for = sum(_overlap(since, until, begin, now) for since, until, _ in mine)
        if asks.saving is None:  # what was lost is not what it takes
            mine = [one for one in mine if one[2] not in PUT_OUT]
        work = sum(_overlap(since, until, begin, now) for since, until, _ in mine)
        did = _at_least(asks.kind, held[name]) if name in held else None
        if did is not None and ran_for:
            work = did * work // ran_for  # the ledger knows what was held in all of its runs
        if not is_over:  # what it states is left of it
            stated = 1000 * (estimate or limit or LENGTH_UNKNOWN // 1000)
            work += max(SHORTEST, stated - sum(max(0, ((until or now) - since) // MILLISECOND) for since, until, _ in mine))
        after = max(0 if runs_then else THERE, (due - begin) // MILLISECOND)
        found.append(Came(quota, *asks, after, max(1000, work), estimate and 1000 * estimate, limit and 1000 * limit, name))
    return found


def submitted_by(now: datetime, length: timedelta) -> QuerySet[Job]:
    """Jobs that were there in the last days, with those that are left out of them."""
    return Job.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=now - length), submitted_at__isnull=False, submitted_at__lte=now)


def _overlap(since: datetime, until: datetime | None, begin: datetime, now: datetime) -> int:
    return max(0, (min(until or now, now) - max(since, begin)) // MILLISECOND)


def _held_since(jobs: Sequence[str], begin: datetime, now: datetime) -> dict[str, dict[str, int]]:
    """By job and GPU type: milli-GPU times milliseconds of the last days, by the ledger."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for first in range(0, len(jobs), MOST_NAMED):
        entries = LedgerEntry.objects.filter(Q(until__isnull=True) | Q(until__gt=begin), job__in=jobs[first : first + MOST_NAMED])
        for job, gpu_type, milli, since, until in entries.values_list("job", "gpu_type", "gpu_milli", "since", "until"):
            found[job][gpu_type] += milli * _overlap(since, until, begin, now)
    return found


def _at_least(kind: Kind, held: Mapping[str, int]) -> int | None:
    """How long its smallest gang would have taken at speed 1.0 for what it held; nothing where that is not known."""
    milli = sum(role.least * (role.share_milli or 1000) * (role.devices if role.parted else role.gpus) for role in kind.roles)
    if not held or not milli or any(role.mig is not None or role.memory_mib is not None for role in kind.roles):
        return None
    return sum(amount * kind.speed(gpu_type) // 1_000_000 for gpu_type, amount in held.items()) // milli


@dataclass(frozen=True, slots=True)
class Stretch:
    """The last hours that are played, and what came in them."""

    hours: int
    begin: datetime
    came: Sequence[Came]


def stretch_of(kinds: Kinds, types: Collection[str], at: datetime, hours: int) -> Stretch | None:
    """Without the idle hours before the first job, which are most of those of a young fleet. None: no job came."""
    came = jobs_came(kinds, at, types, length=timedelta(hours=hours))
    if not came:
        return None
    idle = max(0, (min(one.submitted for one in came) - 1) // HOUR)
    hours -= idle
    return Stretch(hours, at - timedelta(hours=hours), [replace(one, submitted=one.submitted - idle * HOUR) for one in came])

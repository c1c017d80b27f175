"""Who uses what, written down as it changes: the bridge from placements to the ledger and to the capacity timeline (QTA-8).

A service that changes what is held, promised or in service takes the moment first of all (`usage_moment`: it locks the ledger, and its time is the
one to write everywhere), changes what it has to, and then says whom it touched (`usage_follow`). Both records are compared with what is held and
only differences are written, so to name too many is harmless, and what is forgotten is found by the doctor.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from django.db import transaction
from django.db.models import Q

from gpufleet.core.bulk import rows_insert
from gpufleet.core.prepared import Prepared, PreparedUpdate, together
from quotas.chargeback.months import ledger_changed
from quotas.models import LedgerClock, LedgerEntry, Phase
from quotas.services.budgets import budgets_unsettle
from quotas.services.ledger import LATE, Held, by_moment, ledger_follow, ledger_moment, ledger_redecide, ledger_unseen
from scheduler.jobs.stored import least_of, role_named, roles_of
from scheduler.models import USES, Attempt, CapacityEntry, Cluster, Gpu, Health, Job, JobState, Placement, PromisedSeat, UsageStep

EVERY_TYPE = "*"
COLUMNS = tuple(f"{use}_milli" for use in USES)
WAITING = (JobState.QUEUED, JobState.PREEMPTED)
NOTHING: Mapping[int, datetime] = MappingProxyType({})


def usage_moment(*, now: datetime) -> datetime:
    """The moment of all that this transaction does: now, or later where another writer's clock is ahead.

    It comes before any other lock, so that no two writers wait for each other.
    """
    moment = ledger_moment(now=now)
    if moment.first:
        usage_follow(attempts=list(Attempt.objects.filter(ended_at__isnull=True).values_list("pk", flat=True)), at=moment.at)
        timeline_follow(gpus=Gpu.objects.filter(removed_at__isnull=True).values_list("pk", flat=True), at=moment.at)
    elif moment.hour_is_due:
        ledger_redecide(at=moment.at)
    return moment.at


def usage_follow(
    *,
    attempts: Collection[int],
    gpus: Iterable[int] = (),
    at: datetime,
    since: Mapping[int, datetime] = NOTHING,
    gpus_since: Mapping[int, datetime] = NOTHING,
) -> None:
    """Write down what these attempts hold now, and what has become of its GPUs; `gpus` names those that were let go, and further ones.

    `since` and `gpus_since`: attempts that are up or hold nothing, and their GPUs, since a moment before this one (`may_change_from`).
    """
    touched = set(gpus)
    if attempts:
        runs, seats = together(RUNS.asking(attempts), SEATS.asking(attempts))
        ledger_follow(attempts=attempts, held=_held_by(runs, seats), at=at, since=since)
        touched.update(seat["gpu_id"] for seat in seats)
    timeline_follow(gpus=touched, at=at, since=gpus_since)


def may_change_from(
    *, gpus: Mapping[int, Collection[int]], at: datetime, unseen: Mapping[int, datetime] = NOTHING
) -> tuple[dict[int, datetime], datetime]:
    """From when on each of these attempts may have come up, by its GPUs: behind all that was written down of either. And from when on any may have
    ended: what was held before is summed up, whatever its phase was.

    `unseen`: since when nobody could see an attempt. What was summed up of it since is a guess, and is summed up again (`usage_changed`).
    """
    entries, uses, steps = together(SINCE_OF.asking(gpus), SINCE_ON.asking({gpu for held in gpus.values() for gpu in held}), LAST_STEP.asking())
    first = at - LATE
    since = dict(uses)
    found = {attempt: max((min(first, unseen.get(attempt, first)), *(since.get(gpu, at) for gpu in held))) for attempt, held in gpus.items()}
    for attempt, moment in entries:
        found[attempt] = max(found[attempt], moment)
    return found, max((first, *steps))


def usage_changed(*, since: datetime, now: datetime) -> None:
    """What adds up the ledger and keeps the sum adds it up again from this moment on. Past usage (`past`) stays: it decays, and nobody pays by it."""
    ledger_changed(since=since, now=now)
    budgets_unsettle(since=since)


def silence_follow(*, at: datetime) -> None:
    """Tell the ledger which clusters do not answer, after that has changed of any."""
    ledger_unseen(clusters=list(Cluster.objects.filter(silent_since__isnull=False).values_list("name", flat=True)), at=at)


def phase_of(
    *, state: str, running_at: datetime | None, stop_asked_at: datetime | None, leaving_since: datetime | None = None, joining: bool = False
) -> str:
    """In which phase a worker of a run is: the one rule for ledger and timeline."""
    if running_at is None or joining:
        return Phase.STARTING
    is_leaving = state == JobState.CHECKPOINTING or stop_asked_at is not None or leaving_since is not None
    return Phase.STOPPING if is_leaving else Phase.RUNNING


_JOB = ("public_id", "state", "spec", "quota_id", "job_class", "priority", "preemptible", "labels", "cost_centre", "owner__username")
_ATTEMPT = ("id", "number", "started_at", "running_at", "stop_asked_at")
_SEAT = (
    "attempt_id",
    "role",
    "worker",
    "gpu_id",
    "gpu_milli",
    "leaving_since",
    "joining",
    "gpu__public_id",
    "gpu__gpu_type_id",
    "mig__profile",
    "node__name",
    "node__cluster__name",
    "node__pool__name",
)
RUNS: Prepared[dict[str, Any]] = Prepared(
    lambda attempts: Attempt.objects.filter(pk__among=attempts, ended_at__isnull=True).values(*_ATTEMPT, *(f"job__{name}" for name in _JOB))
)
SEATS: Prepared[dict[str, Any]] = Prepared(
    lambda attempts: Placement.objects.filter(attempt__among=attempts, until__isnull=True, gpu__isnull=False).order_by("id").values(*_SEAT)
)
DEVICES = Prepared(
    lambda gpus: Gpu.objects.filter(pk__among=gpus).values_list("pk", "gpu_type_id", "health", "node__health", "removed_at", "created_at")
)
OPEN_ENTRIES = Prepared(lambda gpus: CapacityEntry.objects.filter(gpu__among=gpus, until__isnull=True).values_list("id", "gpu_id", *COLUMNS))
CLOSE_ENTRIES = PreparedUpdate(lambda keys, at: (CapacityEntry.objects.filter(pk__among=keys, until__isnull=True), {"until": at}))
HELD_ON: Prepared[tuple[Any, ...]] = Prepared(
    lambda gpus: Placement.objects.filter(gpu__among=gpus, until__isnull=True).values_list(
        "gpu_id", "gpu_milli", "leaving_since", "joining", "job__state", "attempt__running_at", "attempt__stop_asked_at"
    )
)
PROMISED_ON: Prepared[tuple[int, int]] = Prepared(lambda gpus: PromisedSeat.objects.filter(gpu__among=gpus).values_list("gpu_id", "gpu_milli"))
SINCE_OF: Prepared[tuple[int, datetime]] = Prepared(
    lambda attempts: LedgerEntry.objects.filter(attempt__among=attempts, until__isnull=True).values_list("attempt", "since")
)
SINCE_ON: Prepared[tuple[int, datetime]] = Prepared(
    lambda gpus: CapacityEntry.objects.filter(gpu__among=gpus, until__isnull=True).values_list("gpu_id", "since")
)
# What past usage was summed up to is not looked at again.
LAST_STEP: Prepared[datetime] = Prepared(lambda: UsageStep.objects.order_by("-at").values_list("at", flat=True)[:1])
CLOCK = Prepared[LedgerClock](lambda: LedgerClock.objects.filter(pk=1))


def _held_by(rows: Iterable[dict[str, Any]], seats: Iterable[dict[str, Any]]) -> list[Held]:
    runs = {row["id"]: row for row in rows}
    workers: dict[tuple[int, str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for seat in seats:
        workers[seat["attempt_id"], seat["role"], seat["worker"], seat["gpu__gpu_type_id"]].append(seat)
    surplus = _surplus(workers, runs)
    return [_held(key, seats, runs[key[0]], key[:3] in surplus) for key, seats in workers.items()]


def _tier(seats: list[dict[str, Any]]) -> str:
    """How a worker shares its GPUs: not at all, by MIG, or by thousandths."""
    profile = next((seat["mig__profile"] for seat in seats if seat["mig__profile"]), None)
    if profile is not None:
        return f"mig:{profile}"
    return "whole" if all(seat["gpu_milli"] == 1000 for seat in seats) else "share"


def _held(key: tuple[int, str, int, str], seats: list[dict[str, Any]], run: Mapping[str, Any], surplus: bool) -> Held:
    attempt, role, worker, gpu_type = key
    leaving = next((seat["leaving_since"] for seat in seats if seat["leaving_since"] is not None), None)
    standing = {"state": run["job__state"], "running_at": run["running_at"], "stop_asked_at": run["stop_asked_at"]}
    return Held(
        attempt=attempt,
        job=run["job__public_id"],
        attempt_number=run["number"],
        role=role,
        worker=worker,
        surplus=surplus,
        cluster=seats[0]["node__cluster__name"],
        node=seats[0]["node__name"],
        gpu_type=gpu_type,
        gpu_milli=sum(seat["gpu_milli"] for seat in seats),
        parts=sorted([seat["gpu__public_id"], seat["gpu_milli"], seat["mig__profile"] or ""] for seat in seats),
        tier=_tier(seats),
        pool=f"{seats[0]['node__cluster__name']}/{seats[0]['node__pool__name']}" if seats[0]["node__pool__name"] else "",
        phase=phase_of(**standing, leaving_since=leaving, joining=any(seat["joining"] for seat in seats)),
        quota_id=run["job__quota_id"],
        job_class=run["job__job_class"],
        priority=run["job__priority"],
        preemptible=run["job__preemptible"],
        owner=run["job__owner__username"] or "",
        labels=run["job__labels"],
        stated_cost_centre=run["job__cost_centre"],
        began_at=run["started_at"],
    )


def _surplus(workers: Iterable[tuple[int, str, int, str]], runs: Mapping[int, Mapping[str, Any]]) -> set[tuple[int, str, int]]:
    """Those above the minimum of their role. The lowest indices are the minimum, as they are placed first and kept longest."""
    gangs: dict[tuple[int, str], set[int]] = defaultdict(set)
    for attempt, role, worker, _ in workers:
        gangs[attempt, role].add(worker)
    found: set[tuple[int, str, int]] = set()
    for (attempt, role), indices in gangs.items():
        least = _minimum(runs[attempt]["job__spec"], role)
        if least is not None:
            found.update((attempt, role, worker) for worker in sorted(indices)[least:])
    return found


def _minimum(spec: Mapping[str, Any], role: str) -> int | None:
    """How many workers the minimum of a role has, where the job says so; else all of them."""
    stated = role_named(spec, role)
    return least_of(stated) if stated else None


def timeline_follow(*, gpus: Iterable[int], at: datetime, since: Mapping[int, datetime] = NOTHING) -> int:
    """Make the open entries of these GPUs say what each is good for now, or since a moment before. Returns how many entries began."""
    keys = sorted(set(gpus))
    return _timeline_follow(keys, at, since) if keys else 0


def timeline_review(*, now: datetime) -> int:
    """Once a minute: which types does waiting work ask for? GPUs that stay free are wanted or not by that."""
    with transaction.atomic():
        at = usage_moment(now=now)
        wanted = _wanted_types()
        clock = LedgerClock.objects.get(pk=1)
        if wanted == clock.wanted_types:
            return 0
        LedgerClock.objects.filter(pk=1).update(wanted_types=wanted)
        free = CapacityEntry.objects.filter(Q(blocked_milli__gt=0) | Q(unwanted_milli__gt=0), until__isnull=True)
        return timeline_follow(gpus=list(free.values_list("gpu_id", flat=True)), at=at)


def _wanted_types() -> list[str]:
    found: set[str] = set()
    for spec in Job.objects.filter(state__in=WAITING, held_at__isnull=True).order_by("id").values_list("spec", flat=True).iterator():
        for role in roles_of(spec):
            found.update(role.get("gpu_types") or (EVERY_TYPE,))
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _Device:
    gpu_type: str
    health: tuple[str, str]
    removed_at: datetime | None
    created_at: datetime


def _timeline_follow(keys: list[int], at: datetime, since: Mapping[int, datetime]) -> int:
    rows, held_rows, promised_rows, entries, clocks = together(
        *(question.asking(keys) for question in (DEVICES, HELD_ON, PROMISED_ON, OPEN_ENTRIES)), CLOCK.asking()
    )
    assert clocks, "its moment was taken"
    clock: LedgerClock = clocks[0]
    devices = {key: _Device(gpu_type, (health, above), removed, created) for key, gpu_type, health, above, removed, created in rows}
    held = _held_on(held_rows)
    promised = _promised_on(promised_rows)
    present = {row[1]: row for row in entries}
    known = set(present)
    if new := devices.keys() - known:
        known.update(CapacityEntry.objects.filter(gpu__among=new).values_list("gpu_id", flat=True))
    ended: dict[int, datetime] = {}
    fresh = []
    for key, device in sorted(devices.items()):
        uses = _uses(device, held[key], promised[key], clock.wanted_types) if device.removed_at is None else None
        entry = present.get(key)
        if entry is not None and (uses is None or entry[2:] != uses):
            ended[entry[0]] = since.get(key, at)
        if uses is not None and (entry is None or entry[2:] != uses):
            begin = since.get(key, at) if key in known else min(at, max(device.created_at, clock.began_at))
            fresh.append((key, begin, *uses))
    for until, entries_ended in by_moment(ended).items():
        closed = CLOSE_ENTRIES(entries_ended, until)
        assert closed == len(entries_ended), "an entry was closed by somebody else although the ledger was held"
    rows_insert(CapacityEntry, ("gpu_id", "since", *COLUMNS), fresh)
    return len(fresh)


def _held_on(rows: Iterable[tuple[Any, ...]]) -> dict[int, dict[str, int]]:
    """Thousandths that work holds, by GPU and phase."""
    found: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for gpu, milli, leaving, joining, state, running, asked in rows:
        found[gpu][phase_of(state=state, running_at=running, stop_asked_at=asked, leaving_since=leaving, joining=joining)] += milli
    return found


def _promised_on(rows: Iterable[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for gpu, milli in rows:
        found[gpu] += milli
    return found


def _uses(device: _Device, held: Mapping[str, int], promised: int, wanted: Collection[str]) -> tuple[int, ...]:
    """One GPU divided among the uses. Work that holds it counts as use whatever its health: what runs on a draining node stays."""
    uses = dict.fromkeys(USES, 0)
    uses["starting"] = held.get(Phase.STARTING, 0)
    uses["used"] = held.get(Phase.RUNNING, 0) + held.get(Phase.STOPPING, 0)
    rest = 1000 - uses["starting"] - uses["used"]
    if not set(device.health) <= {Health.HEALTHY, Health.SUSPECT, Health.DRAINING}:
        uses["down"] = rest
    elif Health.DRAINING in device.health:
        uses["draining"] = rest
    else:
        uses["kept"] = min(rest, promised)
        uses["blocked" if device.gpu_type in wanted or EVERY_TYPE in wanted else "unwanted"] = rest - uses["kept"]
    return tuple(uses[use] for use in USES)

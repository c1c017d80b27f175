"""Relief of services over their objective (HLT-10): a job beside one that is the cause gives way, by the plan's own way of evictions.

Whoever reads service levels reports here what each reading says (`reliefs_report`, `reliefs_end`). A tick that plans asks the engine who may give
way, adds that eviction to its plan (`relief_look`, `relief_confirm`), and writes down what came of it in the transaction that carries the plan out
(`relief_write`). So one leader decides, a newer one fences it, and a job that has moved on since the snapshot is left alone.
Nobody gives way by a reading that is not of now, in a cluster that does not answer, or without the fleet-wide rule.

Locks are taken in one order by all three that write here, a round over services, a change of a service level, and a tick that carries its plan out:
jobs (a new row that names one locks it, too, once it is checked), rows of relief by their keys, those of who gave way, the feed, the lease.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from gpufleet.core.bulk import objects_update
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from gpufleet.core.times import millis
from scheduler.engine.model.plan import Decision, Plan
from scheduler.engine.model.reasons import reason
from scheduler.engine.relief import LEAVING, STARTING, Yields, yielding
from scheduler.engine.relief import Relief as Asked
from scheduler.loop.policy import ReliefRule, relief_now
from scheduler.models import ENDED, BesideHow, Job, Placement, Relief, Relieved
from scheduler.services.loop.steps import LOCKED
from scheduler.snapshots import Snapshot

# A reading counts for so long: three rounds. An older one says nothing of now.
FRESH = timedelta(seconds=45)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOBODY: dict[str, Any] = {"next_job": "", "next_at": None, "refused": {}}
HOW = {BesideHow.SHARES: "co-tenant by shared GPUs", BesideHow.CAME: "co-tenant new on its nodes"}
OPEN: Prepared[Relief] = Prepared(
    lambda: Relief.objects.filter(since__isnull=False).exclude(job__state__in=ENDED).order_by("since", "id").select_related("job")
)
CLUSTERS_OF: Prepared[tuple[str, int]] = Prepared(
    lambda jobs: Placement.objects.filter(job__public_id__among=jobs, until__isnull=True).values_list("job__public_id", "node__cluster_id").distinct()
)
NEXT_RETURN: Prepared[datetime | None] = Prepared(
    lambda now: Relieved.objects.filter(until__gt=now).order_by("until").values_list("until", flat=True)[:1]
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What the newest reading says of a service whose breach goes on. `beside`: public ids of the jobs that are the cause; empty: another cause."""

    job_id: int
    figure: str
    latency_ms: float
    objective_ms: int
    beside: tuple[str, ...] = ()
    how: str = BesideHow.SHARES


def reliefs_report(*, reports: Sequence[Report], over: Collection[int] = (), now: datetime) -> bool:
    """Take up what was read of services in a breach, in the caller's transaction. The time of a breach counts while co-tenants are its cause; of the
    jobs `over` it has ended. As many queries however many there are.

    Returns whether the caller has to ask for a plan, as its last write. It writes no row that names a job for the first time behind this.
    """
    if not reports and not over:
        return False
    rule = relief_now()
    told = {one.job_id: one if rule is not None else replace(one, beside=()) for one in reports}
    if rule is not None:
        there = set(Relief.objects.filter(job__among=sorted(told)).values_list("job_id", flat=True))
        new = [Relief(job_id=job, read_at=now, **_read(one)) for job, one in sorted(told.items()) if job not in there]
        if new:
            Relief.objects.bulk_create(new, ignore_conflicts=True)
    if connection.vendor == "postgresql":
        connection.check_constraints()  # what the caller wrote names jobs: they are locked now, and not by the commit
    rows = list(Relief.objects.select_for_update().filter(job__among=sorted({*told, *over})).order_by("pk"))
    wanted = _end([row for row in rows if row.job_id in over], now)
    going_on = [row for row in rows if row.job_id in told and row.job_id not in over]
    for row in going_on:
        one = told[row.job_id]
        before = (row.since is None, row.beside, row.how)
        row.since = (row.since or now) if one.beside else None
        row.read_at, row.beside, row.how = now, sorted(one.beside), one.how
        for name, value in (_read(one) | ({} if (row.since is None, row.beside, row.how) == before else NOBODY)).items():
            setattr(row, name, value)
        is_due = rule is not None and row.since is not None and _due(row, rule) <= now
        wanted = wanted or is_due or (row.since is None, row.beside, row.how) != before
    objects_update(going_on, ("since", "read_at", "figure", "latency_ms", "objective_ms", "beside", "how", *NOBODY))
    return wanted


def _read(one: Report) -> dict[str, Any]:
    return {"figure": one.figure, "latency_ms": one.latency_ms, "objective_ms": one.objective_ms}


def reliefs_end(*, jobs: Collection[int], now: datetime) -> bool:
    """Their breaches are over, or are judged anew, in the caller's transaction. Jobs that gave way stay away for a while yet.

    Returns whether the caller has to ask for a plan, as its last write.
    """
    return _end(list(Relief.objects.select_for_update().filter(job__among=sorted(jobs)).order_by("pk")), now) if jobs else False


def _end(rows: Sequence[Relief], now: datetime) -> bool:
    if not rows:
        return False
    for row in rows:
        row.since, row.beside = None, []
        for name, value in NOBODY.items():
            setattr(row, name, value)
    objects_update(rows, ("since", "beside", *NOBODY))
    apart = (relief_now() or ReliefRule()).apart
    Relieved.objects.filter(service__among=sorted(row.job_id for row in rows), until__isnull=True).update(until=now + apart)
    return True


def return_next(*, now: datetime) -> datetime | None:
    """When the next of those that gave way may come back: a plan is due then."""
    return next(iter(NEXT_RETURN(now)), None)


# In a tick


@dataclass(frozen=True, slots=True)
class Look:
    """What a plan is to do for services, and what it tells of the next eviction of each."""

    found: tuple[tuple[Relief, Yields], ...] = ()
    decisions: tuple[Decision, ...] = ()

    def with_it(self, plan: Plan) -> Plan:
        return replace(plan, decisions=(*plan.decisions, *self.decisions)) if self.decisions else plan


NOTHING = Look()


def relief_look(*, snapshot: Snapshot, plan: Plan, silent: Collection[int], now: datetime) -> Look:
    """Who gives way by this plan, and who will. What is wrong with it keeps nobody from being scheduled: then nobody gives way."""
    rule = snapshot.relief
    try:
        rows = list(OPEN()) if rule is not None else []
        return _look(rows, rule, snapshot, plan, silent, now) if rule is not None and rows else NOTHING
    except Exception:
        log.exception("No service could be relieved. Nothing was evicted for one.")
        return NOTHING


def _look(rows: list[Relief], rule: ReliefRule, snapshot: Snapshot, plan: Plan, silent: Collection[int], now: datetime) -> Look:
    if not any(_is_asked(row, rule, now) for row in rows):
        return NOTHING
    named = sorted({*(row.job.public_id for row in rows), *(name for row in rows for name in row.beside)})
    unseen = {name for name, cluster in CLUSTERS_OF(named) if cluster in silent} if silent else set()
    answers = yielding(snapshot.scenario, [_asked(row, rule, unseen, now) for row in rows], plan.decisions)
    found = tuple(zip(rows, answers, strict=True))
    return Look(found, tuple(_decision(row, one, snapshot, now) for row, one in found if one.goes))


def _is_asked(row: Relief, rule: ReliefRule, now: datetime) -> bool:
    """Whether the engine has to look: somebody may go now, or what was told of who goes next is not so any more. Else that stays."""
    soon = {LEAVING, STARTING} & set(row.refused.values())
    is_told = (bool(row.refused) and not soon) or bool(row.next_job)
    return bool(row.beside) and (not is_told or (_due(row, rule) <= now and _counts(row, now)))


def _counts(row: Relief, now: datetime) -> bool:
    return timedelta(0) <= now - row.read_at <= FRESH and row.latency_ms > row.objective_ms


def _asked(row: Relief, rule: ReliefRule, unseen: Collection[str], now: datetime) -> Asked:
    """By a reading that does not count nobody gives way in this plan; who would be next is told all the same."""
    silent = frozenset(row.beside) if row.job.public_id in unseen else frozenset(row.beside) & frozenset(unseen)
    return Asked(row.job.public_id, tuple(row.beside), millis(_due(row, rule)), silent, _counts(row, now))


def _due(row: Relief, rule: ReliefRule) -> datetime:
    assert row.since is not None, "its breach goes on"
    due = row.since + rule.after
    return due if row.evicted_at is None else max(due, row.evicted_at + rule.every)


def _decision(row: Relief, answer: Yields, snapshot: Snapshot, now: datetime) -> Decision:
    """Its reason is read by teams that may not see the service, so it names no more of that than its id, which is left out for them."""
    assert row.since is not None, "its breach goes on"
    grace = next(job.kind.grace_ms for job in snapshot.scenario.jobs if job.name == answer.job)
    breach = f"latency {row.latency_ms:,.0f} ms over {row.objective_ms:,} ms for {(now - row.since) // timedelta(minutes=1)} min"
    detail = f"evicted for {row.job.public_id}, a service: {breach}, {HOW[BesideHow(row.how)]}"
    return Decision("evict", reason("relief", detail), answer.job, row.job.public_id, grace_ms=grace)


def relief_confirm(*, look: Look, plan: Plan) -> Look:
    """What still holds of it, in the transaction that carries the plan out: a service level that was changed meanwhile is judged anew.

    Jobs are locked first, as everywhere: those of the plan, and the services, of which `relief_write` makes rows. Whoever changes a service level
    holds its job.
    """
    if not look.found:
        return look
    names = {decision.job for decision in (*plan.decisions, *look.decisions) if decision.job is not None} | {one.service for _, one in look.found}
    list(LOCKED(sorted(Job.objects.filter(public_id__in=names).values_list("pk", flat=True))))
    fresh = {row.pk: row for row in Relief.objects.select_for_update().filter(pk__in=[row.pk for row, _ in look.found]).order_by("pk")}
    found = tuple((fresh[row.pk], one) for row, one in look.found if row.pk in fresh and _is_same(row, fresh[row.pk]))
    holds = {(one.service, one.job) for row, one in found if row.latency_ms > row.objective_ms and one.job in row.beside}
    return Look(found, tuple(one for one in look.decisions if (one.for_job, one.job) in holds))


def _is_same(before: Relief, row: Relief) -> bool:
    return all(getattr(before, name) == getattr(row, name) for name in ("since", "objective_ms", "evicted_at", "beside", "how"))


def relief_write(*, look: Look, done: Iterable[Decision], plan_id: int | None, news: News, now: datetime) -> None:
    """Write down who was evicted and who will be next, in the transaction that carries the plan out."""
    evicted = {decision.job for decision in done if decision.why.code == "relief" and decision.job is not None}
    keys = dict(Job.objects.filter(public_id__in=evicted).values_list("public_id", "pk")) if evicted else {}
    for row, answer in look.found:
        gone = [name for name in sorted(keys) if name in row.beside]
        for name in gone:  # also for a service that was not the reason: the job stood beside both, and comes back to neither
            _remember(row, keys[name], answer.lost if answer.job == name else 0, plan_id, now)
        # What comes after an eviction, the plan behind it tells.
        then = NOBODY | {"evicted_at": now} if gone else _next(answer)
        if any(getattr(row, name) != value for name, value in then.items()) and Relief.objects.filter(pk=row.pk, since=row.since).update(**then):
            news.add("jobs", row.job_id)


def _next(answer: Yields) -> dict[str, Any]:
    at = EPOCH + timedelta(milliseconds=answer.at) if answer.job is not None else None
    return {"next_job": answer.job or "", "next_at": at, "refused": dict(answer.refused)}


def _remember(row: Relief, job: int, lost: int, plan_id: int | None, now: datetime) -> None:
    Relieved.objects.filter(service=row.job_id, job=job, until__isnull=True).update(until=now)
    facts = {name: getattr(row, name) for name in ("figure", "latency_ms", "objective_ms", "how")}
    Relieved.objects.create(service_id=row.job_id, job_id=job, at=now, lost_gpu_seconds=lost // 1000, plan=plan_id, **facts)

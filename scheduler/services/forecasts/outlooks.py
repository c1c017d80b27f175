"""What waiting jobs are told: all that blocks each, and when it is expected to start."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from quotas.selectors.budgets import stopped_above, stops_now
from scheduler.engine.model.plan import Waiting
from scheduler.jobs.waiting import DEFERRED_FOR, wait_kind
from scheduler.models import ENDED, Dependency, Job, JobState, Outlook
from scheduler.selectors.foreseen import late_since
from scheduler.services.jobs.waits import waits_follow
from scheduler.snapshots import Snapshot
from scheduler.snapshots.jobs import barred_quotas, due_filter

WAITING = (JobState.QUEUED, JobState.PREEMPTED)
EVERY_JOB = Q()
BATCH = 500
FORECAST = ("predicted_start", "earliest_start", "latest_start", "late_since", "would_start_if", "forecast_at")
TOLD_BEFORE: Prepared[tuple[int, datetime | None, datetime | None]] = Prepared(
    lambda jobs: Outlook.objects.filter(job__among=jobs).values_list("job_id", "predicted_start", "late_since")
)
ALIVE: Prepared[int] = Prepared(lambda jobs: Job.objects.filter(pk__among=jobs).values_list("pk", flat=True))


class Start(NamedTuple):
    """When a job is expected to start, and in which range."""

    earliest: datetime
    at: datetime
    latest: datetime


class Told(NamedTuple):
    """What a waiting job is told: all that blocks it, when it is expected to start, and what would help."""

    reasons: list[dict[str, Any]]
    start: Start | None = None
    change: dict[str, Any] | None = None


def outlooks_write(*, told: Mapping[int, Told], now: datetime, forecast: bool, forget: bool = False, news: News | None = None) -> None:
    """Write what jobs are told; of their starts only in a forecast. `forget`: what was foreseen of them before holds no longer."""
    own = news or News()
    fields = ["at", "reasons", "codes", *(FORECAST if forecast or forget else [])]
    with transaction.atomic():
        # A job may be gone by now: it was deleted, or a test's transaction was rolled back.
        alive = set(ALIVE(told))
        before = {job: (due, late) for job, due, late in TOLD_BEFORE(told)} if forecast else {}
        rows = [
            Outlook(
                job_id=key,
                at=now,
                reasons=one.reasons,
                codes=codes_of(one.reasons),
                predicted_start=one.start and one.start.at,
                earliest_start=one.start and one.start.earliest,
                latest_start=one.start and one.start.latest,
                late_since=_late_since(before.get(key), one.start, now),
                would_start_if=one.change,
                forecast_at=now if forecast else None,
            )
            for key, one in told.items()
            if key in alive
        ]
        Outlook.objects.bulk_create(rows, batch_size=BATCH, update_conflicts=True, unique_fields=["job"], update_fields=fields)
        waits_follow(kinds={row.job_id: wait_kind(row.reasons) for row in rows}, now=now)
        if rows:
            own.add("jobs", *(row.job_id for row in rows))
        if news is None:
            own.publish()


def _late_since(before: tuple[datetime | None, datetime | None] | None, start: Start | None, now: datetime) -> datetime | None:
    due, late = before or (None, None)
    return late_since(due=due, before=late, start=start and start.at, now=now)


def codes_of(reasons: Iterable[Mapping[str, Any]]) -> str:
    """The codes of some reasons as they are looked for."""
    return f" {' '.join(sorted({str(one['code']) for one in reasons}))} "


def told_by(waiting: Iterable[Waiting], snapshot: Snapshot) -> dict[int, Told]:
    """A plan's waiting list by job, but for the starts."""
    found: dict[int, Told] = {}
    spelt: dict[int, list[dict[str, Any]]] = {}
    for one in waiting:
        row = snapshot.jobs.get(one.job)
        if row is None:
            continue
        reasons = spelt.get(id(one.reasons))  # many jobs share one tuple of reasons
        if reasons is None:
            reasons = spelt[id(one.reasons)] = [each.as_json() for each in one.reasons]
        change = None if one.would_start_if is None else {"change": one.would_start_if[0], "to": one.would_start_if[1]}
        found[row.id] = Told(reasons, change=change)
    return found


def told_left_out(snapshot: Snapshot) -> dict[int, Told]:
    """Waiting jobs that the engine was not shown as something about them is wrong: nobody but an operator can help them."""
    waiting = [one for one in snapshot.left_out.values() if one.state in WAITING]
    return {one.id: Told([{"code": "aside", "detail": f"left out of every plan: {one.why}"}]) for one in waiting}


def outlook_now(job: Job, known: Outlook | None, *, now: datetime) -> Outlook | None:
    """What a waiting job was told last. One that the engine is not shown is told by forecasts alone: before the first, what keeps it back now."""
    if known is not None or job.state not in WAITING:
        return known
    told = told_undue(now=now, among=Q(pk=job.pk)).get(job.pk)
    return None if told is None else Outlook(job=job, at=now, reasons=told.reasons, codes=codes_of(told.reasons))


def told_undue(*, now: datetime, among: Q = EVERY_JOB) -> dict[int, Told]:
    """Waiting jobs that the engine is not shown, and why: held by a person, not due, or behind another job."""
    stops = stops_now()
    barred = Q(quota__in=barred_quotas()) if stops else Q(pk__in=[])
    rows = Job.objects.filter(among, state__in=WAITING).filter(~due_filter(now) | barred).order_by("id")
    behind = Exists(Dependency.objects.filter(Q(on__state__in=ENDED, if_completed=False) | ~Q(on__state__in=ENDED), job=OuterRef("pk")))
    found: dict[int, Told] = {}
    columns = ("id", "held_at", "not_before", "retry_at", "waits", "quota__path", "defer", "deferred_to", "deferral")
    for key, held, not_before, retry_at, waits, path, by, until, figures in rows.annotate(waits=behind).values_list(*columns):
        reasons = []
        if (stop := stopped_above(path, stops)) is not None:
            detail = f"the budget {stop.budget} of {stop.path} is used up; no new job starts there"
            reasons.append({"code": "budget", "detail": detail, "budget": stop.budget, "quota": stop.path})
        if held is not None:
            reasons.append({"code": "hold", "detail": "a person holds it back"})
        if not_before is not None and not_before > now:
            reasons.append({"code": "held", "detail": f"not before {not_before:%Y-%m-%d %H:%M:%S} UTC", "until": not_before.isoformat()})
        if retry_at is not None and retry_at > now:
            reasons.append({"code": "retry", "detail": f"tried again at {retry_at:%Y-%m-%d %H:%M:%S} UTC", "until": retry_at.isoformat()})
        if (deferred := deferred_reason(by, until, figures, now)) is not None:
            reasons.append(deferred)
        if waits:
            reasons.append({"code": "dependency", "detail": f"waits for {', '.join(_ahead_of(key))}"})
        found[key] = Told(reasons)
    return found


def deferred_reason(by: str | None, until: datetime | None, figures: Mapping[str, Any] | None, now: datetime) -> dict[str, Any] | None:
    """Of a job that is deferred, or whose hour is to be chosen."""
    if until is not None and until > now:
        words = f"until {until:%Y-%m-%d %H:%M:%S} UTC for {DEFERRED_FOR.get(by or '', 'a better hour')}"
        return {"code": "deferred", "detail": f"deferred {words}", "until": until.isoformat()}
    if by is not None and until is None and figures is None:
        return {"code": "deferred", "detail": "its hour is chosen once nothing else holds it back"}
    return None


def _ahead_of(job: int) -> list[str]:
    rows = Dependency.objects.filter(job=job).exclude(on__state=JobState.COMPLETED).order_by("id")
    return list(rows.values_list("on__public_id", flat=True)[:4])

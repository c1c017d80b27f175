"""What time brings about for windows: those that come again are written down, what is in the way of one is asked to leave, what nobody claims is
released, and usage changes its class when a window starts or ends. Doing it again changes nothing.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, together
from quotas.models import LedgerClock, Reservation, ReservationState, Window
from quotas.services.ledger import ledger_moment, ledger_redecide
from scheduler.engine.model.values import Settings
from scheduler.jobs.stored import accepts
from scheduler.models import HOLDING, Job, JobState
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.runs import Stop, attempts_stop, grace_of
from scheduler.services.windows.reservations import reservation_stepped, windows_write
from scheduler.snapshots import Snapshots
from scheduler.windows.clearing import Clearing, clearing_of

MOST_AHEAD = timedelta(days=1)  # no notice is longer
SOONER = timedelta(days=7)  # what is written down is renewed so long before it runs out
RELEASED = "Nobody claimed it"

LIVE = Window.objects.filter(released_at__isnull=True)
COMING: Prepared[Any] = Prepared(
    lambda now, until: (
        LIVE.filter(starts_at__gt=now, starts_at__lte=until, cleared_at__isnull=True)
        .order_by("starts_at", "id")
        .values_list("id", "starts_at", "reservation__notice_s")
    )
)
CLAIMABLE: Prepared[Any] = Prepared(
    lambda now: (
        LIVE.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now), starts_at__lte=now, reservation__decay_s__isnull=False, claimed_at__isnull=True)
        .order_by("id")
        .values_list("id", "starts_at", "reservation__decay_s")
    )
)
RUNS_OUT: Prepared[int] = Prepared(
    lambda until: (
        Reservation.objects.filter(state=ReservationState.APPROVED, expanded_to__lte=until)
        .exclude(rule="")
        .order_by("id")
        .values_list("id", flat=True)
    )
)
DECIDED: Prepared[datetime] = Prepared(lambda: LedgerClock.objects.filter(pk=1).values_list("decided_at", flat=True))
EDGES: Prepared[int] = Prepared(
    lambda since, now: Window.objects.filter(Q(starts_at__gt=since, starts_at__lte=now) | Q(ends_at__gt=since, ends_at__lte=now)).values_list(
        "id", flat=True
    )[:1]
)


def windows_turn(*, now: datetime, snapshots: Snapshots, settings: Settings, start_timeout: timedelta) -> int:
    """Everything that is due. Returns how many windows and reservations it touched."""
    coming, claimable, runs_out, decided = together(
        COMING.asking(now, now + MOST_AHEAD), CLAIMABLE.asking(now), RUNS_OUT.asking(now + SOONER), DECIDED.asking()
    )
    done = 0
    for key in runs_out:
        done += _write_ahead(key, now)
    due = [key for key, starts, notice in coming if starts - timedelta(seconds=notice) <= now]
    for key in due:
        done += window_clear(key=key, now=now, snapshots=snapshots, settings=settings, start_timeout=start_timeout)
    for key, starts, decay in claimable:
        done += _claimed_or_released(key, starts + timedelta(seconds=decay), now)
    if decided and EDGES(decided[0], now):
        with transaction.atomic():
            ledger_redecide(at=ledger_moment(now=now).at)
            lease_want()
        done += 1
    return done


def windows_next(*, now: datetime) -> datetime | None:
    """When the next of them is due."""
    coming, claimable = together(COMING.asking(now, now + MOST_AHEAD), CLAIMABLE.asking(now))
    times = [starts - timedelta(seconds=notice) for _, starts, notice in coming] + [starts for _, starts, _ in coming]
    times += [starts + timedelta(seconds=decay) for _, starts, decay in claimable]
    times += list(Window.objects.filter(ends_at__gt=now, released_at__isnull=True).order_by("ends_at").values_list("ends_at", flat=True)[:1])
    return min((at for at in times if at > now), default=None)


def _write_ahead(key: int, now: datetime) -> int:
    with transaction.atomic():
        found = Reservation.objects.select_for_update().filter(pk=key, state=ReservationState.APPROVED, expanded_to__lte=now + SOONER).first()
        if found is None:
            return 0
        windows_write(found, now)
        _tell(key)
    return 1


def window_clear(*, key: int, now: datetime, snapshots: Snapshots, settings: Settings, start_timeout: timedelta) -> int:
    """Ask the jobs that are in its way to save their work and leave, as its notice says. They wait again, and keep their place in the queue."""
    window = Window.objects.select_related("reservation__quota").filter(pk=key, cleared_at__isnull=True).first()
    if window is None:
        return 0
    clearing = clearing_now(window, now=now, snapshots=snapshots, settings=settings, start_timeout=start_timeout)
    names = [leaver.job for leaver in clearing.leavers] if clearing is not None else []
    notice = window.reservation.notice_s
    jobs = [job for job in Job.objects.filter(public_id__in=names, state__in=HOLDING).order_by("public_id") if grace_of(job) <= notice]
    reservation = window.reservation
    cause = f"{reservation.public_id} ({reservation.name}) starts at {window.starts_at:%H:%M} UTC and needs its GPUs."
    news = News()
    with transaction.atomic():
        # Jobs are locked before the window and the feed.
        attempts_stop(stops=[Stop(job.pk, JobState.PREEMPTED, "preempted", cause) for job in jobs], now=now, news=news, want=False)
        missing = clearing.missing if clearing is not None else 0
        asked = [job.public_id for job in jobs]
        Window.objects.filter(pk=key).update(cleared_at=now, leaving=asked, missing_milli=missing)
        if asked or missing:
            facts = {"window": window.name, "leaving": asked, "missing_milli": missing}
            audit_record(
                actor=SYSTEM, action="reservation.clear", kind="reservation", object_id=reservation.public_id, quota=reservation.quota, after=facts
            )
            reservation_stepped.send(Reservation, reservation=reservation, action="reservation.clear", actor=SYSTEM, facts=facts, now=now)
        news.add("reservations", reservation.pk)
        news.publish()
        lease_want()
    return 1


def clearing_now(window: Window, *, now: datetime, snapshots: Snapshots, settings: Settings, start_timeout: timedelta) -> Clearing | None:
    """Who must leave for a window, on the fleet as it is. None: it holds nothing there."""
    snapshot = snapshots.take(settings=settings, now=now, start_timeout=start_timeout)
    mine = [one for one in snapshot.scenario.windows if one.name.partition("/")[0] == window.name]
    return clearing_of(snapshot.scenario, mine, snapshots.kinds) if mine else None


def _claimed_or_released(key: int, until: datetime, now: datetime) -> int:
    """Claimed by the first job that may use it and runs on its type; released where none came until some time after its start."""
    window = Window.objects.select_related("reservation__quota").get(pk=key)
    claimed = _claims(window, until)
    if claimed:
        return Window.objects.filter(pk=key, claimed_at__isnull=True).update(claimed_at=now)
    if now < until:
        return 0
    reservation = window.reservation
    with transaction.atomic():
        at = ledger_moment(now=now).at
        if not Window.objects.filter(pk=key, released_at__isnull=True).update(released_at=now):
            return 0
        ledger_redecide(at=at)
        facts = {"window": window.name, "after_s": reservation.decay_s}
        audit_record(
            actor=SYSTEM,
            action="reservation.release",
            kind="reservation",
            object_id=reservation.public_id,
            quota=reservation.quota,
            after=facts,
            reason=RELEASED,
        )
        reservation_stepped.send(Reservation, reservation=reservation, action="reservation.release", actor=SYSTEM, facts=facts, now=now)
        _tell(reservation.pk)
    return 1


def _claims(window: Window, until: datetime) -> bool:
    """Whether a job that may use it had come by then, and had not ended before its start."""
    reservation = window.reservation
    jobs = Job.objects.filter(submitted_at__lt=until).filter(Q(ended_at__isnull=True) | Q(ended_at__gt=window.starts_at))
    jobs = jobs.exclude(state=JobState.DRAFT).filter(held_at__isnull=True).filter(Q(not_before__isnull=True) | Q(not_before__lt=until))
    jobs = jobs.filter(Q(deferred_to__isnull=True) | Q(deferred_to__lt=until))
    if reservation.quota is not None:
        jobs = jobs.filter(Q(quota=reservation.quota) | Q(quota__path__startswith=f"{reservation.quota.path}/"))
    else:
        jobs = jobs.filter(job_class=reservation.job_class)
    return any(accepts(spec, reservation.gpu_type) for spec in jobs.order_by("-submitted_at").values_list("spec", flat=True)[:1000])


def _tell(key: int) -> None:
    news = News()
    news.add("reservations", key)
    news.publish()
    lease_want()

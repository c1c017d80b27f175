"""Reservations: requested, approved, denied, changed, cancelled, put back, and windows that end early.

An approved reservation has its windows written down some time ahead; the engine, the ledger and the calendar read those. One writer at a time checks
what fits and writes: two requests for the last GPUs can't both be approved.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Q
from django.dispatch import Signal

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.faults import Conflict
from gpufleet.core.ids import public_id
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from quotas.models import Reservation, ReservationState, Window
from quotas.permissions import Access
from quotas.services.ledger import ledger_held, ledger_redecide
from quotas.services.nodes import lock_tree
from scheduler.selectors.windows import may_ask_on, may_decide_on, must_steer_reservation
from scheduler.services.jobs.revisions import row_locked
from scheduler.services.jobs.steering import reason_given
from scheduler.services.loop.lease import lease_want
from scheduler.services.windows.drawing import reservation_draw

# Windows that recur are written down so far ahead; the engine looks two weeks ahead.
WRITTEN_AHEAD = timedelta(days=28)
FOR_EVER = timedelta(days=36_500)
FACTS = (
    *("name", "job_class", "gpu_type", "shape", "gpus_milli", "nodes", "level", "zone", "starts_at", "ends_at", "rule"),
    *("notice_s", "lead_s", "decay_s", "idle", "purpose", "state", "decided_name", "decided_at", "decision"),
)
MOMENTS = ("starts_at", "ends_at", "decided_at")
UNDO_FOR = timedelta(minutes=15)  # so long an approval comes back by itself
# Sent in the transaction of a step of a reservation or one of its windows, by people or by the clock: `reservation`, `action` as in the audit log,
# `actor`, `facts` and `now`; `before`, the facts that were replaced, where there were any.
reservation_stepped = Signal()
UNDONE = ("reservation.change", "reservation.cancel", "reservation.end_window")


def reservation_request(*, access: Access, given: Mapping[str, Any], now: datetime, approve: bool = True) -> Reservation:
    """Ask for one. Who may approve it has it approved at once, unless `approve` is false. Every fault is told at its field."""
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        drawn = reservation_draw(access=access, given=given, now=now)
        found = drawn.reservation
        named = not {"quota", "job_class"} & drawn.faults.keys()
        if named and not (may_ask_on(access, found.quota) or may_decide_on(access, found.quota)):
            raise PermissionDenied("Team leads and quota admins of this subtree may do this.")
        if drawn.faults:
            raise ValidationError(drawn.faults)
        found.public_id, found.requested_by, found.requested_at = public_id("r"), access.actor.user, now
        decided = approve and may_decide_on(access, found.quota)
        if decided:
            found.state, found.decided_name, found.decided_at = ReservationState.APPROVED, access.actor.name, now
        found.save(force_insert=True)
        if decided:
            windows_write(found, now)
            _ledger_follows(at)
        _record(access, "reservation.request", found, now, after=reservation_facts(found), reason=str(given.get("reason") or ""))
        _tell(found)
    return found


def reservation_decide(
    *, access: Access, reservation: Reservation, approve: bool, reason: str = "", revision: int | None = None, now: datetime
) -> Reservation:
    """Approve or deny a request. What no longer fits is refused with the numbers."""
    cause = reason_given(reason, "")
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        found = _locked(reservation, revision)
        if not may_decide_on(access, found.quota):
            raise PermissionDenied("Quota admins of the node above decide this.")
        if found.state != ReservationState.REQUESTED:
            raise Conflict(f"{found.public_id} is not pending: it is {found.get_state_display().lower()}.")
        if approve:
            _still_fits_or_raise(access, found, {}, now)
        before = reservation_facts(found)
        found.state = ReservationState.APPROVED if approve else ReservationState.DENIED
        found.decided_name, found.decided_at, found.decision = access.actor.name, now, cause
        _save(found)
        if approve:
            windows_write(found, now)
            _ledger_follows(at)
        _record(access, "reservation.approve" if approve else "reservation.deny", found, now, before, reservation_facts(found), cause)
        _tell(found)
    return found


def reservation_change(
    *, access: Access, reservation: Reservation, given: Mapping[str, Any], revision: int | None = None, now: datetime
) -> Reservation:
    """Change what is given. A change by somebody who may not approve it is pending again, and holds nothing until it is approved."""
    must_steer_reservation(access, reservation)
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        found = _locked(reservation, revision)
        must_steer_reservation(access, found)
        if found.state in (ReservationState.DENIED, ReservationState.CANCELLED):
            raise Conflict(f"{found.public_id} is {found.get_state_display().lower()}; request a new one.")
        before, words = reservation_facts(found), {"name", "purpose", "reason"}
        _still_fits_or_raise(access, found, given, now)
        if given.keys() - words and not may_decide_on(access, found.quota):
            found.state, found.decided_name, found.decided_at = ReservationState.REQUESTED, "", None
        _save(found)
        windows_write(found, now)
        _ledger_follows(at)
        _record(access, "reservation.change", found, now, before, reservation_facts(found), str(given.get("reason") or ""))
        _tell(found)
    return found


def reservation_undo(*, access: Access, reservation: Reservation, reason: str = "", revision: int | None, now: datetime) -> Reservation:
    """Put back what the caller's own last change or cancellation replaced, its approval included. `revision` is the one that this left.

    The former values come from the audit log, so a caller cannot have approved what nobody approved. An approval comes back for a while only,
    unless the caller may give it himself: behind that it is requested anew.
    """
    cause = reason_given(reason, "")
    must_steer_reservation(access, reservation)
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        found = _locked(reservation, None)
        must_steer_reservation(access, found)
        last = AuditEntry.objects.filter(object_kind="reservation", object_id=found.public_id).order_by("-id").first()
        is_own = last is not None and access.actor.user is not None and last.actor_id == access.actor.user.pk
        if last is None or not is_own or last.action not in UNDONE or not last.before or revision != found.revision:
            whose = f" by {last.actor_name}" if last is not None and not is_own else ""
            raise Conflict(f"{found.name} has been changed since{whose}. It stays as it is.")
        before = reservation_facts(found)
        for name, value in (last.before or {}).items():
            setattr(found, name, datetime.fromisoformat(value) if name in MOMENTS and value is not None else value)
        if found.state == ReservationState.APPROVED and now - last.at > UNDO_FOR and not may_decide_on(access, found.quota):
            found.state, found.decided_name, found.decided_at = ReservationState.REQUESTED, "", None
        _still_fits_or_raise(access, found, {}, now)
        _save(found)
        windows_write(found, now)
        _ledger_follows(at)
        _record(access, "reservation.change", found, now, before, reservation_facts(found), cause)
        _tell(found)
    return found


def reservation_cancel(*, access: Access, reservation: Reservation, reason: str = "", revision: int | None = None, now: datetime) -> Reservation:
    """Give it back: a window that lasts ends now, and none follows. Jobs that run on it go on as borrowers."""
    cause = reason_given(reason, "")
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        found = _locked(reservation, revision)
        must_steer_reservation(access, found)
        if found.state in (ReservationState.DENIED, ReservationState.CANCELLED):
            raise Conflict(f"{found.public_id} is {found.get_state_display().lower()} already.")
        before = reservation_facts(found)
        found.state, found.decision = ReservationState.CANCELLED, cause
        if found.decided_at is None:
            found.decided_name, found.decided_at = access.actor.name, now
        _save(found)
        windows_write(found, now)
        _ledger_follows(at)
        _record(access, "reservation.cancel", found, now, before, reservation_facts(found), cause)
        _tell(found)
    return found


def window_end(*, access: Access, reservation: Reservation, reason: str = "", revision: int | None = None, now: datetime) -> Reservation:
    """End the window that lasts now. Those that follow stay. Of a reservation with one window it can be undone: the rest of it comes back."""
    cause = reason_given(reason, "")
    with transaction.atomic():
        at = ledger_held(now=now)
        lock_tree()
        found = _locked(reservation, revision)
        must_steer_reservation(access, found)
        if not found.rule and now <= found.starts_at:
            raise Conflict(f"{found.public_id} has not begun yet. Cancel it instead.")
        lasting = found.windows.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now), starts_at__lt=now, released_at__isnull=True)
        if not lasting.update(ends_at=now, ended_early=bool(found.rule)):
            raise Conflict(f"No window of {found.public_id} lasts now.")
        ended_at = found.ends_at
        if not found.rule:
            found.ends_at = now
        _save(found)
        _ledger_follows(at)
        before = None if found.rule else {"ends_at": ended_at.isoformat() if ended_at is not None else None}
        _record(access, "reservation.end_window", found, now, before, {"ended_at": now.isoformat()}, cause)
        _tell(found)
    return found


def windows_write(found: Reservation, now: datetime) -> None:
    """Write down its windows that have not ended, and take away those it has no longer. What is over stays as it was.

    A window whose hold ended before its own end, as while a change was pending, goes on in a row of its own that starts now.
    """
    wanted = {}
    until = now + WRITTEN_AHEAD
    if found.state == ReservationState.APPROVED:
        until = until if found.rule else now + FOR_EVER
        wanted = dict(found.times.between(now, until))
    # In order: an end that was changed is no window of its own.
    for row in list(found.windows.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now)).order_by("starts_at")):
        key = _window_of(row, wanted, now)
        end = wanted.pop(key) if key is not None else row.starts_at
        if row.ended_early:  # a moment ago, after the `now` of whoever writes ahead: it stays ended
            continue
        if end != row.starts_at:
            if end != row.ends_at:
                found.windows.filter(pk=row.pk).update(ends_at=end)
        elif row.starts_at > now:
            row.delete()
        else:
            found.windows.filter(pk=row.pk).update(ends_at=now)
    last: dict[datetime, Window] = {}
    for row in found.windows.filter(starts_at__gte=min(wanted), starts_at__lte=now).order_by("starts_at") if wanted else ():
        if (key := _window_of(row, wanted, now)) is not None:
            last[key] = row
    made = []
    for start, end in wanted.items():
        ended = last.get(start)
        if ended is None:
            made.append(Window(reservation=found, starts_at=start, ends_at=end))
        elif ended.ended_early or ended.released_at is not None:
            continue
        elif ended.starts_at == now:
            found.windows.filter(pk=ended.pk).update(ends_at=end)
        else:
            made.append(Window(reservation=found, starts_at=now, ends_at=end))
    Window.objects.bulk_create(made)
    Reservation.objects.filter(pk=found.pk).update(expanded_to=until)


def _window_of(row: Window, wanted: Mapping[datetime, datetime | None], now: datetime) -> datetime | None:
    """The start of the wanted window whose row it is: its own, or where it has begun, that of the window that it goes on with."""
    if row.starts_at in wanted:
        return row.starts_at
    if row.starts_at > now:
        return None
    return next((start for start, end in wanted.items() if start <= row.starts_at and (end is None or row.starts_at < end)), None)


def reservation_facts(found: Reservation) -> dict[str, Any]:
    facts = {name: getattr(found, name) for name in FACTS}
    moments = {name: value.isoformat() if value is not None else None for name, value in facts.items() if name in MOMENTS}
    return facts | moments | {"quota": found.quota.path if found.quota is not None else None}


def _still_fits_or_raise(access: Access, found: Reservation, given: Mapping[str, Any], now: datetime) -> None:
    faults = reservation_draw(access=access, given=given, now=now, instead_of=found).faults
    if faults:
        raise ValidationError(faults)


def _locked(reservation: Reservation, revision: int | None) -> Reservation:
    gone = Conflict(f"{reservation.public_id} was removed meanwhile.")
    return row_locked(Reservation.objects.select_related("quota__parent"), reservation.pk, revision=revision, gone=gone)


def _save(found: Reservation) -> None:
    found.revision += 1
    found.save()


def _ledger_follows(at: datetime | None) -> None:
    """What stands on a window is another class of usage from now on."""
    if at is not None:
        ledger_redecide(at=at)


def _tell(found: Reservation) -> None:
    """Pages, and the scheduler, as the last thing of the transaction."""
    news = News()
    news.add("reservations", found.pk)
    news.publish()
    lease_want()


def _record(
    access: Access,
    action: str,
    found: Reservation,
    now: datetime,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    reason: str = "",
) -> None:
    actor = access.actor if access.actor.user is not None else SYSTEM
    audit_record(
        actor=actor, action=action, kind="reservation", object_id=found.public_id, quota=found.quota, before=before, after=after, reason=reason
    )
    reservation_stepped.send(Reservation, reservation=found, action=action, actor=actor, facts=after or {}, before=before, now=now)

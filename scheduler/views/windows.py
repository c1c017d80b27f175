"""Reservations and floors: the calendar, the timeline, the floor view, one reservation, and the forms."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.previews import UNKNOWN
from gpufleet.core.previews import Preview as Told
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.core.zones import zone_named
from gpufleet.web import Access, Can, access_of, requires
from quotas.forms import faults_of
from quotas.models import Reservation
from quotas.permissions import nodes_visible
from quotas.views.confirm import confirm
from scheduler.forms import SteeringForm
from scheduler.models import NoticeChoices
from scheduler.presenters.tree_changes import cancellation_told, reservation_told
from scheduler.selectors.windows import (
    bookings,
    capacity_now,
    lasting_windows,
    may_ask_on,
    may_decide_on,
    may_steer_reservation,
    must_steer_reservation,
    pending,
    reservation_for,
    reservations_listed,
    use_of,
    windows_between,
)
from scheduler.services.windows.previews import Preview, asked_to_leave, cancellation_preview, floors_ahead, reservation_preview
from scheduler.services.windows.reservations import (
    reservation_cancel,
    reservation_change,
    reservation_decide,
    reservation_facts,
    reservation_request,
    reservation_undo,
    window_end,
)
from scheduler.windows.capacity import peak
from scheduler.windows.drawing import DAYS, TIMELINE_DAYS, day_at, timeline_drawn, week_drawn, week_of
from scheduler.windows.forms import ReservationForm, local_at, moment_named, written
from scheduler.windows.lists import RESERVATIONS

log = logging.getLogger(__name__)

WINDOWS_SHOWN, JOBS_SHOWN = 8, 50
TO_BE_SEEN = Told(sentences=["What the reservation does is shown here."])
TEAMS_OFFERED = 500


@require_safe
@requires(Can.SEE)
def calendar(request: HttpRequest) -> HttpResponse:
    """A week by hours; windows without an end stand above it."""
    access, moment = access_of(request), now()
    zone = _zone(request, access)
    start = _week(request, zone, moment)
    gpu_type = request.GET.get("type", "")[:60]
    windows = windows_between(access, start, day_at(start, DAYS), gpu_type=gpu_type)
    drawn = week_drawn(windows, start, moment, _movable(access, windows))
    context = _shared(request, access, zone, "calendar") | {
        "week": drawn,
        "windows": windows,
        "gpu_type": gpu_type,
        "types": sorted(capacity_now().by_type),
        "earlier": day_at(start, -7).date().isoformat(),
        "later": day_at(start, 7).date().isoformat(),
        "week_date": start.date().isoformat(),
        "last_day": day_at(start, DAYS - 1).replace(tzinfo=None),
    }
    return render(request, "scheduler/reservations_calendar.html", context)


@require_safe
@requires(Can.SEE)
def timeline(request: HttpRequest) -> HttpResponse:
    """A fortnight by GPU type."""
    access, moment = access_of(request), now()
    zone = _zone(request, access)
    start = _week(request, zone, moment)
    end = day_at(start, TIMELINE_DAYS)
    windows = windows_between(access, start, end)
    capacity = dict(capacity_now().by_type)
    peaks = {gpu_type: peak(bookings(gpu_type, start), start, end).milli for gpu_type in capacity}
    drawn = timeline_drawn(windows, start, moment, capacity, peaks, _movable(access, windows))
    context = _shared(request, access, zone, "timeline") | {
        "timeline": drawn,
        "windows": windows,
        "earlier": day_at(start, -7).date().isoformat(),
        "later": day_at(start, 7).date().isoformat(),
        "start": start.replace(tzinfo=None),
        "last_day": day_at(start, TIMELINE_DAYS - 1).replace(tzinfo=None),
    }
    return render(request, "scheduler/reservations_timeline.html", context)


@require_safe
@requires(Can.SEE)
def floor_view(request: HttpRequest) -> HttpResponse:
    """For each coming window: will it be met, by what, and who leaves when."""
    access = access_of(request)
    context = _shared(request, access, _zone(request, access), "floors") | {"floors": floors_ahead(access, now())}
    return render(request, "scheduler/reservations_floors.html", context)


@require_safe
@requires(Can.SEE)
def reservation_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    context = _shared(request, access, _zone(request, access), "list") | {"heading": "Reservations"}
    return RESERVATIONS.respond(request, reservations_listed(access), "scheduler/reservations_list.html", context)


@require_safe
@requires(Can.SEE)
def reservation_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access, moment = access_of(request), now()
    version = feed_revision()
    found = reservation_for(access, public_id)
    past = list(found.windows.filter(starts_at__lt=moment).order_by("-starts_at")[:60])
    ahead = lasting_windows([found], moment)[found.pk][:WINDOWS_SHOWN]
    use = use_of(found, past, moment)
    lasting = next((one for one in ahead if one.state_at(moment) == "active"), None)
    outlook = next(iter(floors_ahead(access, moment, only=found)), None)
    context = {
        "version": version,
        "heading": found.name,
        "reservation": found,
        "windows": [(one, one.state_at(moment)) for one in ahead],
        "past": [(one, one.state_at(moment)) for one in past if one not in ahead][:WINDOWS_SHOWN],
        "use": use,
        "jobs": use.jobs[:JOBS_SHOWN],
        "outlook": outlook,
        "left": asked_to_leave(access, [*ahead, *past[:WINDOWS_SHOWN]]),
        "lasting": lasting,
        "may_steer": may_steer_reservation(access, found) and found.state in ("requested", "approved"),
        "may_decide": may_decide_on(access, found.quota) and found.state == "requested",
    }
    return render(request, "scheduler/reservation.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def reservation_new(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    form = _form(request, access, initial=_begun(request, access))
    if not form.fields["owner"].choices:  # type: ignore[attr-defined]
        raise PermissionDenied("Team leads and quota admins request reservations.")
    return _written(request, access, form, None)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def reservation_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = reservation_for(access, public_id)
    must_steer_reservation(access, found)
    moved = _moved(request, found)
    form = _form(request, access, initial=written(found) | moved, of=found, at_once=bool(moved))
    return _written(request, access, form, found)


@require_POST
@requires(Can.SEE)
def reservation_decide_write(request: HttpRequest, public_id: str) -> HttpResponse:
    approve = request.POST.get("to") == "approved"

    def decide(*, access: Access, reservation: Reservation, reason: str, now: datetime) -> Reservation:
        return reservation_decide(access=access, reservation=reservation, approve=approve, reason=reason, now=now)

    return _steer(request, public_id, decide, "{} is approved." if approve else "{} is denied.")


@require_POST
@requires(Can.SEE)
def reservation_window_end(request: HttpRequest, public_id: str) -> HttpResponse:
    found = reservation_for(access_of(request), public_id)
    return _steer(request, public_id, window_end, "The window of {} has ended.", may_undo=not found.rule)


@require_POST
@requires(Can.SEE)
def reservation_undo_write(request: HttpRequest, public_id: str) -> HttpResponse:
    return _steer(request, public_id, partial(reservation_undo, revision=_revision(request)), "Undone: {} is as before.")


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def reservation_cancel_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    found = reservation_for(access, public_id)
    must_steer_reservation(access, found)
    form = SteeringForm(request.POST if request.method == "POST" else None, initial={"revision": found.revision})
    page = reverse("reservation", args=[public_id])
    if request.method == "POST" and form.is_valid():
        undoes = "undo" in request.POST
        said = "Undone: {} is cancelled." if undoes else "{} is cancelled."
        return _steer(request, public_id, partial(reservation_cancel, revision=_revision(request)), said, may_undo=not undoes)
    effects = _cancellation_told(access, found)
    above = [("Reservations", reverse("calendar")), (found.name, page)]
    return confirm(request, form, above=above, back=page, heading=f"Cancel {found.name}", send="Cancel reservation", leave="Keep it", effects=effects)


def _cancellation_told(access: Access, found: Reservation) -> Told:
    """People must be able to cancel also where its effects can't be said."""
    try:
        return cancellation_told(cancellation_preview(access=access, reservation=found, now=now()))
    except Exception:
        log.exception("What the cancellation of a reservation comes to could not be computed")
        return Told(sentences=["A window that lasts ends now, and no window follows.", UNKNOWN])


# What they share


def _shared(request: HttpRequest, access: Access, zone: ZoneInfo, here: str) -> dict[str, Any]:
    return {
        "here": here,
        "zone": zone.key,
        "version": feed_revision(),
        "can_add": access.can_somewhere(Can.MANAGE_JOBS) or access.can_somewhere(Can.EDIT_QUOTA),
        "pending": pending(access),
    }


def _zone(request: HttpRequest, access: Access) -> ZoneInfo:
    """That of the address, else that which the person chose for notices."""
    named = request.GET.get("zone", "")
    if not named and access.actor.user is not None:
        named = NoticeChoices.objects.filter(user=access.actor.user).values_list("zone", flat=True).first() or ""
    try:
        return zone_named(named or "UTC")
    except ValueError:
        return ZoneInfo("UTC")


def _week(request: HttpRequest, zone: ZoneInfo, moment: datetime) -> datetime:
    named = moment_named(request.GET.get("week", ""), zone)
    far = timedelta(days=3660)
    return week_of(named if named is not None and abs(named - moment) < far else moment, zone)


def _movable(access: Access, windows: Any) -> set[int]:
    found = {window.reservation_id: window.reservation for window in windows}
    return {key for key, reservation in found.items() if may_steer_reservation(access, reservation)}


def _teams(access: Access) -> list[str]:
    """The teams that the reader may ask for."""
    seen = access.visible(Can.MANAGE_JOBS) | access.visible(Can.EDIT_QUOTA)
    return list(nodes_visible(access).filter(seen).order_by("path").values_list("path", flat=True)[:TEAMS_OFFERED])


def _form(
    request: HttpRequest, access: Access, *, initial: Mapping[str, Any], of: Reservation | None = None, at_once: bool = False
) -> ReservationForm:
    """`at_once`: as if it had been sent for a preview with what it begins with."""
    capacity = capacity_now()
    types = sorted(capacity.by_type, key=lambda name: (-capacity.by_type[name], name))
    return ReservationForm(
        request.POST if request.method == "POST" else {name: value for name, value in initial.items() if value is not None} if at_once else None,
        teams=_teams(access) if of is None else (),
        classes=of is None and may_ask_on(access, None),
        types=types if of is None or of.gpu_type in types else [*types, of.gpu_type],
        levels=capacity.levels,
        of=of,
        initial=initial,
    )


def _begun(request: HttpRequest, access: Access) -> dict[str, Any]:
    """From the calendar: the span that was drawn there; else the next full hour, three hours long."""
    zone = _zone(request, access)
    start = moment_named(request.GET.get("start", ""), zone)
    end = moment_named(request.GET.get("end", ""), zone)
    if start is None:
        start = (now() + timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    if end is None or end <= start:
        end = start + timedelta(hours=3)
    teams = _teams(access)
    found: dict[str, Any] = {"zone": zone.key, "start": local_at(start, zone.key), "end": local_at(end, zone.key)}
    return found | {"name": "Reservation", "owner": teams[0] if teams else "", "gpu_type": request.GET.get("type", "")[:60], "amount": ""}


def _moved(request: HttpRequest, found: Reservation) -> dict[str, Any]:
    """Where it was dragged to."""
    try:
        zone = zone_named(request.GET.get("zone", "") or found.zone)
    except ValueError:
        zone = ZoneInfo(found.zone)
    moments = {name: moment_named(request.GET.get(name, ""), zone) for name in ("start", "end")}
    return {name: local_at(moment, found.zone) for name, moment in moments.items() if moment is not None}


def _written(request: HttpRequest, access: Access, form: ReservationForm, of: Reservation | None) -> HttpResponse:
    """The form; what it comes to; and once nobody is displaced, or that has been seen, it is written."""
    preview: Preview | None = None
    status = 200
    sent = request.method == "POST" and request.POST.get("do") != "look"  # a preview that says what is wrong is an answer
    if form.is_bound and form.is_valid():
        given = form.given()
        try:
            preview = reservation_preview(access=access, given=given, now=now(), instead_of=of and reservation_for(access, of.public_id))
            if preview.drawn.faults:
                raise ValidationError(preview.drawn.faults)
            if request.POST.get("do") == "write" and (request.POST.get("seen") or not _alarming(preview)):
                return _saved(request, access, form, of, given)
        except ValidationError as fault:
            form.show(dict(faults_of(fault)))
            status = 422 if sent else 200
        except Conflict as fault:
            form.add_error(None, str(fault))
            status = 409 if sent else 200
    elif sent:
        status = 422
    told = reservation_told(preview) if preview is not None and form.is_valid() else TO_BE_SEEN
    address = reverse("reservation_edit", args=[of.public_id]) if of else reverse("reservation_new")
    context = {
        "form": form,
        "preview": Told(sentences=(), faults=form.unclear) if form.is_bound and form.unclear else told,
        "drawn": preview,
        "reason": form["reason"].value() or "",
        "reason_optional": True,
        "reason_most": form.fields["reason"].max_length,  # type: ignore[attr-defined]
        "faults": {"reason": form.errors["reason"]} if "reason" in form.errors else {},
        "action": address,
        "alarming": preview is not None and not preview.drawn.faults and _alarming(preview),
        "reservation": of,
        "heading": f"Change {of.name}" if of else "New reservation",
        "send": "Save" if of else "Reserve",
        "back": reverse("reservation", args=[of.public_id]) if of else reverse("calendar"),
    }
    return render(request, "scheduler/reservation_form.html", context, status=status)


def _saved(request: HttpRequest, access: Access, form: ReservationForm, of: Reservation | None, given: dict[str, Any]) -> HttpResponse:
    if of is None:
        made = reservation_request(access=access, given=given, now=now())
        undo: Undo | None = Undo(
            reverse("reservation_cancel", args=[made.public_id]), {"reason": "Undo.", "revision": str(made.revision), "undo": "yes"}
        )
    else:
        made = reservation_change(access=access, reservation=of, given=given, revision=form.cleaned_data["revision"], now=now())
        undo = _undo_of(made) if reservation_facts(made) != reservation_facts(of) else None
    pending_said = f"{made.name} is requested. A quota admin approves it."
    done_with_undo(request, pending_said if made.state == "requested" else f"{made.name} is reserved.", undo)
    return redirect("reservation", made.public_id)


def _undo_of(changed: Reservation) -> Undo:
    return Undo(reverse("reservation_undo", args=[changed.public_id]), {"reason": "Undo.", "revision": str(changed.revision)})


def _revision(request: HttpRequest) -> int | None:
    seen = request.POST.get("revision", "")
    return int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 10 else None


def _alarming(preview: Preview) -> bool:
    """Whether somebody is in the way, or promises exceed what there is: that is shown before it is written."""
    lacks = preview.clearing is not None and not preview.clearing.is_met
    return bool(preview.leaving or preview.displaced or preview.over_guarantees or lacks)


def _steer(request: HttpRequest, public_id: str, service: Any, said: str, *, may_undo: bool = False) -> HttpResponse:
    access = access_of(request)
    found = reservation_for(access, public_id)
    try:
        changed = service(access=access, reservation=found, reason=request.POST.get("reason", ""), now=now())
    except ValidationError as fault:
        messages.error(request, " ".join(text for _, texts in faults_of(fault) for text in texts))
    except Conflict as fault:
        messages.error(request, str(fault))
    else:
        # By its present name: an Undo may have put back another one.
        done_with_undo(request, said.format(changed.name), _undo_of(changed) if may_undo else None)
    return redirect("reservation", public_id)

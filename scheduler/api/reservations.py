"""Reservations and floors over HTTP: request, approve, change, cancel, preview; and whether each coming window will be met."""

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import AskedTime, Taken
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of
from quotas.models import Reservation, Window
from scheduler.api.lists import answered, listed, parameters_of
from scheduler.models import Job
from scheduler.selectors.windows import (
    lasting_windows,
    may_decide_on,
    may_steer_reservation,
    reservation_for,
    reservations_listed,
    use_of,
    windows_between,
)
from scheduler.services.windows.previews import Leaving, Outlook, Preview, floors_ahead, reservation_preview
from scheduler.services.windows.reservations import (
    reservation_cancel,
    reservation_change,
    reservation_decide,
    reservation_request,
    reservation_undo,
    window_end,
)
from scheduler.windows.lists import RESERVATIONS
from scheduler.windows.schema import ReservationIn

router = Router(tags=["Reservations"])
MOST_DAYS = 92
WINDOWS_TOLD = 10


class ReservationOut(Schema):
    """`job_class` is set for a floor, `quota` for all else. Without `ends_at` it is standing."""

    id: str
    name: str
    state: str
    quota: str | None
    job_class: str | None
    gpu_type: str
    shape: str
    gpus_milli: int
    nodes: int | None
    level: str
    zone: str
    starts_at: datetime
    ends_at: datetime | None
    rule: str
    notice_s: int
    lead_s: int
    decay_s: int | None
    idle: str
    purpose: str
    requested_by: str
    requested_at: datetime
    decided_by: str
    decided_at: datetime | None
    decision: str
    revision: int


class ReservationsOut(Schema):
    items: list[ReservationOut]
    next: str | None
    previous: str | None


class WindowOut(Schema):
    """`state`: coming, active, past or released. `leaving` names jobs that were asked to leave for it, as far as the caller may see them."""

    reservation: str = Field(description="Id of the reservation.")
    name: str
    owner_label: str
    gpu_type: str
    gpus_milli: int
    starts_at: datetime
    ends_at: datetime | None
    state: str
    cleared_at: datetime | None
    missing_milli: int
    released_at: datetime | None


class WindowsOut(Schema):
    items: list[WindowOut]


class HeldOut(Schema):
    job: str
    gpu_hours: float
    now_milli: int


class UseOut(Schema):
    """Of the windows so far, in GPU-hours."""

    promised_gpu_hours: float
    used_gpu_hours: float
    unused_gpu_hours: float
    now_milli: int
    jobs: list[HeldOut]


class ReservationDetailOut(ReservationOut):
    windows: list[WindowOut] = Field(description="Those that last or come next.")
    use: UseOut
    may_steer: bool
    may_decide: bool


class LeavingOut(Schema):
    job: str | None
    gpus_milli: int
    shrinks: bool
    lost_s: int
    leave_at: datetime


class FloorOut(Schema):
    """How a window is met: by what its owner holds, by idle GPUs, and by GPUs that jobs leave. `missing_milli` is what nothing can be found for."""

    window: WindowOut
    met: bool
    used_milli: int
    idle_milli: int
    freed_milli: int
    missing_milli: int
    leaving: list[LeavingOut]
    displaced: list[str | None]


class FloorsOut(Schema):
    items: list[FloorOut]


class SpanOut(Schema):
    starts_at: datetime
    ends_at: datetime | None


class ReservationPreviewOut(Schema):
    """`errors` by field: with none it can be requested. `over_guarantees_milli` is by how much all promises then exceed the healthy capacity."""

    errors: list[dict[str, str]]
    windows: list[SpanOut]
    capacity_milli: int
    reserved_milli: int
    promised_milli: int
    over_guarantees_milli: int
    nearest_start: datetime | None
    met: bool | None
    missing_milli: int
    leaving: list[LeavingOut]
    displaced: list[str | None]
    approves: bool


class ReservationChange(Taken):
    """What is not named stays."""

    name: str | None = Field(None, max_length=200)
    gpu_type: str | None = Field(None, max_length=100)
    gpus: int | None = None
    nodes: int | None = None
    level: str | None = Field(None, max_length=100)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    rule: str | None = Field(None, max_length=400)
    zone: str | None = Field(None, max_length=100)
    notice_s: int | None = None
    lead_s: int | None = None
    decay_s: int | None = None
    idle: str | None = Field(None, max_length=20)
    purpose: str | None = Field(None, max_length=400)
    reason: str = Field("", max_length=280)


class ReservationReason(Taken):
    reason: str = Field("", max_length=280, description="Kept in the audit log.")


class WindowsQuery(Schema):
    since: AskedTime | None = Field(None, alias="from", description="Now, where nothing is said.")
    until: AskedTime | None = Field(None, alias="to", description=f"A week later, where nothing is said; at most {MOST_DAYS} days.")
    gpu_type: str = Field("", alias="type", description="Of one GPU type.")


OPTIONAL = ("ends_at", "decay_s")
NEW = {
    "once": {
        "summary": "32 GPUs on a Tuesday morning",
        "value": {
            "name": "Release training",
            "quota": "acme/research/nlp",
            "gpu_type": "H100-SXM-80GB",
            "gpus": 32,
            "starts_at": "2026-03-03T08:00:00Z",
            "ends_at": "2026-03-03T11:00:00Z",
            "decay_s": 1800,
        },
    },
    "floor": {
        "summary": "A serving floor on weekdays from 08:00 to 20:00 in Berlin",
        "value": {
            "name": "Serving day",
            "job_class": "inference",
            "gpu_type": "H100-SXM-80GB",
            "gpus": 16,
            "starts_at": "2026-03-03T07:00:00Z",
            "ends_at": "2026-03-03T19:00:00Z",
            "zone": "Europe/Berlin",
            "rule": "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR",
        },
    },
}


def _examples(examples: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"examples": examples}}}}


@router.get(
    "/reservations", response=ReservationsOut, url_name="reservations", openapi_extra=parameters_of(RESERVATIONS), summary="Reservations and floors"
)
def reservations(request: HttpRequest) -> HttpResponse:
    return listed(request, RESERVATIONS, reservations_listed(access_of(request)), reservation_told)


@router.post(
    "/reservations", response={201: ReservationDetailOut}, url_name="reservations", openapi_extra=_examples(NEW), summary="Request a reservation"
)
def reservation_make(request: HttpRequest, body: ReservationIn) -> HttpResponse:
    """Approved at once where the caller may approve it, else pending. All problems are told at once, with the nearest start that fits."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return _told(access, reservation_request(access=access, given=_given(body), now=now()), status=201)


@router.post(
    "/reservations/preview",
    response=ReservationPreviewOut,
    url_name="reservation_preview",
    openapi_extra=_examples(NEW),
    summary="Preview it",
)
def reservation_look(request: HttpRequest, body: ReservationIn) -> HttpResponse:
    """What it comes to: windows, capacity, and the jobs that must leave. Nothing is written."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return answered(preview_told(reservation_preview(access=access, given=_given(body), now=now())))


@router.get("/reservations/{public_id}", response=ReservationDetailOut, url_name="reservation", summary="A reservation with its windows and its use")
def reservation(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    return _told(access, reservation_for(access, public_id))


@router.patch(
    "/reservations/{public_id}", response=ReservationDetailOut, url_name="reservation", openapi_extra=IF_MATCH, summary="Change a reservation"
)
def reservation_update(request: HttpRequest, public_id: str, body: ReservationChange) -> HttpResponse:
    """A change by somebody who may not approve it is pending again."""
    access = access_of(request)
    given = {key: value for key, value in body.dict(exclude_unset=True).items() if value is not None or key in OPTIONAL}
    found = reservation_for(access, public_id)
    return _told(access, reservation_change(access=access, reservation=found, given=given, revision=revision_wanted(request), now=now()))


@router.post(
    "/reservations/{public_id}/approve",
    response=ReservationDetailOut,
    url_name="reservation_approve",
    openapi_extra=IF_MATCH,
    summary="Approve a request",
)
def reservation_approved(request: HttpRequest, public_id: str, body: ReservationReason) -> HttpResponse:
    return _decided(request, public_id, body, approve=True)


@router.post(
    "/reservations/{public_id}/deny", response=ReservationDetailOut, url_name="reservation_deny", openapi_extra=IF_MATCH, summary="Deny a request"
)
def reservation_denied(request: HttpRequest, public_id: str, body: ReservationReason) -> HttpResponse:
    return _decided(request, public_id, body, approve=False)


@router.post(
    "/reservations/{public_id}/cancel",
    response=ReservationDetailOut,
    url_name="reservation_cancel",
    openapi_extra=IF_MATCH,
    summary="Cancel a reservation",
)
def reservation_ended(request: HttpRequest, public_id: str, body: ReservationReason) -> HttpResponse:
    """A window that lasts ends now, and none follows. Jobs on it go on as borrowers."""
    access = access_of(request)
    found = reservation_for(access, public_id)
    return _told(access, reservation_cancel(access=access, reservation=found, reason=body.reason, revision=revision_wanted(request), now=now()))


@router.post(
    "/reservations/{public_id}/undo",
    response=ReservationDetailOut,
    url_name="reservation_undo",
    openapi_extra=IF_MATCH,
    summary="Undo the own last change of a reservation",
)
def reservation_put_back(request: HttpRequest, public_id: str, body: ReservationReason) -> HttpResponse:
    """What it replaced is put back, also after a cancellation; 409 where somebody else has changed it since.

    An approval comes back within 15 minutes, later only for whoever may approve; else it is requested anew. An Undo is a change, too: undone, what it
    took back is there again.
    """
    access = access_of(request)
    found = reservation_for(access, public_id)
    wanted = revision_wanted(request)
    revision = found.revision if wanted is None else wanted
    return _told(access, reservation_undo(access=access, reservation=found, reason=body.reason, revision=revision, now=now()))


@router.post(
    "/reservations/{public_id}/end-window",
    response=ReservationDetailOut,
    url_name="reservation_end_window",
    openapi_extra=IF_MATCH,
    summary="End the window that lasts now",
)
def reservation_window_ended(request: HttpRequest, public_id: str, body: ReservationReason) -> HttpResponse:
    """Windows that follow stay."""
    access = access_of(request)
    found = reservation_for(access, public_id)
    return _told(access, window_end(access=access, reservation=found, reason=body.reason, revision=revision_wanted(request), now=now()))


@router.get("/windows", response=WindowsOut, url_name="windows", summary="Windows of a span of time")
def windows(request: HttpRequest, query: Query[WindowsQuery]) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    since = query.since or now()
    until = query.until or since + timedelta(days=7)
    if not timedelta(0) < until - since <= timedelta(days=MOST_DAYS):
        raise ValidationError({"to": [f"Lies after `from`, and at most {MOST_DAYS} days later."]})
    found = windows_between(access, since, until, gpu_type=query.gpu_type)
    return answered({"items": [window_told(one) for one in found]})


@router.get("/floors", response=FloorsOut, url_name="floors", summary="Whether each coming window will be met")
def floors(request: HttpRequest) -> HttpResponse:
    """The next window of each reservation within a week: by what it is met, and which jobs must leave when."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return answered({"items": [floor_told(one) for one in floors_ahead(access, now())]})


def _given(body: ReservationIn) -> dict[str, Any]:
    return body.model_dump()


def _decided(request: HttpRequest, public_id: str, body: ReservationReason, *, approve: bool) -> HttpResponse:
    access = access_of(request)
    found = reservation_for(access, public_id)
    revision = revision_wanted(request)
    return _told(access, reservation_decide(access=access, reservation=found, approve=approve, reason=body.reason, revision=revision, now=now()))


PLAIN = (
    *("name", "state", "gpu_type", "shape", "gpus_milli", "nodes", "level", "zone", "starts_at", "ends_at", "rule", "notice_s", "lead_s", "decay_s"),
    *("idle", "purpose", "requested_at", "decided_at", "decision", "revision"),
)


def reservation_told(found: Reservation) -> dict[str, Any]:
    own = {"id": found.public_id, "quota": found.quota.path if found.quota is not None else None, "job_class": found.job_class or None}
    people = {"requested_by": found.requested_name, "decided_by": found.decided_name}
    return own | {name: getattr(found, name) for name in PLAIN} | people


def window_told(window: Window) -> dict[str, Any]:
    reservation = window.reservation
    return {
        "reservation": reservation.public_id,
        "name": reservation.name,
        "owner_label": reservation.owner_label,
        "gpu_type": reservation.gpu_type,
        "gpus_milli": reservation.gpus_milli,
        "starts_at": window.starts_at,
        "ends_at": window.ends_at,
        "state": window.state_at(now()),
        "cleared_at": window.cleared_at,
        "missing_milli": window.missing_milli,
        "released_at": window.released_at,
    }


def floor_told(found: Outlook) -> dict[str, Any]:
    clearing = found.clearing
    return {
        "window": window_told(found.window),
        "met": clearing.is_met,
        "used_milli": clearing.used,
        "idle_milli": clearing.idle,
        "freed_milli": clearing.freed,
        "missing_milli": clearing.missing,
        "leaving": [_leaving(one) for one in found.leaving],
        "displaced": [_name(job) for _, job in found.displaced],
    }


def preview_told(found: Preview) -> dict[str, Any]:
    return {
        "errors": [{"path": path, "message": text} for path, texts in found.drawn.faults.items() for text in texts],
        "windows": [{"starts_at": start, "ends_at": end} for start, end in found.windows],
        "capacity_milli": found.drawn.capacity,
        "reserved_milli": found.reserved_milli,
        "promised_milli": found.promised_milli,
        "over_guarantees_milli": found.over_guarantees,
        "nearest_start": found.drawn.nearest,
        "met": found.clearing.is_met if found.clearing is not None else None,
        "missing_milli": found.clearing.missing if found.clearing is not None else 0,
        "leaving": [_leaving(one) for one in found.leaving],
        "displaced": [_name(job) for _, job in found.displaced],
        "approves": found.approves,
    }


def _leaving(one: Leaving) -> dict[str, Any]:
    return {"job": _name(one.job), "gpus_milli": one.milli, "shrinks": one.shrinks, "lost_s": one.lost_seconds, "leave_at": one.leave_at}


def _name(job: Job | None) -> str | None:
    return job.public_id if job is not None else None


HOUR = 1000 * 3_600_000


def _told(access: Access, found: Reservation, status: int = 200) -> HttpResponse:
    moment = now()
    ahead = lasting_windows([found], moment)[found.pk][:WINDOWS_TOLD]
    use = use_of(found, list(found.windows.filter(starts_at__lt=moment).order_by("-starts_at")[:60]), moment)
    detail = {
        "windows": [window_told(one) for one in ahead],
        "use": {
            "promised_gpu_hours": use.promised / HOUR,
            "used_gpu_hours": use.used / HOUR,
            "unused_gpu_hours": use.unused / HOUR,
            "now_milli": use.now_milli,
            "jobs": [{"job": one.job, "gpu_hours": one.milli_millis / HOUR, "now_milli": one.now_milli} for one in use.jobs[:50]],
        },
        "may_steer": may_steer_reservation(access, found),
        "may_decide": may_decide_on(access, found.quota),
    }
    answer = stamped(answered(reservation_told(found) | detail), found.revision)
    answer.status_code = status
    return answer

"""Jobs: the list, one job, and what its people do with it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboards.courses import job_chart, job_range, job_ranges
from dashboards.fingerprints.selectors import job_phase
from dashboards.health.selectors import job_stragglers
from dashboards.job_list import JOBS, JOBS_UNPRICED, jobs_now
from dashboards.job_usage import job_usage
from dashboards.measures import JOB_MEASURES, measure_of
from dashboards.slo.selectors import is_answered, job_level_chart, level_told
from dashboards.weak import DRIVER_UTILIZATION, nodes_signal
from gpufleet.core.faults import Conflict
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.ranges import Range
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Access, Can, access_of, requires
from scheduler.jobs.lists import PHASE_CHOICES
from scheduler.jobs.speeds import seconds_at, slowest_on
from scheduler.jobs.stored import is_elastic, roles_of, types_of
from scheduler.models import ENDED, HOLDING, Attempt, Job, JobClass, JobState, Node, Outlook
from scheduler.presenters.blocking import blockers_now
from scheduler.presenters.bulk import CHOICES, bulk_view
from scheduler.presenters.deferring import deferral_past, deferral_shown
from scheduler.presenters.evictions import evictions_said, evictions_told
from scheduler.presenters.jobs import (
    DeadlineTold,
    alignment_told,
    deadline_told,
    event_lines,
    life_of,
    line_of,
    promised,
    runs_of,
    seats_by_node,
    sentence,
    shape_of,
    start_bar,
    would_start_if,
)
from scheduler.presenters.launching import launch_told
from scheduler.presenters.logs import writer_choices
from scheduler.presenters.planned_changes import planned_lines
from scheduler.presenters.queue import turn_line, why_there
from scheduler.presenters.standing import standing_told
from scheduler.selectors.alignment import alignment_of
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.energy import sees_prices
from scheduler.selectors.evictions import job_evictions
from scheduler.selectors.foreseen import foreseen_start
from scheduler.selectors.jobs import (
    EVENTS_SHOWN,
    MOST_COUNTED,
    WAITING,
    JobRow,
    attempt_sittings,
    job_attempts,
    job_checkpoints,
    job_events,
    job_for,
    job_rows,
    job_state_counts,
    job_wait,
    job_waited_for_by,
    job_waits_for,
    jobs_listed,
    may_steer,
    must_steer,
)
from scheduler.selectors.logs import job_writers
from scheduler.selectors.loop import standstill_now
from scheduler.selectors.notices import follows_job
from scheduler.selectors.planned_changes import plans_seen
from scheduler.selectors.predictions import prediction_of, record_of
from scheduler.selectors.readiness import readiness_of
from scheduler.selectors.replacing import replacements_told
from scheduler.selectors.scaling import is_service, replicas_told
from scheduler.selectors.schedules import schedule_of
from scheduler.selectors.suggestions import OF_TEAMS, filter_suggestions
from scheduler.selectors.templates import template_of
from scheduler.services.forecasts.grounds import GROUNDS
from scheduler.services.forecasts.outlooks import outlook_now
from scheduler.services.forecasts.replicas import replica_awaited
from scheduler.services.jobs.bulk import Action, asked_checked, jobs_preview
from scheduler.services.jobs.connecting import job_connect, job_connection, may_connect
from scheduler.services.jobs.deferring import is_deferred, job_start_now
from scheduler.services.jobs.edits import job_enqueue, job_save_now, restart_refused, save_refused
from scheduler.services.jobs.steering import job_cancel, job_hold_back, job_release_hold
from scheduler.snapshots.overrun import overrun_for
from scheduler.views.begins import begins_told
from scheduler.views.bulk import job_changes_plan, steer_page
from scheduler.views.nodes import messages_by_field
from scheduler.views.view_tabs import opened_with, views_shown


@require_safe
@requires(Can.SEE)
def job_list(request: HttpRequest) -> HttpResponseBase:
    access = access_of(request)
    if (opened := opened_with(access, request, JOBS)) is not None:
        return opened
    version = feed_revision()
    context = {
        "heading": "Jobs",
        "pause": cache(lambda: standstill_now(now())),
        "views": partial(views_shown, access, request, JOBS),
        "version": version,
        "tabs": partial(job_tabs, access, [phase for phase in request.GET.getlist("phase") if phase]),
        "can_add": access.can_somewhere(Can.SUBMIT),
        "bulk_actions": CHOICES,
    }
    chooses = access.can_somewhere(Can.SUBMIT) or access.can_somewhere(Can.MANAGE_JOBS)
    table = JOBS if access.can_somewhere(Can.SEE_COSTS) else JOBS_UNPRICED
    return table.respond(request, jobs_listed(access), "scheduler/job_list.html", context, presented=partial(jobs_now, access), chooses=chooses)


@require_safe
@requires(Can.SEE)
def jobs_suggest(request: HttpRequest) -> JsonResponse:
    """What a filter of the list or the team of a submission could be, of what is typed so far. Teams come with their own names as labels."""
    field, typed = request.GET.get("field", ""), request.GET.get("typed", "")[:200]
    values = filter_suggestions(access_of(request), field, typed)
    labels = {"labels": [value.rpartition("/")[2] for value in values]} if field in OF_TEAMS else {}
    return JsonResponse({"values": values, **labels})


def job_tabs(access: Access, asked: list[str], *, queue: bool = False, planned: bool = False) -> list[dict[str, Any]]:
    """The tabs above the list, the queue and the planned changes, which are pages of their own; the last only where there is one."""
    counts, jobs = job_state_counts(access), reverse("jobs")
    found: list[dict[str, Any]] = [{"label": "All", "href": f"{jobs}?phase=", "count": None, "current": not asked and not queue and not planned}]
    for key, label in PHASE_CHOICES:
        count = counts.get(key)
        told = None if count is None else f"{count:,}" if count <= MOST_COUNTED else f"{MOST_COUNTED:,}+"
        found.append({"label": label, "href": f"{jobs}?phase={key}", "count": told, "current": asked == [key]})
        if key == "waiting":
            found.append({"label": "Queue", "href": reverse("queue"), "count": None, "current": queue})
    if counts["planned"] or planned:
        found.append({"label": "Planned", "href": reverse("job_plans"), "count": f"{counts['planned']:,}", "current": planned})
    return found


@require_safe
@requires(Can.SEE)
def job_page(request: HttpRequest, public_id: str) -> HttpResponse:
    return _page(request, job_for(access_of(request), public_id))


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_cancel_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """What cancelling does, a reason, and the button. It needs no script."""
    access = access_of(request)
    job = job_for(access, public_id)
    if request.method != "POST":
        return _change_page(request, access, job, Action.CANCEL)
    if request.POST.get("begins"):
        return _planned(request, access, job, Action.CANCEL)
    try:
        cancelled = job_cancel(access=access, job=job, reason=request.POST.get("reason", ""), now=now(), revision=_revision_seen(request))
    except ValidationError as fault:
        return _change_page(request, access, job, Action.CANCEL, faults=messages_by_field(fault), status=422)
    except Conflict as fault:
        return _change_page(request, access, job_for(access, public_id), Action.CANCEL, faults={"all": [str(fault)]}, status=409)
    ended = cancelled.state in ENDED
    messages.success(request, f"{job.name} is cancelled." if ended else f"{job.name} is saving its work. Its GPUs are free once it has exited.")
    return redirect("job", public_id)


def _change_page(
    request: HttpRequest, access: Access, job: Job, action: Action, *, faults: dict[str, list[str]] | None = None, status: int = 200
) -> HttpResponse:
    """An action on one job, and what becomes of it."""
    must_steer(access, job)
    asked = asked_checked(action=action, jobs=[(job.public_id, None)])
    begins, told = begins_told(request, faults or {})
    view = bulk_view(jobs_preview(access=access, asked=asked, now=now()), faults=told, may_plan=True, begins=begins)
    page = reverse("job", args=[job.public_id])
    return steer_page(
        *(request, asked, view),
        status=status,
        job=job,
        own_address=True,
        above=[("Jobs", reverse("jobs")), (job.public_id, page)],
        here=str(dict(CHOICES)[action]),
        back=page,
        leave="Back to the job",
        faults=faults or {},
    )


def _planned(request: HttpRequest, access: Access, job: Job, action: Action) -> HttpResponse:
    """An action on one job that begins later."""
    must_steer(access, job)
    try:
        return job_changes_plan(request, access, asked_checked(action=action, jobs=[(job.public_id, None)]))
    except ValidationError as fault:
        return _change_page(request, access, job, action, faults=messages_by_field(fault), status=422)
    except Conflict as fault:
        return _change_page(request, access, job, action, faults={"all": [str(fault)]}, status=409)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_connect_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """How to get into a running job. Its token is shown once somebody asks for it, which is written down."""
    access = access_of(request)
    job = job_for(access, public_id)
    if not may_steer(access, job):
        raise PermissionDenied
    context: dict[str, Any] = {"job": job}
    try:
        asked = request.method == "POST"
        context["connection"] = job_connect(access=access, job=job) if asked else job_connection(access=access, job=job)
    except Conflict as fault:
        context["fault"] = str(fault)
    return render(request, "scheduler/job_connect.html", context, status=409 if "fault" in context and request.method == "POST" else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_hold_page(request: HttpRequest, public_id: str) -> HttpResponse:
    if request.method != "POST":
        access = access_of(request)
        return _change_page(request, access, job_for(access, public_id), Action.HOLD)
    if request.POST.get("begins"):
        access = access_of(request)
        return _planned(request, access, job_for(access, public_id), Action.HOLD)
    back = Undo(reverse("job_release", args=[public_id]), {"reason": "Undo of a hold.", "undo": "yes"})
    return _steer(request, public_id, job_hold_back, "{} is held back. It keeps its place in the queue.", back)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_release_page(request: HttpRequest, public_id: str) -> HttpResponse:
    if request.method != "POST":
        access = access_of(request)
        return _change_page(request, access, job_for(access, public_id), Action.RELEASE)
    if request.POST.get("begins"):
        access = access_of(request)
        return _planned(request, access, job_for(access, public_id), Action.RELEASE)
    back = Undo(reverse("job_hold", args=[public_id]), {"reason": "Undo of a release.", "undo": "yes"})
    service = partial(job_release_hold, undoes="undo" in request.POST)
    return _steer(request, public_id, service, "{} may start again.", back)


@require_POST
@requires(Can.SEE)
def job_enqueue_write(request: HttpRequest, public_id: str) -> HttpResponse:
    return _steer(request, public_id, job_enqueue, "{} is submitted.")


@require_POST
@requires(Can.SEE)
def job_save_write(request: HttpRequest, public_id: str) -> HttpResponse:
    return _steer(request, public_id, job_save_now, "{} is saving a checkpoint and keeps running.")


@require_POST
@requires(Can.SEE)
def job_start_now_write(request: HttpRequest, public_id: str) -> HttpResponse:
    return _steer(request, public_id, job_start_now, "{} is no longer deferred. It starts when its turn comes.")


def _steer(request: HttpRequest, public_id: str, service: Callable[..., Job], said: str, undo: Undo | None = None) -> HttpResponse:
    """The `undo` takes back this change alone: it names the revision that the job has now, and there is none where nothing changed."""
    access = access_of(request)
    job = job_for(access, public_id)
    seen = _revision_seen(request)
    given = {} if undo is None else {"revision": job.revision if seen is None else seen}
    try:
        changed = service(access=access, job=job, reason=request.POST.get("reason", ""), now=now(), **given)
    except ValidationError as fault:
        return _page(request, job, status=422, faults=list(_worded(fault)))
    except Conflict as fault:
        return _page(request, job_for(access, public_id), status=409, faults=[str(fault)])
    undoes = "undo" in request.POST
    if undo is not None:
        unwanted = undoes or changed.revision == job.revision
        undo = None if unwanted else Undo(undo.address, {**undo.fields, "revision": str(changed.revision)})
    done_with_undo(request, f"{'Undone: ' if undoes else ''}{said.format(job.name)}", undo)
    return redirect("job", public_id)


def _revision_seen(request: HttpRequest) -> int | None:
    text = request.POST.get("revision", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _worded(fault: ValidationError) -> Iterator[str]:
    """Each fault with the key of the description that it is about."""
    for path, told in messages_by_field(fault).items():
        yield from (message if path in ("all", "reason") else f"{path}: {message}" for message in told)


def _page(request: HttpRequest, job: Job, *, status: int = 200, **extra: Any) -> HttpResponse:
    access, moment = access_of(request), now()
    version = feed_revision()
    row = job_rows(access, [job])[0]
    outlook = outlook_now(job, row.outlook, now=moment)
    attempts, events = job_attempts(job), job_events(job)
    evictions = job_evictions(access, job, attempts, events if len(events) < EVENTS_SHOWN else None)
    said: list[Any] = [*(event.cause for event in events), *evictions_said(evictions)]
    said += [text for attempt in attempts for text in (attempt.cause, attempt.stop_cause)]
    if outlook:
        said += [outlook.reasons, outlook.would_start_if]
    queue = GROUNDS.queue_at_hand(moment) if job.state in WAITING else None
    turn = queue.turn_of(job.public_id) if queue else None
    if turn:
        said.append(why_there(turn))
    discretion = Discretion(access, [*said, *(row.promise.after if row.promise else ())])
    waits_for = job_waits_for(access, job)
    shown = attempts[0] if attempts else None
    running = shown if shown and shown.ended_at is None else None
    sittings = attempt_sittings(shown) if shown else []
    usage = job_usage(access, job, attempts, sittings, now=moment)
    if shown and shown.ended_at is None:
        sittings = [sitting for sitting in sittings if sitting.until is None]
    nodes = _nodes_of({sitting.node_id for sitting in sittings})
    kinds = {one.kind for one in nodes.values()}
    steers = may_steer(access, job)
    course = _course(request, job, attempts, moment)
    seats = seats_by_node(sittings, {name: one.gpus for name, one in nodes.items()})
    context = {
        "job": job,
        "version": version,
        "line": line_of(row, moment),
        "life": life_of(job, attempts, moment, job_wait(job)),
        "silent": min(filter(None, (one.silent for one in nodes.values())), default=None) if running else None,
        "is_draft": job.state == JobState.DRAFT,
        "can_connect": steers and may_connect(job),
        "holds": job.state in HOLDING,
        "ended": job.state in ENDED,
        "can_restart": not restart_refused(job, running) and (job.state not in ENDED or access.can_somewhere(Can.SUBMIT)),
        "can_save": not save_refused(job, running),
        "blockers": blockers_now(access, job, outlook, discretion, waits_for=waits_for, turn=turn, now=moment),
        "deadline": _deadline(row, kinds if running else (), moment),
        "would_start_if": would_start_if(outlook, discretion),
        "deferral": deferral_shown(job, moment, sees=sees_prices(access, job.quota.path)),
        "deferral_past": deferral_past(job, moment, sees=sees_prices(access, job.quota.path)),
        "deferred": is_deferred(job, moment),
        "outlook": outlook,
        "looked_at": row.outlook.at if row.outlook else None,
        "queue": queue,
        "turn": turn_line(turn, discretion) if turn else None,
        **_wait(job, row, outlook, moment),
        "promise": row.promise,
        "promised": promised(row.promise, job.public_id, discretion) if row.promise else "",
        "runs": runs_of(attempts, discretion, moment),
        "evictions": evictions_told(evictions, discretion),
        "events": event_lines(events, discretion),
        "shown_attempt": shown,
        "usage": usage,
        "stragglers": job_stragglers(job) if running else [],
        **course,
        **_replicas(access, job, running, moment),
        **_service(access, job, attempts, course["range"], steers, moment),
        "phase": job_phase(access, job, running, now=moment) if running else None,
        "is_weak": usage.attempt is not None and nodes_signal({one.node_id for one in usage.attempt.workers}) == DRIVER_UTILIZATION,
        "alignment": alignment_told(alignment_of({sitting.node_id for sitting in sittings})) if len(nodes) > 1 else "",
        "seats": seats,
        "held_milli": sum(seat.milli for seat in seats) if running and any(map(is_elastic, roles_of(job.spec))) else 0,
        "expected_seconds": seconds_at(slowest_on(job.spec, kinds), job.estimate_seconds, None),
        "checkpoints": job_checkpoints(job),
        "waits_for": waits_for,
        "waited_for_by": job_waited_for_by(access, job),
        "planned": [] if job.state in ENDED else planned_lines(plans_seen(access, job=job.public_id, shown=0)[0]),
        "schedule": schedule_of(access, job),
        "origin": template_of(access, job),
        "shape": shape_of(job.spec),
        "types": types_of(job.spec),
        "launch": launch_told(job.launch) if steers else None,
        "standing": standing_told(job, usage.spent.holds),
        "may_steer": steers,
        "may_submit": access.can_somewhere(Can.SUBMIT),
        "may_follow": job.owner_id != (access.actor.user.pk if access.actor.user else None) and job.state not in ENDED,
        "follows": cache(partial(follows_job, access, job)),
        "writers": writer_choices(job_writers(job, shown)) if shown and steers else [],
        **extra,
    }
    return render(request, "scheduler/job.html", context, status=status)


def _deadline(row: JobRow, gpu_types: Collection[str], now: datetime) -> DeadlineTold | None:
    job = row.job
    if job.deadline is None:
        return None
    return deadline_told(row, gpu_types, now, overrun_for([(job.estimate_seconds, job.limit_seconds)]))


def _course(request: HttpRequest, job: Job, attempts: Sequence[Attempt], now: datetime) -> dict[str, Any]:
    """The chart of a job, and what it may show instead. With nothing in the chosen range or measure, but something in another one, it stays."""
    ranges = job_ranges(attempts, now=now)
    chosen = job_range(request.GET.get("range", ""), ranges)
    measure = measure_of(request.GET, JOB_MEASURES)
    chart = job_chart(job, attempts, now=now, chosen=chosen, measure=measure)
    is_whole = chosen == ranges[-1] and measure == JOB_MEASURES[0]
    whole = job_chart(job, attempts, now=now) if chart.is_empty and not is_whole else chart
    shown = None if whole.is_empty or len(whole.rows) <= 2 else chart
    return {"chart": shown, "range": chosen, "ranges": ranges, "measure": measure, "measures": JOB_MEASURES}


def _wait(job: Job, row: JobRow, outlook: Outlook | None, now: datetime) -> dict[str, Any]:
    """When it may start, and how good such predictions were."""
    waits, foreseen = job.state in WAITING, foreseen_start(job, outlook)
    told = prediction_of(job) if waits else None
    return {
        "waits": waits,
        "pause": standstill_now(now) if waits else None,
        "foreseen": foreseen,
        "foreseen_late": foreseen is not None and foreseen.is_late(now),
        "start_bar": None if row.promise else start_bar(foreseen, now),
        "told": told,
        "record": record_of(told, now=now) if told else None,
    }


def _replicas(access: Access, job: Job, running: Attempt | None, now: datetime) -> dict[str, Any]:
    """How many replicas of a service there are and can serve, what the next one waits for, and which are being replaced."""
    told = replicas_told(job, now=now) if is_service(job) else None
    waits = replica_awaited(job, told.missing.role, now=now) if told and told.missing and running else ""
    return {
        "replicas": told,
        "replacement": next(iter(replacements_told(job, now=now)), None) if told else None,
        "readiness": told.readiness if told else readiness_of(job, running),
        "replica_waits": sentence(Discretion(access, [waits]).text(waits)) if waits else "",
    }


def _service(access: Access, job: Job, attempts: Sequence[Attempt], chosen: Range, steers: bool, now: datetime) -> dict[str, Any]:
    """The service level of an inference job, and its chart over the range of the page's other one."""
    if job.job_class != JobClass.INFERENCE or job.state == JobState.DRAFT:
        return {}
    told = level_told(access, job, now=now)
    chart = job_level_chart(job, attempts, told, chosen=chosen, now=now)
    return {
        "service": told,
        "service_offered": steers and job.state not in ENDED,
        "service_allowed": told.level is None or job.state in ENDED or is_answered(),
        "service_chart": None if chart.is_empty else chart,
    }


class _NodeTold(NamedTuple):
    """`silent`: the name of its cluster and since when that has not responded, where it does not."""

    gpus: int
    kind: str
    silent: tuple[str, datetime] | None


def _nodes_of(public_ids: set[str]) -> dict[str, _NodeTold]:
    rows = Node.objects.filter(public_id__in=public_ids).annotate(size=Count("gpus", Q(gpus__removed_at__isnull=True)))
    told = rows.values_list("public_id", "size", "gpu_type_id", "cluster__name", "cluster__silent_since")
    return {node: _NodeTold(size, kind or "", (cluster, since) if since else None) for node, size, kind, cluster, since in told}

"""Changing a job and starting it anew: pages of their own, as both are thought over before they are done."""

import secrets
from collections.abc import Mapping, Sequence

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.previews import Preview
from gpufleet.core.times import now
from gpufleet.core.undo import Undo, done_with_undo
from gpufleet.web import Access, Can, access_of, requires
from quotas.views.confirm import confirm
from scheduler.forms import RestartForm
from scheduler.jobs.reading import change_read
from scheduler.models import ENDED, Job
from scheduler.presenters.bulk import restart_told, steer_told
from scheduler.presenters.job_changes import (
    NO_REVISION,
    REASON,
    SEEN,
    Typed,
    asked_of,
    change_rows,
    changed_words,
    faults_at_fields,
    faults_worded,
    fields_of,
    gone_words,
    revision_typed,
    texts_of,
)
from scheduler.selectors.jobs import job_for, must_steer
from scheduler.services.jobs.edit_previews import job_edit_preview, job_restart_preview
from scheduler.services.jobs.edits import job_edit, job_restart, restart_refused
from scheduler.services.jobs.steering import REASON_LENGTH
from scheduler.services.loop.steps import open_attempts
from scheduler.views.nodes import messages_by_field

UNCHANGED = Preview(sentences=["Nothing is changed so far."])
TO_BE_SEEN = Preview(sentences=["What your change does is shown here."])


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_change_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """What may be changed of a job as it stands. Only what was typed over is changed, and only if nobody was faster."""
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    if request.method != "POST":
        # An address may say what a field begins with; nothing is changed before it is saved.
        return _change_form(request, job, Typed.of(request.GET.items()))
    typed = Typed.of(request.POST.items())
    revision = revision_typed(request.POST.get("revision", ""))
    before = texts_of(job)
    try:
        if "preview" in request.POST:
            return _looked(request, access, job, typed, revision)
        edited = job_edit(access=access, job=job, change=change_read(asked_of(job, typed)), now=now(), revision=revision)
    except ValidationError as fault:
        return _refused(request, job, typed, fault, revision)
    except Stale:
        fresh = job_for(access, public_id)
        if fresh.state in ENDED:
            return _change_form(request, fresh, typed, status=409, others=["It has ended since you opened this page."])
        said = ["It has changed since you opened this page. What you typed is kept; all else is as it is now. Look at it, then save again."]
        return _change_form(request, fresh, typed.over(texts_of(fresh)), status=409, others=[*said, *gone_words(fresh, typed)])
    except Conflict as fault:
        return _change_form(request, job_for(access, public_id), typed, status=409, others=[str(fault)])
    after = texts_of(job_for(access, public_id))
    undoes = "undo" in request.POST
    text = f"{'Undone: ' if undoes else ''}{job.name} is changed: {changed_words(before, after)}."
    done_with_undo(request, text, None if undoes else _undo_of(edited, before, after))
    return redirect("job", public_id)


def _looked(request: HttpRequest, access: Access, job: Job, typed: Typed, revision: int) -> HttpResponse:
    """What the change would come to. Nothing is written."""
    before = texts_of(job)
    touched = {field.path: typed.now[field.path] for field in fields_of(job) if typed.touched(field.path, before)}
    if not touched:
        return _change_form(request, job, typed, revision=revision)
    words = changed_words(before, before | touched)
    detail = words[:1].upper() + words[1:]
    try:
        told = job_edit_preview(access=access, job=job, change=change_read(asked_of(job, typed)), detail=detail, now=now())
    except ValidationError as fault:
        return _refused(request, job, typed, fault, revision)
    return _change_form(request, job, typed, revision=revision, preview=steer_told(told))


def _refused(request: HttpRequest, job: Job, typed: Typed, fault: ValidationError, revision: int | None) -> HttpResponse:
    faults = messages_by_field(fault)
    told = Preview(sentences=(), faults=faults_worded(faults))
    return _change_form(request, job, typed, status=422, faults=faults, revision=revision, preview=told)


def _undo_of(edited: Job, before: Mapping[str, str], after: Mapping[str, str]) -> Undo | None:
    """What was changed is typed back, as long as nobody has changed the job since."""
    paths = [path for path in dict.fromkeys([*before, *after]) if before.get(path, "") != after.get(path, "")]
    fields = {path: before.get(path, "") for path in paths} | {SEEN + path: after.get(path, "") for path in paths}
    own = {"revision": str(edited.revision), REASON: "Undo of a change.", "undo": "yes"}
    return Undo(reverse("job_change", args=[edited.public_id]), fields | own) if paths else None


def _change_form(
    request: HttpRequest,
    job: Job,
    typed: Typed,
    *,
    status: int = 200,
    faults: Mapping[str, list[str]] | None = None,
    others: Sequence[str] = (),
    revision: int | None = None,
    preview: Preview | None = None,
) -> HttpResponse:
    at_fields, elsewhere = faults_at_fields(job, faults or {}, typed)
    rows = change_rows(job, typed, at_fields)
    waits = preview is None and any(row.was is not None for row in rows)
    context = {
        "job": job,
        "ended": job.state in ENDED,
        "idle": job.state in ENDED,
        "rows": [row for row in rows if not row.field.path.startswith("roles[")],
        "roles": [row for row in rows if row.field.path.startswith("roles[")],
        "reason": typed.now.get(REASON, ""),
        "reason_optional": True,
        "reason_most": REASON_LENGTH,
        "faults": {REASON: at_fields[REASON]} if at_fields.get(REASON) else {},
        "preview": preview or (TO_BE_SEEN if waits else UNCHANGED),
        "preview_waits": waits,
        "seen": [(SEEN + row.field.path, typed.seen_at(row.field.path, texts_of(job))) for row in rows],
        "others": [*others, *elsewhere],
        "revision": job.revision if revision is None else revision,
    }
    return render(request, "scheduler/job_change.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def job_restart_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """What starting anew does, a reason, and the button. Done only if the job still stands as the page showed it."""
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    if request.method != "POST":
        return _confirm_restart(request, access, job, RestartForm(initial=_seen(job), anew=job.state in ENDED))
    form = RestartForm(request.POST, anew=job.state in ENDED)
    if not form.is_valid():
        return _confirm_restart(request, access, job, form)
    given, revision = form.cleaned_data, form.cleaned_data["revision"]
    try:
        begun = job_restart(
            access=access,
            job=job,
            reason=given.get("reason", ""),
            now=now(),
            key=given["key"],
            revision=NO_REVISION if revision is None else revision,
        )
    except ValidationError as fault:
        for path, told in messages_by_field(fault).items():
            named = path if path in form.fields else None
            form.add_error(named, told if named or path == "all" else [f"{path}: {message}" for message in told])
        return _confirm_restart(request, access, job, form)
    except Conflict as fault:
        return _not_restarted(request, access, job_for(access, public_id), fault)
    if begun.pk == job.pk:
        messages.success(request, f"{job.name} is saving its work. It queues again once it has released its GPUs.")
    else:
        messages.success(request, f"{job.name} is submitted again: {begun.public_id}.")
    return redirect("job", begun.public_id)


def _seen(job: Job) -> dict[str, object]:
    return {"revision": job.revision, "key": secrets.token_hex(12)}


def _not_restarted(request: HttpRequest, access: Access, job: Job, fault: Conflict) -> HttpResponse:
    """The page as it is now, so that a second press is about what it says."""
    data = request.POST.copy()
    data["revision"] = str(job.revision)
    form = RestartForm(data, anew=job.state in ENDED)
    form.add_error(None, "It has changed since you opened this page. Below is what would happen now." if isinstance(fault, Stale) else str(fault))
    answer = _confirm_restart(request, access, job, form)
    answer.status_code = 409
    return answer


def _confirm_restart(request: HttpRequest, access: Access, job: Job, form: RestartForm) -> HttpResponse:
    page = reverse("job", args=[job.public_id])
    above = [("Jobs", reverse("jobs")), (job.public_id, page)]
    send = "Submit it again" if job.state in ENDED else "Restart"
    effects = _effects(access, job)
    return confirm(request, form, above=above, back=page, leave="Back to the job", heading=f"Restart {job.name}?", send=send, effects=effects)


def _effects(access: Access, job: Job) -> Preview:
    if job.state in ENDED:
        return Preview(
            sentences=[
                "A copy is submitted as a new job with your permissions, behind the jobs that wait.",
                "This one and its history stay as they are.",
            ]
        )
    if refused := restart_refused(job, open_attempts([job.pk]).get(job.pk)):
        return Preview(sentences=(), faults=[refused])
    return restart_told(job_restart_preview(access=access, job=job, now=now()))

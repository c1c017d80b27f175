"""The service level of a job: the page on which it is stated, and its chart for another range."""

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from dashboards.courses import job_range, job_ranges
from dashboards.slo.models import QUERY_LENGTH, TITLE_LENGTH
from dashboards.slo.selectors import job_level_chart, level_missing, level_of, level_told
from dashboards.slo.services import MOST_MS, TITLE, level_facts, must_serve, service_level_remove, service_level_set
from gpufleet.core.charts import chart_response
from gpufleet.core.faults import Conflict, Missing
from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from quotas.forms import ReasonForm, show_faults
from quotas.views.confirm import confirm
from scheduler.selectors.jobs import job_attempts, job_for, must_steer

QUERY = forms.Textarea(attrs={"rows": 2, "spellcheck": "false"})


class LevelForm(forms.Form):
    title = forms.CharField(max_length=TITLE_LENGTH, initial=TITLE, label="Name", help_text="Such as p99 latency or time to first token.")
    latency = forms.CharField(
        max_length=QUERY_LENGTH,
        label="Latency (PromQL)",
        widget=QUERY,
        help_text="One number, in seconds: histogram_quantile(0.99, sum by (le) (rate(…_bucket[5m]))).",
    )
    objective_ms = forms.IntegerField(min_value=1, max_value=MOST_MS, label="Objective, ms")
    rate = forms.CharField(
        max_length=QUERY_LENGTH, required=False, label="Requests a second (PromQL)", widget=QUERY, help_text="Such as sum(rate(…_total[5m]))."
    )
    wanted = forms.CharField(
        max_length=QUERY_LENGTH, required=False, label="Replicas wanted (PromQL)", widget=QUERY, help_text="Of the autoscaler. A replica is a worker."
    )
    reason = forms.CharField(max_length=280, required=False, help_text="Kept in the audit log with your name.")
    revision = forms.IntegerField(widget=forms.HiddenInput, required=False)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def service_level_edit(request: HttpRequest, public_id: str) -> HttpResponse:
    """State it or change it, unless somebody was faster."""
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    try:
        must_serve(job)
    except Conflict as fault:
        raise Missing(str(fault)) from None
    level = level_of(job)
    initial = (level_facts(level) if level else {}) | {"revision": level.revision if level else 0}
    form = LevelForm(request.POST if request.method == "POST" else None, initial=initial)
    status = 200
    if request.method == "POST":
        status = 422
        if form.is_valid():
            given = form.cleaned_data
            try:
                service_level_set(access=access, job=job, values=given, now=now(), reason=given["reason"], revision=given["revision"])
            except ValidationError as fault:
                show_faults(form, fault)
            except Conflict as fault:
                form.add_error(None, str(fault))
                status = 409
            else:
                messages.success(request, f"The service level of {job.name} is set. It is read within 15 seconds.")
                return redirect("job", public_id)
    heading = f"Service level of {job.name}"
    context = {"form": form, "heading": heading, "send": "Save", "back": reverse("job", args=[public_id])}
    return render(request, "quotas/form.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@requires(Can.SEE)
def service_level_remove_page(request: HttpRequest, public_id: str) -> HttpResponse:
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    if level_of(job) is None:
        raise level_missing(job)
    form = ReasonForm(request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            service_level_remove(access=access, job=job, now=now(), reason=form.cleaned_data["reason"])
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            messages.success(request, f"The service level of {job.name} is removed.")
            return redirect("job", public_id)
    back = reverse("job", args=[public_id])
    effects = ["It is not read any more, and no breach is told.", "What was read stays for 14 days, and breaches for 400."]
    above = [("Jobs", reverse("jobs")), (job.public_id, back)]
    return confirm(request, form, heading=f"Remove the service level of {job.name}", send="Remove", effects=effects, above=above, back=back)


@require_GET
@requires(Can.SEE)
def service_level_course(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """The chart of the job's page for another range, or a minute later."""
    access, moment = access_of(request), now()
    job = job_for(access, public_id)
    attempts = job_attempts(job)
    chosen = job_range(request.GET.get("range", ""), job_ranges(attempts, now=moment))
    chart = job_level_chart(job, attempts, level_told(access, job, now=moment), chosen=chosen, now=moment)
    answer = chart_response(request, chart, name=f"{job.public_id}-service-level")
    answer["Cache-Control"] = "no-store"
    return answer

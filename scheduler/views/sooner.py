"""What would start a waiting job sooner: a part of its page that comes after it, and by itself without scripts."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from gpufleet.core.times import now
from gpufleet.web import Can, access_of, requires
from scheduler.jobs.writing import description_again
from scheduler.presenters.sooner import proposals
from scheduler.selectors.jobs import WAITING, job_for, must_steer
from scheduler.services.forecasts.grounds import AGAIN_SECONDS
from scheduler.services.forecasts.sooner import job_sooner


@require_safe
@requires(Can.SEE)
def job_sooner_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """With `?part` only what the job's page shows of it. While the fleet is being read it says so and asks again by itself."""
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    found = job_sooner(access=access, job=job, description=description_again(job, with_launch=True), now=now())
    context = {
        "job": job,
        "waits": job.state in WAITING,
        "found": found,
        "better": proposals(job, found) if found else [],
        "again_ms": None if found else 1000 * AGAIN_SECONDS,
    }
    return render(request, "scheduler/_job_sooner.html" if "part" in request.GET else "scheduler/job_sooner.html", context)

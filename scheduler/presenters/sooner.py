"""What would start a waiting job sooner, in words, each with the form where it is done."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from scheduler.jobs.fields import description_of, steps_of, value_at
from scheduler.models import Job
from scheduler.presenters.fitting import better_of
from scheduler.services.forecasts.proposals import changed
from scheduler.services.forecasts.sooner import Sooner, in_place

# Before the path of a field of the submission form, in an address: the text that it begins with.
WITH = "with."


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change. `in_place`: of the job as it stands; else it is submitted again so, and this one is to be cancelled."""

    path: str
    to: Any
    text: str
    at: datetime
    now: bool
    in_place: bool
    href: str


def proposals(job: Job, found: Sooner) -> list[Proposal]:
    return [_proposal(job, change.path, change.to, change.at, change.now) for change in found.changes]


def _proposal(job: Job, path: str, to: Any, at: datetime, now: bool) -> Proposal:
    better, stays = better_of(path, to, at, now), in_place(path)
    if stays:
        # The form of a job that is there has its workers by role.
        field = "roles[0].min" if path == "workers" else path
        href = f"{reverse('job_change', args=[job.public_id])}?{urlencode({field: better.value})}"
    else:
        href = f"{reverse('job_new')}?{urlencode({'clone': job.public_id, WITH + path: better.value})}"
    return Proposal(path, to, better.text, at, now, stays, href)


def described_with(description: dict[str, Any], asked: dict[str, str]) -> dict[str, Any]:
    """A description with what an address says beside it, by the paths of fields. A field that is said to be empty is taken out."""
    for path, text in asked.items():
        read = description_of({path: text}) if text else {}
        description = changed(description, path, value_at(read, steps_of(path)) if read else None)
    return description

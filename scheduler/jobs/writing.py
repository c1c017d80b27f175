"""A job that was submitted, as a description that could be submitted again: the other direction of `scheduler.jobs.schema`."""

from datetime import datetime
from typing import Any

from scheduler.jobs.schema import IN_IMAGE
from scheduler.models import Job

PREEMPTIBLE: dict[str, bool | str] = {"yes": True, "no": False, "when_borrowed": "when_borrowed"}
# Set by the array that the job was an element of.
ARRAY_INDEX = "GPUFLEET_ARRAY_INDEX"
# Set by the schedule that submitted it. It stays when the same is submitted again: the run is still about that time.
DUE_AT = "GPUFLEET_DUE_AT"


def description_of(job: Job, now: datetime) -> dict[str, Any]:
    """What `POST /jobs` would take. Times that have passed, and what only belonged to its array, are left out."""
    found: dict[str, Any] = {"name": job.name, "quota": job.quota.path, "class": job.job_class, "priority": job.priority}
    found["preemptible"] = PREEMPTIBLE[job.preemptible]
    found |= {key: value for key, value in job.spec.items() if key not in ("roles", IN_IMAGE)}
    roles = [_role(dict(role)) for role in job.spec.get("roles") or ()]
    if roles:
        found["roles"] = roles
    else:
        found["gpus"] = -(-job.gpus_milli // 1000)
    found |= {key: value for key, value in (("estimate_s", job.estimate_seconds), ("limit_s", job.limit_seconds)) if value is not None}
    if job.not_before is not None and job.not_before > now:
        found["not_before"] = job.not_before.isoformat()
    if job.deadline is not None and job.deadline > now:
        found["deadline"] = job.deadline.isoformat()
    found |= {key: value for key, value in (("retries", job.retry_limit), ("labels", job.labels), ("cost_centre", job.cost_centre)) if value}
    launch = dict(job.launch)
    if env := {key: value for key, value in (launch.pop("env", None) or {}).items() if not (job.array and key == ARRAY_INDEX)}:
        launch["env"] = env
    return found | ({"launch": launch} if launch else {})


def _role(role: dict[str, Any]) -> dict[str, Any]:
    """`count` is short for a fixed number of workers in what was not submitted through the schema."""
    if "count" in role:
        role["min"] = role["max"] = role.pop("count")
    return role

"""A job that was submitted, as a description that could be submitted again: the other direction of `scheduler.jobs.schema`."""

from datetime import datetime
from typing import Any

from scheduler.jobs.stored import COLUMNS, IN_IMAGE, PREEMPTIBLE, least_of, name_of, roles_of, serves_in_replicas
from scheduler.models import Job

# A role of no more than these is said by `gpus`, `workers` and `gpu_types`.
PLAIN_ROLE = frozenset({"name", "min", "gpus", "gpu_types"})
# What a job may have none of. Its times are not among them, as they may have passed.
STATED = ("estimate_s", "limit_s", "defer", "retries", "labels", "cost_centre")
# Set by the array that the job was an element of.
ARRAY_INDEX = "GPUFLEET_ARRAY_INDEX"
# Set by the schedule that submitted it. It stays when the same is submitted again: the run is still about that time.
DUE_AT = "GPUFLEET_DUE_AT"


def description_of(job: Job, now: datetime) -> dict[str, Any]:
    """What `POST /jobs` would take. Times that have passed, and what only belonged to its array, are left out."""
    times = {"not_before": job.not_before, "deadline": job.deadline}
    found = _timeless(job) | {key: moment.isoformat() for key, moment in times.items() if moment is not None and moment > now}
    if "deadline" not in found:
        found.pop("defer", None)  # it needs one
    return found


def description_again(job: Job, *, with_launch: bool) -> dict[str, Any]:
    """The same as a form shows it to whom wants such a job: without what only held for its own time, and a single role in short."""
    found = _timeless(job)
    if job.array_index is not None:
        found["name"] = job.name.removesuffix(f"[{job.array_index}]")
    roles = roles_of(job.spec)
    if len(roles) == 1 and (role := roles[0]).keys() <= PLAIN_ROLE and role.get("gpus") and name_of(role) == "worker":
        del found["roles"]
        found |= {"gpus": role["gpus"], "workers": least_of(role)} | ({"gpu_types": role["gpu_types"]} if "gpu_types" in role else {})
    if not with_launch:
        found.pop("launch", None)
    return found


def _timeless(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = {"name": job.name, "quota": job.quota.path, "class": job.job_class, "priority": job.priority}
    found["preemptible"] = PREEMPTIBLE[job.preemptible]
    found |= {key: value for key, value in job.spec.items() if key != IN_IMAGE}
    found |= {key: value for key in STATED if (value := getattr(job, COLUMNS[key]))}
    launch = dict(job.launch)
    if launch.get("in_place") is True and serves_in_replicas(job.job_class, job.spec):
        del launch["in_place"]  # as where nothing is stated
    if env := {key: value for key, value in (launch.pop("env", None) or {}).items() if not (job.array and key == ARRAY_INDEX)}:
        launch["env"] = env
    return found | ({"launch": launch} if launch else {})

"""A small fleet under the loop, driven by hand: jobs, ticks at a moment, and runs that come up and end when a test says so."""

from datetime import datetime, timedelta
from typing import Any

from gpufleet.core.audit import Actor
from quotas.models import QuotaNode, QuotaShare
from scheduler.models import Attempt, Job, Lease
from scheduler.services.jobs.jobs import attempt_ended, attempt_running, job_create
from scheduler.services.loop.tick import Memory, TickResult, tick_run
from tests import builders
from tests.builders import NOON

H100 = "H100-SXM-80GB"
SOMEBODY = Actor(None, "Ada", "system")


def leaf(name: str, guaranteed: int = 0, limit: int | None = None) -> QuotaNode:
    """A team below the top with so many GPUs guaranteed."""
    node = builders.quota(name, parent=builders.quota())
    QuotaShare.objects.get_or_create(
        node=node, gpu_type=H100, defaults={"guaranteed_milli": 1000 * guaranteed, "limit_milli": None if limit is None else 1000 * limit}
    )
    return node


def submit(
    quota: QuotaNode | None = None, *, gpus: int = 1, workers: int = 1, at: datetime = NOON, spec: dict[str, Any] | None = None, **fields: Any
) -> Job:
    """A job whose workers want `gpus` each."""
    facts: dict[str, Any] = {"name": "train", "owner": None, "job_class": "batch", "now": at, "actor": SOMEBODY}
    launch = fields.pop("launch", {})
    facts |= {"spec": builders.spec_of(spec, workers=workers, gpus=gpus), "gpus_milli": 1000 * gpus * workers, "quota": quota or leaf("team", 8)}
    job = job_create(**(facts | fields))
    if launch:
        Job.objects.filter(pk=job.pk).update(launch=launch)
    return job


class Loop:
    """Ticks at moments that the test names."""

    def __init__(self, holder: str = "one") -> None:
        self.holder = holder
        self.memory = Memory()
        self.now = NOON

    def after(self, **length: float) -> "Loop":
        self.now += timedelta(**length)
        return self

    def tick(self, **options: Any) -> TickResult:
        return tick_run(holder=self.holder, now=self.now, backends={}, memory=self.memory, **options)

    def up(self, job: Job) -> Attempt:
        """The back-end says that all its workers are up."""
        run = attempt_of(job)
        assert attempt_running(attempt=run, now=self.now)
        return run

    def over(self, job: Job, exit_code: int | None = 0, **how: Any) -> None:
        """The back-end says that it is gone."""
        assert attempt_ended(attempt=attempt_of(job), exit_code=exit_code, now=self.now, **how)


def attempt_of(job: Job) -> Attempt:
    return Attempt.objects.get(job=job, ended_at__isnull=True)


def state(job: Job) -> str:
    return Job.objects.get(pk=job.pk).state


def gpus_of(job: Job) -> list[int]:
    """Indices of the GPUs that it holds."""
    return sorted(job.placements.filter(until__isnull=True).values_list("gpu__index", flat=True))


def wishes() -> int:
    row = Lease.objects.get(name="tick")
    return row.wanted - row.done

"""How the owner of a running job gets into it (JOB-9): a shell, the port that it listens on, and the token that its service may ask for."""

from dataclasses import dataclass
from typing import NamedTuple

from gpufleet.core.audit import audit_record
from gpufleet.core.faults import Conflict
from quotas.permissions import Access
from scheduler.backends.base import BackendError, Reach, attempt_key
from scheduler.backends.registry import SIMULATED, backends_all
from scheduler.models import Attempt, Job, JobState, Placement
from scheduler.selectors.jobs import must_steer
from scheduler.services.jobs.tokens import access_token


class Step(NamedTuple):
    """A command line for people, and where it is entered."""

    label: str
    line: str


@dataclass(frozen=True, slots=True)
class Connection:
    """`url` is where the service answers once the port is forwarded; `token` what it was told to ask for, empty as long as nobody asked to see it."""

    host: str
    steps: tuple[Step, ...]
    port: int | None
    url: str = ""
    token: str = ""


def job_connection(*, access: Access, job: Job) -> Connection:
    """Without the token. `Conflict` where there is nothing to connect to, with the reason."""
    must_steer(access, job)
    return _connection(job, _open_attempt(job))


def job_connect(*, access: Access, job: Job) -> Connection:
    """With the token; who asked for it is in the audit log."""
    must_steer(access, job)
    attempt = _open_attempt(job)
    found = _connection(job, attempt)
    if not found.port:
        return found
    audit_record(actor=access.actor, action="job.connect", kind="job", object_id=job.public_id, after={"attempt": attempt.number})
    token = access_token(_key(job, attempt))
    return Connection(found.host, found.steps, found.port, f"http://127.0.0.1:{found.port}/?token={token}", token)


def may_connect(job: Job) -> bool:
    """Whether it runs on machines that are really there."""
    held = Placement.objects.filter(job=job, until__isnull=True)
    return job.state == JobState.RUNNING and held.exclude(node__cluster__backend=SIMULATED).exists()


def _open_attempt(job: Job) -> Attempt:
    attempt = job.attempts.filter(ended_at__isnull=True, running_at__isnull=False).first()
    if attempt is None:
        raise Conflict(f"{job.public_id} is not running. Connect once all its workers are up.")
    return attempt


def _key(job: Job, attempt: Attempt) -> str:
    return attempt_key(job=job.public_id, attempt=attempt.number)


def _connection(job: Job, attempt: Attempt) -> Connection:
    port = job.launch.get("port")
    reach = _reach(job, attempt)
    steps = []
    if reach.shell:
        steps.append(Step(f"A shell in its first worker, on a login node{f' as {reach.user}' if reach.user else ''}", reach.shell))
    if port:
        line = f"{reach.forward} {port}" if reach.forward else f"ssh -N -L {port}:127.0.0.1:{port} {reach.host}"
        steps.append(Step(f"Port {port} on your machine", line))
    return Connection(reach.host, tuple(steps), port)


def _reach(job: Job, attempt: Attempt) -> Reach:
    first = Placement.objects.filter(attempt=attempt, until__isnull=True).order_by("id").select_related("node__cluster").first()
    backend = backends_all().get(first.node.cluster_id) if first is not None else None
    try:
        found = None if backend is None else backend.reach(key=_key(job, attempt))
    except BackendError as fault:
        raise Conflict(f"{job.public_id} can't be reached now: {fault}") from fault
    if found is None:
        raise Conflict(f"{job.public_id} runs on simulated hardware: there is nothing to connect to.")
    return found

"""How a job is told over HTTP: in a list, and by itself with its attempts, places and checkpoints."""

from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import Field

from gpufleet.core.times import now
from gpufleet.web import Access
from scheduler.jobs.stored import least_of, most_of, roles_of
from scheduler.models import Attempt, Job
from scheduler.presenters.deferring import deferral_facts
from scheduler.presenters.jobs import JobLine, Life, job_lines, life_of, line_of
from scheduler.selectors.alignment import alignment_of
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.energy import sees_prices
from scheduler.selectors.jobs import (
    JobRow,
    SavedState,
    Sitting,
    attempt_sittings,
    job_attempts,
    job_checkpoints,
    job_rows,
    job_wait,
    job_waits_for,
    may_steer,
)
from scheduler.selectors.readiness import Readiness, readiness_of
from scheduler.selectors.templates import template_of
from scheduler.services.jobs.deferring import Deferral


class NowOut(Schema):
    """What a job does or waits for, in one sentence; `at` belongs to it, and `before` says how. `more` counts further reasons, which `/why` tells."""

    text: str
    at: datetime | None
    before: str
    more: int


class JobOut(Schema):
    id: str
    name: str
    state: str
    since: datetime
    revision: int
    quota: str
    owner: str | None
    job_class: str = Field(alias="class")
    priority: int
    gpus_milli: int
    least_milli: int = Field(description="The fewest that it runs on, in thousandths of a GPU.")
    submitted_at: datetime
    ended_at: datetime | None
    held_at: datetime | None
    array: str | None
    array_index: int | None
    template: str | None = Field(description="Of the template that it began with the id, or the name of a shipped one.")
    template_version: int | None
    schedule: str | None = Field(description="Which submitted it.")
    due_at: datetime | None = Field(description="When that schedule was due.")
    now: NowOut
    nodes: list[str]


class JobsOut(Schema):
    """One page of jobs. `next` and `previous` go into `after` and `before`; null where there is nothing more."""

    items: list[JobOut]
    next: str | None
    previous: str | None


class WorkerOut(Schema):
    role: str
    index: int
    node: str
    gpu: int | None
    gpu_milli: int
    mig: str | None
    leaving: bool
    ready: bool | None = Field(description="Whether it can serve; null where it is not asked (`launch.ready`), or that is unknown.", examples=[True])
    ready_since: datetime | None = Field(description="Since when it is ready, or is not.", examples=["2026-03-02T10:02:15Z"])


class AttemptOut(Schema):
    number: int
    outcome: str | None
    cause: str
    started_at: datetime
    running_at: datetime | None
    ended_at: datetime | None
    exit_code: int | None
    resumed_from_step: int | None
    stop_asked_at: datetime | None
    stop_until: datetime | None
    workers: list[WorkerOut]


class CheckpointOut(Schema):
    step: int
    attempt: int
    state: str
    shards: int
    shards_expected: int
    location: str
    reported_at: datetime
    verified_at: datetime | None


class LifeOut(Schema):
    """Seconds of a job's life until now or its end. `aside`: held by a person, not due, backing off or behind other jobs.

    `deferred`: put off to hours of better energy.
    """

    waited_for_quota_s: float
    waited_for_gpus_s: float
    aside_s: float
    deferred_s: float
    starting_s: float
    running_s: float


class AlignmentOut(Schema):
    """How close together the nodes of the newest attempt stand."""

    nodes: int = Field(description="How many nodes it is on.", examples=[4])
    level: str | None = Field(description="Level of the narrowest domain that has all of them; null where none has.", examples=["leaf"])
    domain: str | None = Field(description="That domain.", examples=["spine-1/leaf-2"])
    rail_level: str | None = Field(description="The level on whose domains rails end; null where its cluster has no rails.", examples=["leaf"])
    rail_domains: dict[str, int] = Field(description="Nodes by domain of that level.", examples=[{"spine-1/leaf-2": 4}])
    rail_aligned: bool | None = Field(description="Whether all of them are in one such domain; null where there are no rails.", examples=[True])


class DeferralOut(Schema):
    """The hour to which a job is deferred (`to`), chosen by the mean rates of energy over its run. Null: it is not deferred, and `text` says why.

    Prices and savings in money are null for those who may not see them.
    """

    by: str = Field(description="price or carbon.", examples=["price"])
    to: datetime | None = Field(description="It starts then at the earliest.")
    latest_start: datetime | None = Field(description="A start that still ends by its deadline.")
    pool: str = Field(description="The pool whose rates it was chosen by; empty: the whole fleet.", examples=[""])
    price_micros: int | None = Field(description="Of a kWh then, in millionths of the currency.", examples=[110000])
    price_now_micros: int | None = Field(description="Of a kWh if it started at once.", examples=[240000])
    saved_micros: int | None = Field(description="By estimate, in millionths of the currency.", examples=[1456000])
    grams: int | None = Field(description="CO2 for each kWh then.")
    grams_now: int | None = Field(description="CO2 for each kWh if it started at once.")
    saved_grams: int | None = Field(description="CO2, by estimate.")
    watt_hours: int | None = Field(description="That its GPUs take, by their rated power and its estimate.", examples=[11200])
    text: str


class JobDetailOut(JobOut):
    most_milli: int = Field(description="The most that it grows to, in thousandths of a GPU.")
    preemptible: str
    labels: dict[str, Any]
    cost_centre: str
    estimate_s: int | None
    limit_s: int | None
    not_before: datetime | None
    deadline: datetime | None
    defer: str | None = Field(description="By what it may be deferred: price or carbon.", examples=["price"])
    deferral: DeferralOut | None = Field(description="Null of a job that may not be deferred, or is still to be judged.")
    retry_limit: int
    failures: int
    evictions: int = Field(
        description="How often the scheduler evicted it for other jobs; its back-off grows with this. `/evictions` lists every kind."
    )
    life: LifeOut
    spec: dict[str, Any]
    launch: dict[str, Any] | None = Field(description="What is started; null for readers who may not steer the job.")
    parameters: dict[str, str] | None = Field(description="Variables of this array element; null for readers who may not steer the job.")
    waits_for: list[str]
    attempts: list[AttemptOut] = Field(description="Newest first. Workers receive the newest alone.")
    checkpoints: list[CheckpointOut]
    alignment: AlignmentOut | None = Field(description="Null of a job on fewer than two nodes.")
    may_steer: bool
    template_speeds: int | None = Field(description="Which speeds of its template it was given; null where it states its own, or has none.")
    template_ref: str | None = Field(description="As a description names that version: org/nlp:serve@3. Null where the caller may not begin with it.")


def job_brief(access: Access, found: Job) -> dict[str, Any]:
    """A job as the list has it."""
    return line_row(lines_of(access, [found])[0])


def lines_of(access: Access, rows: Any) -> list[JobLine]:
    return job_lines(job_rows(access, rows), now(), every_node=True)


def line_row(line: JobLine) -> dict[str, Any]:
    return _facts(line.job, line.held_milli) | {"now": _line(line), "nodes": [name for _, name in line.nodes]}


def now_told(row: JobRow) -> dict[str, Any]:
    return _told(line_of(row, now()))


def _line(line: JobLine) -> dict[str, Any]:
    return _told(line.line)


def _told(line: Any) -> dict[str, Any]:
    return {"text": line.text, "at": line.at, "before": line.before if line.at else "", "more": line.more}


def _facts(found: Job, held_milli: int) -> dict[str, Any]:
    return {
        "id": found.public_id,
        "name": found.name,
        "state": found.state,
        "since": found.state_since,
        "revision": found.revision,
        "quota": found.quota.path,
        "owner": found.owner.username if found.owner else None,
        "class": found.job_class,
        "priority": found.priority,
        "gpus_milli": max(held_milli, found.gpus_milli),
        "least_milli": found.gpus_milli,
        "submitted_at": found.submitted_at,
        "ended_at": found.ended_at,
        "held_at": found.held_at,
        "array": found.array or None,
        "array_index": found.array_index,
        "template": found.template,
        "template_version": found.template_version,
        "schedule": found.schedule,
        "due_at": found.due_at,
    }


def _most_milli(found: Job) -> int:
    roles = roles_of(found.spec)
    if len(roles) == 1:  # in parts of GPUs as well
        return found.gpus_milli * most_of(roles[0]) // max(1, least_of(roles[0]))
    return found.gpus_milli + sum(1000 * (role.get("gpus") or 0) * (most_of(role) - least_of(role)) for role in roles)


def job_detail(access: Access, found: Job) -> dict[str, Any]:
    row = job_rows(access, [found])[0]
    attempts = job_attempts(found)
    told = Discretion(access, [text for attempt in attempts for text in (attempt.cause, attempt.stop_cause)])
    steers = may_steer(access, found)
    sittings = attempt_sittings(attempts[0]) if attempts else []
    readiness = readiness_of(found, attempts[0] if attempts else None)
    return _facts(found, row.held_milli) | {
        "most_milli": _most_milli(found),
        "now": now_told(row),
        "nodes": [name for _, name in row.nodes],
        "preemptible": found.preemptible,
        "labels": found.labels,
        "cost_centre": found.cost_centre,
        "estimate_s": found.estimate_seconds,
        "limit_s": found.limit_seconds,
        "not_before": found.not_before,
        "deadline": found.deadline,
        "defer": found.defer,
        "deferral": deferral_facts(
            Deferral.kept(found.deferral) if found.defer and found.deferral else None, sees=sees_prices(access, found.quota.path)
        ),
        "retry_limit": found.retry_limit,
        "failures": found.failures,
        "evictions": found.evictions,
        "life": _life(life_of(found, attempts, now(), job_wait(found))),
        "spec": found.spec,
        "launch": found.launch if steers else None,
        "parameters": found.parameters if steers else None,
        "waits_for": [one.job.public_id for one in job_waits_for(access, found) if one.named],
        "attempts": [_attempt(attempt, told, sittings if number == 0 else [], readiness) for number, attempt in enumerate(attempts)],
        "checkpoints": [_checkpoint(saved) for saved in job_checkpoints(found)],
        "alignment": _alignment(attempts[0], sittings) if attempts else None,
        "may_steer": steers,
        "template_speeds": found.template_speeds,
        "template_ref": (origin.exact or None) if (origin := template_of(access, found)) else None,
    }


def _alignment(attempt: Attempt, sittings: list[Sitting]) -> dict[str, Any] | None:
    nodes = {sitting.node_id for sitting in sittings if attempt.ended_at or sitting.until is None}
    found = alignment_of(nodes) if len(nodes) > 1 else None
    if found is None:
        return None
    names = {name: getattr(found, name) or None for name in ("level", "domain", "rail_level")}
    return names | {"nodes": found.nodes, "rail_domains": dict(found.rail_domains), "rail_aligned": found.is_aligned}


def _life(life: Life) -> dict[str, float]:
    seconds = {part.key: part.seconds for part in life.parts}
    keys = {
        "waited_for_quota_s": "quota",
        "waited_for_gpus_s": "gpus",
        "aside_s": "aside",
        "deferred_s": "deferred",
        "starting_s": "start",
        "running_s": "run",
    }
    return {name: seconds.get(key, 0.0) for name, key in keys.items()}


def _attempt(attempt: Attempt, told: Discretion, sittings: list[Sitting], readiness: Readiness | None) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "outcome": attempt.outcome or None,
        "cause": told.text(attempt.cause or attempt.stop_cause),
        "started_at": attempt.started_at,
        "running_at": attempt.running_at,
        "ended_at": attempt.ended_at,
        "exit_code": attempt.exit_code,
        "resumed_from_step": attempt.resumed_from.step if attempt.resumed_from else None,
        "stop_asked_at": attempt.stop_asked_at,
        "stop_until": attempt.stop_until,
        "workers": [_worker(sitting, readiness) for sitting in sittings if attempt.ended_at or sitting.until is None],
    }


def _worker(sitting: Sitting, readiness: Readiness | None) -> dict[str, Any]:
    known = readiness.of(sitting.role, sitting.worker) if readiness is not None else None
    return {
        "role": sitting.role,
        "index": sitting.worker,
        "node": sitting.node,
        "gpu": sitting.index,
        "gpu_milli": sitting.gpu_milli,
        "mig": sitting.profile or None,
        "leaving": sitting.leaving_since is not None,
        "ready": known.ready if known else None,
        "ready_since": known.since if known and known.ready is not None else None,
    }


def _checkpoint(saved: SavedState) -> dict[str, Any]:
    found = saved.checkpoint
    return {
        "step": found.step,
        "attempt": found.attempt.number,
        "state": saved.state,
        "shards": saved.shards,
        "shards_expected": found.shards_expected,
        "location": found.location,
        "reported_at": found.reported_at,
        "verified_at": found.verified_at,
    }

"""The replicas of a service over HTTP: how many there are and are wanted, how soon added ones had their place, and another number of them."""

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from dashboards.slo.selectors import must_have_metric
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.faults import Missing
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import Access, access_of
from scheduler.api.jobs import JobChangePreviewOut, change_foreseen
from scheduler.api.lists import answered
from scheduler.models import Job, ScalingEnd
from scheduler.presenters.jobs import sentence
from scheduler.scenarios.kinds import MOST_WORKERS
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.jobs import job_for, must_steer
from scheduler.selectors.scaling import ScalingTold, is_service, replicas_told
from scheduler.services.forecasts.replicas import replica_awaited
from scheduler.services.jobs.edit_previews import job_scale_preview
from scheduler.services.jobs.scaling import COOLDOWN, LONGEST_COOLDOWN, job_scale, replicas_follow_set

router = Router(tags=["Jobs"])


class RoleReplicasOut(Schema):
    """A role with a range of workers; a replica is a worker."""

    role: str = Field(description="Its name.", examples=["worker"])
    placed: int = Field(description="Replicas that have their place.", examples=[3])
    ready: int | None = Field(
        description="Replicas that can serve; null where they are not asked (`launch.ready`), or the job does not run.", examples=[3]
    )
    wanted: int = Field(description="Replicas that are wanted now.", examples=[4])
    stated: bool = Field(description="False: nobody said how many, so as many are wanted as find room.", examples=[True])
    min: int = Field(description="The fewest that its description allows.", examples=[1])
    max: int = Field(description="The most that its description allows.", examples=[6])
    step: int = Field(description="So many are added or released together.", examples=[1])


class ScalingOut(Schema):
    """A change of how many replicas are wanted."""

    role: str = Field(description="Of which role.", examples=["worker"])
    at: datetime
    by: str = Field(description="Name of the person, or of the part of the console, that changed it.", examples=["Ada Okafor"])
    by_metric: bool = Field(description="Whether it followed its metric.", examples=[False])
    reason: str
    before: int = Field(description="How many were wanted before.", examples=[3])
    after: int = Field(description="How many are wanted since.", examples=[4])
    placed_before: int = Field(description="How many had their place then.", examples=[3])
    over_at: datetime | None = Field(
        description="When as many had their place, or it ended otherwise; null as long as it is awaited.", examples=["2026-03-02T10:02:15Z"]
    )
    end: str | None = Field(
        description="How it ended; null as long as it is awaited.", json_schema_extra={"enum": [*ScalingEnd.values, None]}, examples=["placed"]
    )
    seconds: float | None = Field(
        description="Of one that adds replicas, until the last of them had its place, or so far; null where that was not awaited.", examples=[4.2]
    )
    within_bound: bool | None = Field(description="Whether these are at most `bound_s`; null without them.", examples=[True])
    ready_seconds: float | None = Field(
        description="Of one that added replicas, until as many could serve; null where that is not known (yet).", examples=[12.5]
    )


class ReplicaOut(Schema):
    """A replica that has its place, of a service whose replicas are asked whether they can serve."""

    role: str = Field(description="Its role.", examples=["worker"])
    index: int = Field(description="Its number in that role.", examples=[2])
    node: str = Field(description="Where it stands.", examples=["gpu-01"])
    ready: bool | None = Field(description="Null: unknown, as nobody asks it, or nobody hears of it.", examples=[True])
    since: datetime | None = Field(description="Since when it is ready, or is not; null where that is unknown.", examples=["2026-03-02T10:02:15Z"])
    why: str = Field(description="Why it is not ready, or why that is unknown.", examples=[""])


class ReplicaRuleOut(Schema):
    """That a service follows its metric, the replicas wanted of its service level."""

    role: str = Field(description="Which role is given what it says.", examples=["worker"])
    cooldown_s: int = Field(description="So many seconds it has to want fewer before there are fewer.", examples=[300])
    since: datetime
    by: str = Field(description="Name of the person who had it follow.", examples=["Ada Okafor"])
    figure: int | None = Field(description="What it said when it was read last; null before.", examples=[4])
    read_at: datetime | None = Field(description="When it was read last; null before.", examples=["2026-03-02T10:02:11Z"])
    fewer_from: datetime | None = Field(
        description="When there are fewer replicas if it goes on to want fewer; null where it does not.", examples=["2026-03-02T10:07:11Z"]
    )


class ReplicasOut(Schema):
    """How many replicas there are and are wanted, and the newest ten changes of it."""

    roles: list[RoleReplicasOut] = Field(description="Each role with a range of workers.")
    bound_s: int = Field(description="Added replicas should have their place within so many seconds.", examples=[60])
    waits: str = Field(
        description="Why a replica that is wanted has no place yet; empty where none is missing, or where nobody can say now.", examples=[""]
    )
    follow: ReplicaRuleOut | None = Field(description="Null where the number is set by hand.")
    replicas: list[ReplicaOut] | None = Field(description="Each replica that has its place; null as `ready` of the role.")
    scalings: list[ScalingOut] = Field(description="The latest first.")
    revision: int = Field(description="Of the job; its `ETag` for `If-Match`.")


class ReplicasAsked(Taken):
    replicas: int = Field(ge=0, le=MOST_WORKERS, description="How many are wanted, from the least to the most of its role.", examples=[4])
    role: str = Field("", max_length=100, description="Which role; needed only where several have a range.")


class ReplicasIn(Taken):
    """Either a number, or whether it follows its metric; a number together with `follow: false` stops that first."""

    replicas: int | None = Field(
        None, ge=0, le=MOST_WORKERS, description="How many are wanted, from the least to the most of its role.", examples=[4]
    )
    follow: bool | None = Field(None, description="Whether it follows its metric: the replicas wanted of its service level.", examples=[False])
    cooldown_s: int = Field(
        COOLDOWN, ge=0, le=LONGEST_COOLDOWN, description="With `follow`: so many seconds it has to want fewer before there are fewer."
    )
    role: str = Field("", max_length=100, description="Which role; needed only where several have a range.")
    reason: str = Field("", max_length=280, description="Kept in the job's history and in the audit log.")


@router.get("/jobs/{public_id}/replicas", response=ReplicasOut, url_name="job_replicas", summary="Replicas of a service")
def job_replicas(request: HttpRequest, public_id: str) -> HttpResponse:
    """Of a job of the class inference with a range of workers; 404 of others."""
    access = access_of(request)
    found = job_for(access, public_id)
    if not is_service(found):
        raise Missing(f"{public_id} is not a service: a job of the class inference with a range of workers.")
    return _told(access, found)


@router.put(
    "/jobs/{public_id}/replicas", response=ReplicasOut, url_name="job_replicas", openapi_extra=IF_MATCH, summary="Set the replicas of a service"
)
def job_replicas_put(request: HttpRequest, public_id: str, body: ReplicasIn) -> HttpResponse:
    """Replicas are added one by one as they find room, above its minimum without putting others out; the highest are released first.

    What is wanted already changes nothing. With `follow` its metric says how many from now on: more at once, fewer after the cool-down; a number by
    hand of that role is refused meanwhile (409). 409 for a job that is no service or has ended.
    """
    access = access_of(request)
    job, moment, revision = job_for(access, public_id), now(), revision_wanted(request)
    if body.replicas is None and body.follow is None:
        raise ValidationError({"replicas": "State replicas, or follow."})
    if body.replicas is not None and body.follow:
        raise ValidationError({"replicas": "Its metric says how many."})
    if body.follow:
        must_steer(access, job)
        must_have_metric(job)
    with transaction.atomic():
        if body.follow is not None:
            job = replicas_follow_set(
                access=access,
                job=job,
                follows=body.follow,
                role=body.role,
                cooldown_seconds=body.cooldown_s,
                reason=body.reason,
                now=moment,
                revision=revision,
            )
            revision = None
        if body.replicas is not None:
            job_scale(access=access, job=job, replicas=body.replicas, role=body.role, reason=body.reason, now=moment, revision=revision)
    return _told(access, job_for(access, public_id))


@router.post(
    "/jobs/{public_id}/replicas/preview",
    response=JobChangePreviewOut,
    url_name="job_replicas_preview",
    summary="Preview another number of replicas",
)
def job_replicas_look(request: HttpRequest, public_id: str, body: ReplicasAsked) -> HttpResponse:
    """What `PUT` with the same body would do now, to the service and to others, and what it costs; of a role that follows its metric, with
    `follow: false`. Nothing is written."""
    access = access_of(request)
    found = job_scale_preview(access=access, job=job_for(access, public_id), replicas=body.replicas, role=body.role, now=now())
    return answered(change_foreseen(found))


def _told(access: Access, found: Job) -> HttpResponse:
    moment = now()
    told = replicas_told(found, now=moment)
    waits = replica_awaited(found, told.missing.role, now=moment) if told.missing else ""
    return stamped(
        answered(
            {
                "roles": [
                    {
                        "role": one.role,
                        "placed": one.placed,
                        "ready": one.ready,
                        "wanted": one.wanted,
                        "stated": one.stated,
                        "min": one.least,
                        "max": one.most,
                        "step": one.step,
                    }
                    for one in told.roles
                ],
                "bound_s": told.bound,
                "waits": sentence(Discretion(access, [waits]).text(waits)),
                "follow": None
                if told.rule is None
                else {name: getattr(told.rule, name) for name in ("role", "since", "figure", "read_at")}
                | {"cooldown_s": told.rule.cooldown_seconds, "by": told.rule.actor_name, "fewer_from": told.fewer_from},
                "replicas": None
                if told.readiness is None
                else [
                    {"role": one.role, "index": one.worker, "node": one.node, "ready": one.ready, "since": one.since, "why": one.why}
                    for one in told.readiness.workers
                ],
                "scalings": [_scaling(one) for one in told.scalings],
                "revision": found.revision,
            }
        ),
        found.revision,
    )


def _scaling(one: ScalingTold) -> dict[str, Any]:
    row = one.scaling
    return {
        "role": row.role,
        "at": row.at,
        "by": row.actor_name,
        "by_metric": row.by_metric,
        "reason": row.reason,
        "before": row.before,
        "after": row.after,
        "placed_before": row.stood,
        "over_at": row.over_at,
        "end": row.end or None,
        "seconds": one.seconds,
        "within_bound": None if one.seconds is None else not one.is_late,
        "ready_seconds": one.ready_seconds,
    }

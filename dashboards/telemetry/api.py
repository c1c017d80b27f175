"""GPUs, nodes, pools, clusters, teams and jobs over time for programs: the series of the charts on their pages."""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboards.courses import (
    MOST_POINTS,
    gpus_of_cluster,
    gpus_of_node,
    gpus_of_pool,
    hardware_courses,
    job_gpu_courses,
    job_range,
    job_ranges,
    job_time,
    team_course,
    values_read,
)
from dashboards.gap.causes import Cause
from dashboards.measures import LINES
from dashboards.telemetry.spans import Course, grain_for, job_course
from dashboards.weak import signal_of, weak_gpus
from gpufleet.core.ranges import BY_KEY
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from quotas.selectors.nodes import node_for as quota_for
from scheduler.models import Cluster
from scheduler.selectors.clusters import cluster_for, pool_for
from scheduler.selectors.gpus import gpu_for
from scheduler.selectors.jobs import job_attempts, job_for
from scheduler.selectors.nodes import node_for

router = Router(tags=["Telemetry"])

SIGNAL = "What utilization is now: SM activity, or the weaker utilization of the driver, which counts a GPU as busy while any kernel runs on it."
Signal = Literal["sm_activity", "driver_utilization"]


class RangeQuery(Schema):
    range: Literal["1h", "6h", "24h", "7d", "30d", "90d"] = Field("24h", description="How far back.")


class JobRangeQuery(Schema):
    range: Literal["1h", "6h", "24h", "7d", "30d", "90d", "all"] = Field(
        "all", description="How far back from its end, or from now; all of its time where it is shorter."
    )


class OverTime(Schema):
    """Columns of the same length, one value a step."""

    range: str = Field(description="The time range.", examples=["1h"])
    step_seconds: int = Field(description="Length of a step.", examples=[60])
    at: list[datetime] = Field(description="When each step begins.", examples=[["2026-03-02T10:00:00Z", "2026-03-02T10:01:00Z"]])


class Measured(OverTime):
    """Means of the GPUs that were read; null where nothing was read."""

    signal: Signal = Field(description=SIGNAL, examples=["sm_activity"])
    sm_percent: list[float | None] = Field(description="SM activity.", examples=[[71.5, 68.0]])
    memory_percent: list[float | None] = Field(description="Memory used.", examples=[[82.1, 82.1]])
    tensor_percent: list[float | None] = Field(description="Activity of tensor cores.", examples=[[38.2, 36.9]])
    dram_percent: list[float | None] = Field(description="Memory bandwidth used.", examples=[[44.0, 41.3]])
    power_watts: list[float | None] = Field(description="Power of a GPU.", examples=[[612.0, 598.0]])


class HardwareTelemetryOut(Measured):
    """Means of the GPUs that were read; null where nothing was read."""


class JobTelemetryOut(Measured):
    """What it held, and means of its whole GPUs that were read, in steps in which it held them from beginning to end; null where nothing was read."""

    allocated_milli: list[int | None] = Field(description="GPUs allocated to it.", examples=[[8000, 8000]])
    computing_milli: list[int | None] = Field(description="GPUs of them that computed.", examples=[[5720, 5440]])


class TeamTelemetryOut(OverTime):
    """What it and all nodes below it held, by what became of it; null where nothing was recorded."""

    computing_milli: list[int | None] = Field(description="GPUs that computed.", examples=[[41_200, 40_900]])
    idle_milli: list[int | None] = Field(description="Allocated GPUs that did not compute.", examples=[[6800, 7100]])
    without_reading_milli: list[int | None] = Field(description="Allocated GPUs without a reading.", examples=[[0, 0]])
    starting_milli: list[int | None] = Field(description="GPUs of jobs that were starting.", examples=[[0, 0]])
    failed_milli: list[int | None] = Field(description="Allocated GPUs that were down or in repair.", examples=[[0, 0]])
    reserved_milli: list[int | None] = Field(description="GPUs that its reservations kept free.", examples=[[16_000, 16_000]])


TEAM_FIELDS = {
    Cause.COMPUTING: "computing_milli",
    Cause.IDLE: "idle_milli",
    Cause.UNREAD: "without_reading_milli",
    Cause.STARTING: "starting_milli",
    Cause.FAILED: "failed_milli",
    Cause.RESERVED: "reserved_milli",
}


@router.get("/gpus/{public_id}/telemetry", response=HardwareTelemetryOut, url_name="gpu_telemetry", summary="A GPU over time")
def gpu_telemetry(request: HttpRequest, public_id: str, asked: Query[RangeQuery]) -> dict[str, Any]:
    """What telemetry stores of it. `reading` of the GPU is what it reads now."""
    gpu = gpu_for(access_of(request), public_id)
    return _hardware(gpu.node.cluster, [gpu.pk], asked.range)


@router.get("/nodes/{public_id}/telemetry", response=HardwareTelemetryOut, url_name="node_telemetry", summary="The GPUs of a node over time")
def node_telemetry(request: HttpRequest, public_id: str, asked: Query[RangeQuery]) -> dict[str, Any]:
    """On average over its GPUs."""
    node = node_for(access_of(request), public_id)
    return _hardware(node.cluster, gpus_of_node(node), asked.range)


@router.get("/clusters/{name}/telemetry", response=HardwareTelemetryOut, url_name="cluster_telemetry", summary="The GPUs of a cluster over time")
def cluster_telemetry(request: HttpRequest, name: str, asked: Query[RangeQuery]) -> dict[str, Any]:
    """On average over its GPUs."""
    cluster = cluster_for(access_of(request), name)
    return _hardware(cluster, gpus_of_cluster(cluster), asked.range)


@router.get(
    "/clusters/{name}/pools/{pool}/telemetry", response=HardwareTelemetryOut, url_name="pool_telemetry", summary="The GPUs of a pool over time"
)
def pool_telemetry(request: HttpRequest, name: str, pool: str, asked: Query[RangeQuery]) -> dict[str, Any]:
    """On average over the GPUs that it has now."""
    found = pool_for(access_of(request), name, pool)
    return _hardware(found.cluster, gpus_of_pool(found), asked.range)


@router.get("/quotas/{public_id}/telemetry", response=TeamTelemetryOut, url_name="quota_telemetry", summary="The GPUs of a team over time")
def quota_telemetry(request: HttpRequest, public_id: str, asked: Query[RangeQuery]) -> dict[str, Any]:
    """Of a node of the quota tree and all below it, in milli-GPU."""
    access, chosen = access_of(request), BY_KEY[asked.range]
    access.must_somewhere(Can.SEE)
    team = quota_for(access, public_id)
    course = team_course(team, chosen=chosen, now=now())
    columns = {name: [None if step.causes is None else round(step.causes[cause]) for step in course] for cause, name in TEAM_FIELDS.items()}
    return {"range": chosen.key, "step_seconds": int(chosen.step.total_seconds()), "at": [step.at for step in course], **columns}


@router.get("/jobs/{public_id}/telemetry", response=JobTelemetryOut, url_name="job_telemetry", summary="The GPUs of a job over time")
def job_telemetry(request: HttpRequest, public_id: str, asked: Query[JobRangeQuery]) -> dict[str, Any]:
    """What it held and what of that computed, in milli-GPU, and what its whole GPUs read."""
    job, moment = job_for(access_of(request), public_id), now()
    attempts = job_attempts(job)
    chosen = job_range(asked.range, job_ranges(attempts, now=moment))
    since, until = job_time(attempts, now=moment, chosen=chosen)
    span = grain_for(since=since, now=moment, most=MOST_POINTS)
    held, computing = job_course(job_id=job.pk, since=since, until=until, span=span)
    courses = job_gpu_courses(job, since=since, until=until, span=span)
    weak = weak_gpus()
    signal = signal_of(list(job.placements.filter(gpu__isnull=False).values_list("gpu_id", flat=True)) if weak else (), weak)
    own = {"allocated_milli": _milli(held), "computing_milli": _milli(computing)}
    return _measured(chosen.key, courses, signal) | own


def _hardware(cluster: Cluster, gpus: Sequence[int], key: str) -> dict[str, Any]:
    courses = hardware_courses(cluster.pk, gpus, chosen=BY_KEY[key], now=now())
    return _measured(key, courses, signal_of(gpus, weak_gpus([cluster.pk])))


def _measured(key: str, courses: Sequence[Course], signal: str) -> dict[str, Any]:
    columns = {line.field: values_read(course) for line, course in zip(LINES, courses, strict=True)}
    return {"range": key, "step_seconds": int(courses[0].step.total_seconds()), "at": courses[0].at, "signal": signal, **columns}


def _milli(course: Course) -> list[int | None]:
    return [None if math.isnan(value) else round(value) for value in course.values.tolist()]

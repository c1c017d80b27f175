"""Fingerprints over HTTP: what the pages of templates and jobs say."""

from datetime import datetime
from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from dashboards.fingerprints.fleet import STEP, fleet_ahead
from dashboards.fingerprints.learning import PhaseTold, Typical
from dashboards.fingerprints.neighbours import Neighbour, neighbours_of
from dashboards.fingerprints.phases import COUNTERS
from dashboards.fingerprints.selectors import job_phase, template_learned
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from quotas.selectors.nodes import node_for as quota_for
from scheduler.selectors.clusters import cluster_for, pool_for
from scheduler.selectors.jobs import job_attempts, job_for
from scheduler.selectors.neighbours import apart_of_template
from scheduler.selectors.templates import template_named

router = Router(tags=["Templates"])

PhaseName = Literal["load", "compute", "checkpoint", "idle"]


class TypicalOut(Schema):
    """The median of what was seen, with its tenth and ninetieth percentile."""

    median: float = Field(description="Half of it is less.", examples=[12.0])
    low: float = Field(description="A tenth of it is less.", examples=[9.6])
    high: float = Field(description="A tenth of it is more.", examples=[13.6])


class LearnedPhaseOut(Schema):
    """One phase over all runs. Levels are means in percent; null: the counter was not read."""

    phase: PhaseName = Field(description="Load, compute, checkpoint or idle.", examples=["checkpoint"])
    share: float = Field(description="Its part of the time of a run, from 0 to 1, on average over the runs.", examples=[0.044])
    runs: int = Field(description="In how many runs it was seen.", examples=[24])
    times: int = Field(description="How often it was seen.", examples=[310])
    seconds: TypicalOut = Field(description="How long it takes.")
    sm_percent: float | None = Field(description="SM activity.", examples=[43.6])
    memory_percent: float | None = Field(description="Memory used.", examples=[84.0])
    tensor_percent: float | None = Field(description="Tensor activity.", examples=[21.0])
    dram_percent: float | None = Field(description="DRAM activity.", examples=[17.4])


class NeighbourOut(Schema):
    """An estimate of what sharing hardware with jobs of another template costs; 1.25: a quarter slower."""

    ref: str = Field(description="The other template.", examples=["veridia:embedding"])
    verdict: Literal["well", "fair", "poorly", "no"] = Field(
        description="On one GPU: both are slower by less than 10%, less than 30%, or more; `no`: their memory does not fit.", examples=["well"]
    )
    gpu: float = Field(description="By which factor jobs of this template are slower on one GPU with one of the other.", examples=[1.06])
    other_gpu: float = Field(description="By which factor the other is slower there.", examples=[1.05])
    node: float = Field(description="By which factor both are slower on one node, each on GPUs of its own.", examples=[1.004])
    scarce: Literal["sm", "dram", "storage", "none"] = Field(description="The resource that is wanted most above what there is.", examples=["sm"])
    fits: bool | None = Field(description="Whether the memory of both fits into one GPU; null: it was not read.", examples=[True])
    both_store: float = Field(description="The part of the time in which both load or save, from 0 to 1.", examples=[0.004])
    unread: list[str] = Field(description="Counters that one of them lacks; they slow nothing down here.", examples=[["dram"]])
    runs: int = Field(description="Runs of the other that count, of its newest 20.", examples=[20])


class ApartOut(Schema):
    """A service that would break its service level beside jobs of the template."""

    service: str = Field(description="The job.", examples=["j-812"])
    where: Literal["gpu", "node"] = Field(description="`node`: on no node together; `gpu`: no MIG instances of both on one node.", examples=["node"])
    figure: str = Field(description="What its latency is.", examples=["p99 latency"])
    predicted_ms: int = Field(description="What it would be beside jobs of the template.", examples=[240])
    allowed_ms: int = Field(description="Its objective.", examples=[200])


class FingerprintOut(Schema):
    """How jobs of a template use their GPUs, learned from telemetry of the runs that the caller may see."""

    ref: str = Field(description="The template.", examples=["veridia:pretraining"])
    confidence: Literal["not_enough", "low", "good"] = Field(
        description="`not_enough`: fewer than 3 runs, and no phases; `good`: at least 8 runs that are alike.", examples=["good"]
    )
    runs: int = Field(description="Runs that count, of the newest 100 of the last 90 days.", examples=[24])
    minutes: int = Field(description="Minutes read of them.", examples=[4310])
    left_out: int = Field(description="Runs of which fewer than 10 minutes were read.", examples=[2])
    weak: int = Field(description="Runs left out because a GPU of theirs has only the driver's utilization.", examples=[0])
    phases: list[LearnedPhaseOut] = Field(description="Those that were seen in at least 3 runs.")
    checkpoint_minutes: TypicalOut | None = Field(description="From one checkpoint to the next; null where none recur.")
    checkpoint_runs: int = Field(description="Runs whose checkpoints recur.", examples=[20])
    beside: list[NeighbourOut] = Field(description="Templates that the caller sees and of which enough is known, the best neighbours first.")
    apart: list[ApartOut] = Field(description="Services that the caller sees and that are kept apart from its jobs where the fleet asks for it.")


@router.get("/fingerprints/{path:ref}", response=FingerprintOut, url_name="fingerprint", summary="How jobs of a template use their GPUs over time")
def fingerprint(request: HttpRequest, ref: str) -> dict[str, Any]:
    """A version behind the name makes no difference: runs of all versions are learned from."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    template = template_named(access, ref.partition("@")[0])
    if template is None:
        raise Http404
    moment = now()
    learned = template_learned(access, template.key, now=moment)
    found = learned.fingerprint
    return {
        "ref": template.ref,
        "confidence": found.confidence.value,
        "runs": found.runs,
        "minutes": found.minutes,
        "left_out": found.left_out,
        "weak": learned.weak,
        "phases": [phase_facts(one) for one in found.phases],
        "checkpoint_minutes": typical_facts(found.period),
        "checkpoint_runs": found.period_runs if found.period else 0,
        "beside": [_neighbour(one) for one in neighbours_of(access, template, now=moment)] if found.is_known else [],
        "apart": apart_of_template(access, template.key),
    }


def _neighbour(one: Neighbour) -> dict[str, Any]:
    found = one.found
    told = {"ref": one.template.ref, "verdict": one.verdict, "gpu": found.gpu, "other_gpu": found.other_gpu, "node": found.node}
    rest = {"scarce": found.scarce.value, "fits": found.fits, "both_store": round(found.both_store, 4), "unread": list(found.unread)}
    return told | rest | {"runs": one.usage.runs}


def phase_facts(one: PhaseTold) -> dict[str, Any]:
    levels = {f"{counter}_percent": one.levels.get(counter) for counter in COUNTERS}
    return {"phase": one.phase.value, "share": one.share, "runs": one.runs, "times": one.times, "seconds": typical_facts(one.seconds), **levels}


def typical_facts(one: Typical | None) -> dict[str, float] | None:
    return None if one is None else {"median": one.median, "low": one.low, "high": one.high}


class JobPhaseOut(Schema):
    """What a running job does now, and what its template says comes next."""

    at: datetime = Field(description="The end of the minute that was read last.", examples=["2026-03-02T10:02:00Z"])
    phase: Literal["load", "compute", "checkpoint", "idle", "unknown"] = Field(
        description="What it does; `unknown`: its GPUs were not read then.", examples=["compute"]
    )
    next: PhaseName | None = Field(description="What comes next; null where nothing is expected.", examples=["checkpoint"])
    earliest: datetime | None = Field(description="One in ten times it comes sooner.", examples=["2026-03-02T10:05:30Z"])
    expected: datetime | None = Field(description="When it most likely comes.", examples=["2026-03-02T10:06:40Z"])
    latest: datetime | None = Field(description="One in ten times it comes later.", examples=["2026-03-02T10:07:50Z"])
    is_late: bool = Field(description="Whether it should have come by now.", examples=[False])
    confidence: Literal["low", "good"] = Field(description="That of the template's phases.", examples=["good"])


class JobPhaseNow(Schema):
    phase: JobPhaseOut | None = Field(
        description="Null where the job does not run, or began with no template, or too little is known of its template."
    )


@router.get("/jobs/{public_id}/phase", response=JobPhaseNow, url_name="job_phase", summary="The phase of a running job", tags=["Jobs"])
def job_phase_now(request: HttpRequest, public_id: str) -> dict[str, Any]:
    access = access_of(request)
    job = job_for(access, public_id)
    attempts = job_attempts(job)
    found = job_phase(access, job, attempts[0] if attempts else None, now=now())
    if found is None:
        return {"phase": None}
    moments = {"at": found.at, "earliest": found.earliest, "expected": found.expected, "latest": found.latest}
    told = {"phase": found.phase.value, "next": found.next.value if found.next else None, "is_late": found.is_late}
    return {"phase": moments | told | {"confidence": found.fingerprint.confidence.value}}


class AheadQuery(Schema):
    hours: int = Field(2, ge=1, le=6, description="How far ahead.")
    cluster: str = Field("", max_length=120, description="Of this cluster alone.")
    pool: str = Field("", max_length=120, description="Of this pool of the cluster alone.")
    gpu_type: str = Field("", max_length=60, description="Of GPUs of this type alone.")
    quota: str = Field("", max_length=60, description="Id of a node of the quota tree: of jobs at it and below alone.")


class LoadAheadOut(Schema):
    """Columns of the same length, one value a step of five minutes, in GPUs."""

    since: datetime = Field(description="Where the first step begins.", examples=["2026-03-02T10:02:11Z"])
    step_seconds: int = Field(description="Length of a step.", examples=[300])
    computing: list[float] = Field(description="SM activity expected, in GPUs that compute fully.", examples=[[212.4, 213.0]])
    saving: list[float] = Field(description="GPUs of jobs that are expected to save a checkpoint in the step.", examples=[[64.0, 48.2]])
    loaded: list[float] = Field(description="GPUs of jobs that are expected to end their load in the step.", examples=[[8.0, 0.0]])
    low: list[float] = Field(description="One time in ten fewer compute.", examples=[[197.1, 197.6]])
    high: list[float] = Field(description="One time in ten more compute.", examples=[[227.7, 228.4]])
    jobs: int = Field(description="Running jobs that are in it.", examples=[41])
    gpus: int = Field(description="GPUs of the running jobs that are in it.", examples=[288])
    other_jobs: int = Field(description="Running jobs of which too little is known.", examples=[12])
    others: int = Field(description="GPUs of running jobs of which too little is known.", examples=[120])


@router.get("/fleet/load-ahead", response=LoadAheadOut, url_name="load_ahead", summary="Load expected of running jobs", tags=["Fleet"])
def load_expected(request: HttpRequest, asked: Query[AheadQuery]) -> dict[str, Any]:
    """By the phases of their templates, if all of them go on and no others begin."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    if asked.pool and not asked.cluster:
        raise ValidationError({"pool": ["Name the cluster of the pool, too."]})
    try:
        cluster = cluster_for(access, asked.cluster) if asked.cluster else None
    except Http404 as fault:
        raise ValidationError({"cluster": [str(fault)]}) from fault
    try:
        pool = pool_for(access, asked.cluster, asked.pool) if asked.pool else None
    except Http404 as fault:
        raise ValidationError({"pool": [str(fault)]}) from fault
    try:
        quota = quota_for(access, asked.quota) if asked.quota else None
    except Http404 as fault:
        raise ValidationError({"quota": ["There is no such quota node."]}) from fault
    found = fleet_ahead(hours=asked.hours, now=now(), cluster=cluster, pool=pool, quota=quota, gpu_type=asked.gpu_type)
    columns = {name: [round(getattr(step, name), 2) for step in found.steps] for name in ("computing", "low", "high", "saving", "loaded")}
    counts = {name: getattr(found, name) for name in ("jobs", "gpus", "other_jobs", "others")}
    return {"since": found.since, "step_seconds": int(STEP.total_seconds()), **columns, **counts}

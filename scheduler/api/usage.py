"""What a job has used, and how busy its GPUs are, over HTTP."""

from datetime import datetime
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema
from pydantic import Field

from dashboards.job_usage import JobUsage, job_usage
from dashboards.weak import nodes_signal
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.models import ShareClass
from scheduler.api.lists import answered
from scheduler.models import Job
from scheduler.presenters.standing import standing_told
from scheduler.selectors.jobs import attempt_sittings, job_attempts, job_for

router = Router(tags=["Jobs"])


class HeldNowOut(Schema):
    """Milli-GPU held now: `busy_milli` and `idle_milli` add up to what has a fresh reading. Parts of GPUs (shares, MIG instances) have none."""

    held_milli: int
    busy_milli: int
    idle_milli: int
    without_reading_milli: int
    parts_milli: int
    busy_percent: int | None = Field(description="Of what has a reading.", examples=[39])
    idle_micros_per_hour: int | None = Field(description="Cost of the idle GPUs; null for readers who may not view costs.", examples=[12_400_000])


class WorkerUseOut(Schema):
    """SM activity in percent: the mean over the worker's own time, and now; null where nothing was read, and where it holds `parts` of GPUs."""

    role: str
    index: int
    node: str
    devices: str = Field(examples=["GPU 0–3"])
    gpu_milli: int
    parts: bool
    mean_percent: int | None
    now_percent: int | None


class MfuOut(Schema):
    """Model FLOPs utilization, by what the ranks reported last: operations of a step, divided by its time and the peak of the GPUs held."""

    at: datetime = Field(description="When they last reported.")
    step_seconds: float = Field(description="Of the slowest rank.", examples=[1.31])
    precision: str = Field(description="In which most of the operations are.", examples=["bf16"])
    percent: float | None = Field(description="Null where it can't be told; `fault` says why.", examples=[41.2])
    fault: str = Field(description="Why it can't be told; empty where it can.", examples=[""])


class StandingOut(Schema):
    """On whose account it stands now: milli-GPU by kind, the word for all of it, and what could take it back."""

    kind: Literal["guaranteed", "reserved", "borrowed"]
    guaranteed_milli: int
    reserved_milli: int
    borrowed_milli: int
    takers_text: str


class UsageOut(Schema):
    """What all attempts have used, and how busy the GPUs of the latest one are. `cost_micros` is null to those who may not see costs."""

    id: str
    state: str
    at: datetime
    gpu_hours: float = Field(description="Of all attempts, by the ledger.", examples=[31.25])
    cost_micros: int | None = Field(description="At the rates of the time, in millionths of `currency`.", examples=[78_125_000])
    currency: str = Field(examples=["USD"])
    micros_per_hour: int | None = Field(description="What it holds now costs an hour; null where that has no rate or the caller may not see costs.")
    standing: StandingOut | None = Field(description="Null unless it holds GPUs now.")
    without_rate: list[str] = Field(description="GPU types of which some hours have no rate and are not in the cost.")
    counted_from: datetime | None = Field(description="Set where the ledger began after the job had held something.")
    attempt: int | None = Field(description="The latest; null where it held no GPU.")
    now: HeldNowOut | None = Field(description="Null unless it holds GPUs now.")
    signal: Literal["sm_activity", "driver_utilization"] = Field(
        description="What busy is: SM activity, or the weaker utilization of the driver, which counts a GPU as busy while any kernel runs on it."
    )
    mean_percent: int | None = Field(description="Over all workers and their time.", examples=[41])
    mfu: MfuOut | None = Field(description="Null where its ranks report no operations.")
    every: int | None = Field(description="Every how many-th five-minute sample was read: more than 1 for large gangs that ran long.", examples=[1])
    workers: list[WorkerUseOut] = Field(description="The least busy first, those without a reading last.")


@router.get("/jobs/{public_id}/usage", response=UsageOut, url_name="job_usage", summary="What a job has used, and how busy its GPUs are")
def job_usage_now(request: HttpRequest, public_id: str) -> HttpResponse:
    """What it holds beside what of it computes, worker by worker, and what all of its attempts have used and cost."""
    access, moment = access_of(request), now()
    found = job_for(access, public_id)
    attempts = job_attempts(found)
    sittings = attempt_sittings(attempts[0]) if attempts else []
    told = job_usage(access, found, attempts, sittings, now=moment, drawn=0)
    return answered({"id": found.public_id, "state": found.state, "at": moment, "standing": _standing(found, told), **_usage(told)})


def _standing(job: Job, told: JobUsage) -> dict[str, Any] | None:
    said = standing_told(job, told.spent.holds)
    if said is None:
        return None
    return {
        "kind": said.kind,
        **{f"{kind}_milli": told.spent.holds.get(kind, 0) for kind in ShareClass.values},
        "takers_text": said.takers,
    }


def _usage(told: JobUsage) -> dict[str, Any]:
    run = told.attempt
    held = run.now if run else None
    return {
        "gpu_hours": round(told.spent.gpu_hours, 6),
        "cost_micros": told.spent.cost_micros,
        "micros_per_hour": told.spent.micros_per_hour,
        "currency": settings.CURRENCY,
        "without_rate": told.spent.without_rate,
        "counted_from": told.counted_from,
        "attempt": run.number if run else None,
        "now": {
            "held_milli": held.held,
            "busy_milli": held.busy,
            "idle_milli": held.idle,
            "without_reading_milli": held.unread,
            "parts_milli": held.parts,
            "busy_percent": held.percent,
            "idle_micros_per_hour": held.idle_micros_per_hour,
        }
        if held
        else None,
        "signal": nodes_signal({one.node_id for one in run.workers} if run else ()),
        "mean_percent": run.mean if run else None,
        "mfu": run.mfu if run else None,
        "every": run.every if run else None,
        "workers": [
            {
                "role": one.role,
                "index": one.index,
                "node": one.node,
                "devices": one.devices,
                "gpu_milli": one.gpu_milli,
                "parts": one.parts,
                "mean_percent": one.mean,
                "now_percent": one.now,
            }
            for one in (run.workers if run else ())
        ],
    }

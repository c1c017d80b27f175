"""The gap over HTTP."""

from datetime import datetime
from functools import partial
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field, JsonValue

from dashboards.gap.causes import Cause
from dashboards.gap.figures import Row, gap_by, gap_report, gap_weeks
from dashboards.gap.rows import GAP_GPUS, filters_asked, gap_behind, gpus_behind, rows_presented
from dashboards.gap.rows import Row as Behind
from dashboards.gap.store import gap_course, span_for
from gpufleet.core.ranges import range_of
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from scheduler.api.lists import listed, parameters_of

router = Router(tags=["Fleet"])
NAMES: list[JsonValue] = [cause.value for cause in Cause]


class GapCauseOut(Schema):
    cause: str = Field(description="What these GPUs do.", examples=["idle"], json_schema_extra={"enum": NAMES})
    gpu_milli: int = Field(description="How many GPUs, in thousandths, exact.", examples=[81800])
    hour_micros: int | None = Field(
        description="What they cost an hour, in millionths of the currency; null for callers who may not see costs.", examples=[None]
    )
    month_micros: int | None = Field(description="What they cost in a month of 730 hours; null likewise.", examples=[None])
    this_week_milli: int | None = Field(description="The mean of the last seven days, in tenths of GPUs; null without a snapshot.", examples=[79200])
    last_week_milli: int | None = Field(description="The mean of the seven days before.", examples=[85000])


class GapRowOut(Schema):
    name: str = Field(description="The team, class, GPU type or pool.", examples=["Vision"])
    gpu_milli: int = Field(description="All of its GPUs, in thousandths.", examples=[120000])
    gap_hour_micros: int | None = Field(
        description="What of it that does not compute costs an hour; null for callers who may not see costs.", examples=[None]
    )
    gap_month_micros: int | None = Field(description="The same in a month of 730 hours.", examples=[None])
    gap_this_week_milli: int | None = Field(
        description="What of it did not compute, on average of the last seven days, in tenths of GPUs; null without a snapshot.", examples=[28400]
    )
    gap_last_week_milli: int | None = Field(description="The mean of the seven days before.", examples=[31000])
    causes: dict[str, int] = Field(
        description="Thousandths of GPUs by cause; they add up to all of its GPUs.", examples=[{"computing": 90000, "idle": 30000}]
    )


class GapOut(Schema):
    """One snapshot. The causes add up to the fleet, and so do the rows."""

    at: datetime | None = Field(description="When the snapshot was taken; null before the first.", examples=["2026-03-02T09:41:00Z"])
    gpu_milli: int = Field(description="All GPUs, in thousandths.", examples=[512000])
    causes: list[GapCauseOut] = Field(description="What all GPUs do, by cause; they add up to the fleet.")
    by: str = Field(description="What the rows are by.", examples=["team"])
    rows: list[GapRowOut]


class GapQuery(Schema):
    by: Literal["team", "class", "type", "pool"] = Field("team", description="What the rows are by.")
    gpu_type: str = Field("", description="One GPU type; empty: the whole fleet.")


@router.get("/fleet/gap", response=GapOut, summary="What every GPU does now, by cause")
def fleet_gap(request: HttpRequest, asked: Query[GapQuery]) -> GapOut:
    """The newest snapshot of the utilization gap, at most a minute old while the console runs."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    moment = now()
    weeks = gap_weeks(now=moment)
    report = gap_report(access, now=moment, weeks=weeks, gpu_type=asked.gpu_type)
    if report is None:
        return GapOut(at=None, gpu_milli=0, causes=[], by=asked.by, rows=[])
    rows = gap_by(access, asked.by, weeks=weeks, gpu_type=asked.gpu_type, now=moment)
    return GapOut(
        at=report.at,
        gpu_milli=report.whole.milli,
        causes=[_cause_out(row) for row in report.causes],
        by=asked.by,
        rows=[_row_out(row) for row in rows],
    )


def _cause_out(row: Row) -> GapCauseOut:
    return GapCauseOut(
        cause=row.key,
        gpu_milli=row.milli,
        hour_micros=row.hour_micros,
        month_micros=row.month_micros,
        this_week_milli=row.this_week,
        last_week_milli=row.last_week,
    )


def _row_out(row: Row) -> GapRowOut:
    assert row.causes is not None
    return GapRowOut(
        name=row.key,
        gpu_milli=row.milli,
        gap_hour_micros=row.hour_micros,
        gap_month_micros=row.month_micros,
        gap_this_week_milli=row.this_week,
        gap_last_week_milli=row.last_week,
        causes={cause: milli for cause, milli in row.causes.items() if milli},
    )


class GapGpuOut(Schema):
    """What a figure counts of one GPU, and whose it is. Jobs that the caller may not see are left out."""

    gpu: str = Field(description="Id of the GPU.", examples=["g-130"])
    node: str
    index: int = Field(description="Its number on the node.", examples=[2])
    gpu_type: str
    pool: str | None = Field(description="Name of the pool; null for none.", examples=["train"])
    teams: list[str] = Field(description="Teams that it counts for, as the caller may name them.", examples=[["Vision"]])
    classes: list[str] = Field(description="Classes of the jobs that it counts for, likewise.", examples=[["Batch"]])
    jobs: list[str] = Field(description="Ids of those jobs.", examples=[["j-417"]])
    gpu_milli: int = Field(description="How much of it is in the figure, in thousandths of a GPU.", examples=[380])
    hour_micros: int | None = Field(description="What that costs an hour; null for callers who may not see costs.", examples=[None])


class GapGpusOut(Schema):
    at: datetime | None = Field(description="When the snapshot was taken; null before the first.", examples=["2026-03-02T09:41:00Z"])
    gpu_milli: int = Field(description="What all pages of the list add up to: the figure, in thousandths of GPUs.", examples=[81800])
    hour_micros: int | None = Field(description="What the figure costs an hour; null for callers who may not see costs.", examples=[None])
    items: list[GapGpuOut]
    next: str | None
    previous: str | None


@router.get(
    "/fleet/gap/gpus", response=GapGpusOut, url_name="gap_gpus", openapi_extra=parameters_of(GAP_GPUS), summary="The GPUs behind a figure of the gap"
)
def fleet_gap_gpus(request: HttpRequest) -> HttpResponse:
    """GPUs of the newest snapshot that have one of the wanted values in each filter. `team` may be a part of a name."""
    access = access_of(request)
    found = gap_behind(access, filters_asked(request.GET), now=now())
    told = {"at": found.at, "gpu_milli": found.milli, "hour_micros": found.hour_micros}
    return listed(request, GAP_GPUS, gpus_behind(found), _gpu_out, partial(rows_presented, access, found), **told)


def _gpu_out(row: Behind) -> dict[str, Any]:
    return {
        "gpu": row.gpu.public_id,
        "node": row.gpu.node.name,
        "index": row.gpu.index,
        "gpu_type": row.gpu.gpu_type_id,
        "pool": row.gpu.node.pool.name if row.gpu.node.pool else None,
        "teams": row.counted.teams,
        "classes": row.counted.classes,
        "jobs": [job.public_id for job in row.jobs],
        "gpu_milli": row.counted.milli,
        "hour_micros": row.counted.cost_micros,
    }


class GapHistoryQuery(Schema):
    range: Literal["1h", "6h", "24h", "7d", "30d", "90d"] = Field("24h", description="How far back.")
    gpu_type: str = Field("", description="One GPU type; empty: the whole fleet.")


class GapHistoryOut(Schema):
    """Columns of the same length, one value a step; null where no snapshot was taken."""

    step_seconds: int = Field(examples=[300])
    at: list[datetime] = Field(description="When each step begins.", examples=[["2026-03-02T09:00:00Z", "2026-03-02T09:05:00Z"]])
    causes: dict[str, list[int | None]] = Field(
        description="Thousandths of GPUs by cause, on average in each step.", examples=[{"idle": [81800, None]}]
    )


@router.get("/fleet/gap/history", response=GapHistoryOut, summary="The utilization gap over time")
def fleet_gap_history(request: HttpRequest, asked: Query[GapHistoryQuery]) -> GapHistoryOut:
    """What the chart of the page shows."""
    access_of(request).must_somewhere(Can.SEE)
    chosen = range_of({"range": asked.range})
    start = chosen.begin(now())
    course = gap_course(start, start + chosen.length, step=chosen.step, span=span_for(chosen.step), gpu_type=asked.gpu_type)
    causes = {cause.value: [None if step.causes is None else round(step.causes[cause]) for step in course] for cause in Cause}
    return GapHistoryOut(step_seconds=int(chosen.step.total_seconds()), at=[step.at for step in course], causes=causes)

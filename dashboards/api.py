"""The fleet's figures and the map's data for programs: the same numbers as the pages show."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Literal

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema
from pydantic import Field

from dashboards.alerts.api import router as alerts_router
from dashboards.figures import Figures, gap_cost
from dashboards.fingerprints.api import router as fingerprints_router
from dashboards.fleetmap import map_snapshot
from dashboards.fragmentation.api import router as fragmentation_router
from dashboards.free import figures_with_free
from dashboards.gap.api import router as gap_router
from dashboards.health.api import router as health_router
from dashboards.history import history
from dashboards.home.api import router as home_router
from dashboards.idle.api import router as idle_router
from dashboards.prometheus.api import router as sources_router
from dashboards.selectors import fleet_read, rates_visible
from dashboards.slo.api import router as slo_router
from dashboards.telemetry.api import router as telemetry_router
from dashboards.weak import weak_clusters
from gpufleet.core.live.feed import feed_revision
from gpufleet.core.times import now
from gpufleet.live import packed
from gpufleet.web import Can, access_of

router = Router(tags=["Fleet"])
router.add_router("", gap_router)
router.add_router("", fragmentation_router)
router.add_router("", sources_router)
router.add_router("", idle_router)
router.add_router("", health_router)
router.add_router("", alerts_router)
router.add_router("", telemetry_router)
router.add_router("", slo_router)
router.add_router("", fingerprints_router)
router.add_router("", home_router)


WEAK = "Clusters with GPUs whose activity is the driver's utilization, weaker than SM activity: it counts a GPU as busy while any kernel runs on it."


class TypeOut(Schema):
    gpu_type: str
    gpus: int
    out_of_service: int
    capacity_milli: int
    free_milli: int
    startable_milli: int
    kept_milli: int
    fragmented_milli: int
    suspect_milli: int
    allocated_milli: int
    active_milli: int
    active_allocated_milli: int
    gap_milli: int
    idle_milli: int
    without_reading: int
    allocated_without_reading_milli: int
    gap_micros_per_hour: int | None


class SummaryOut(Schema):
    """Milli-GPU throughout. `gap_micros_per_hour` is null for callers who may not see costs, and for types without a rate."""

    at: str
    types: list[TypeOut]
    weak_clusters: list[str] = Field(description=WEAK, examples=[["lab"]])


@router.get("/fleet/summary", response=SummaryOut, summary="Allocation and utilization")
def fleet_summary(request: HttpRequest) -> SummaryOut:
    """Allocation and SM activity side by side for every GPU type, now."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    moment = now()
    rates = rates_visible(access, now=moment)
    types = []
    for name, figures in figures_with_free(fleet_read(now=moment), now=moment).items():
        cost = gap_cost({name: figures}, dict(rates)) if rates is not None and name in rates else None
        types.append(_type_out(name, figures, cost))
    return SummaryOut(at=moment.isoformat(), types=types, weak_clusters=list(weak_clusters().values()))


class HistoryQuery(Schema):
    hours: Literal["1", "6", "24"] = Field("6", description="How far back.")
    gpu_type: str = Field("", description="One GPU type; empty: the whole fleet.")


class HistoryOut(Schema):
    """Columns of the same length, one value a step; null where nothing was recorded, for activity also where nothing could be read."""

    step_seconds: int
    at: list[datetime]
    capacity_milli: list[int | None]
    allocated_milli: list[int | None]
    active_milli: list[int | None]
    without_reading_milli: list[int | None]
    weak_clusters: list[str] = Field(description=WEAK, examples=[["lab"]])


@router.get("/fleet/history", response=HistoryOut, summary="Allocation and utilization over the last hours")
def fleet_history(request: HttpRequest, asked: Query[HistoryQuery]) -> HistoryOut:
    """What the overview's chart shows: the whole fleet, or one GPU type."""
    access_of(request).must_somewhere(Can.SEE)
    series = history(hours=int(asked.hours), gpu_type=asked.gpu_type, now=now())
    return HistoryOut(
        step_seconds=series.step_seconds,
        at=[datetime.fromtimestamp(millis / 1000, UTC) for millis in series.at],
        capacity_milli=_milli(series.capacity),
        allocated_milli=_milli(series.allocated),
        active_milli=_milli(series.active),
        without_reading_milli=_milli(series.unread),
        weak_clusters=list(weak_clusters().values()),
    )


def _milli(column: Sequence[float | None]) -> list[int | None]:
    return [None if value is None else round(value * 1000) for value in column]


def _type_out(name: str, figures: Figures, cost: int | None) -> TypeOut:
    values = asdict(figures)
    return TypeOut(
        gpu_type=name,
        gpus=values["gpus"],
        out_of_service=values["out"],
        capacity_milli=figures.milli,
        free_milli=figures.free,
        startable_milli=figures.startable,
        kept_milli=figures.kept,
        fragmented_milli=figures.scattered,
        suspect_milli=figures.suspect,
        allocated_milli=values["held"],
        active_milli=values["active"],
        active_allocated_milli=values["active_held"],
        gap_milli=values["gap"],
        idle_milli=values["idle"],
        without_reading=figures.unread,
        allocated_without_reading_milli=values["held_unread"],
        gap_micros_per_hour=cost,
    )


@router.get("/fleet/map", response={200: dict}, summary="Every GPU, by column")
def fleet_map(request: HttpRequest) -> HttpResponse:
    """All GPUs with place, health, holder and newest SM reading, as columns of equal length: one answer of a few hundred kilobytes for 4,000 GPUs."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    version = feed_revision()
    return packed(request, {"version": version, **map_snapshot(access, now=now())})

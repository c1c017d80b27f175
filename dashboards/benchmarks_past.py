"""A store that has been filled for months, for measurements: every grain of every GPU, job and part of the gap, at the size that real ones have."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import connection
from django.db.models import Model

from dashboards.fragmentation.models import FragmentationRollup
from dashboards.fragmentation.store import fragmentation_turn
from dashboards.gap.models import GapRollup
from dashboards.gap.store import gap_turn
from dashboards.models import FleetSample, GpuRollup, JobRollup, TelemetryMinute
from dashboards.telemetry.packing import ids_packed, ids_read, sums_packed, sums_read
from gpufleet.core.times import now
from scheduler.models import Gpu, Job

# Each grain with how long it is kept (gpufleet/retention.py): a store holds no more, however many days are asked for.
KEPT = {60: timedelta(hours=48), 900: timedelta(days=30), 3600: timedelta(days=400)}
FRAMES = 12
JOBS = 300


def past_fill(*, days: int) -> dict[str, Any]:
    """Fill the store for so many days up to now, for the fleet and the jobs that there are. Returns how many rows that took."""
    moment, rng = now(), np.random.default_rng(3)
    gap_turn(now=moment)
    fragmentation_turn(now=moment)
    gap, scattered = GapRollup.objects.order_by("-at").first(), FragmentationRollup.objects.filter(span=60).order_by("-at").first()
    assert gap is not None and scattered is not None, "a fleet has a gap"
    clusters = _clusters()
    jobs = np.array(sorted(Job.objects.order_by("-pk").values_list("pk", flat=True)[:JOBS]), np.uint32)
    known, sums = ids_read(gap.part_ids), sums_read(gap.sums, 1)[0]
    whole = {key: value for key, value in scattered.figures.items() if key in ("piles", "largest")}
    rows = 0
    for span, kept in KEPT.items():
        for ats in _batches(moment, span, min(kept, timedelta(days=days))):
            if span == 60:
                rows += _put(TelemetryMinute, [_minute(cluster, gpus, at, rng) for at in ats for cluster, gpus in clusters.items()])
            else:
                rows += _put(GpuRollup, [_rollup(span, cluster, gpus, at, rng) for at in ats for cluster, gpus in clusters.items()])
            rows += _put(JobRollup, [_of_jobs(span, jobs, at, rng) for at in ats])
            minutes = span // 60
            drawn = [GapRollup(span=span, at=at, minutes=minutes, part_ids=ids_packed(known), sums=sums_packed(sums * minutes)) for at in ats]
            rows += _put(GapRollup, drawn)
            figures = scattered.figures if span == 60 else whole
            rows += _put(FragmentationRollup, [FragmentationRollup(span=span, at=at, minutes=minutes, figures=figures) for at in ats])
    rows += _fleet(moment, days)
    rows += _nodes(moment, min(days, 14))
    return {"rows": rows, "days": days, "gpus": sum(len(gpus) for gpus in clusters.values())}


def _clusters() -> dict[int, np.ndarray]:
    found: dict[int, list[int]] = {}
    for cluster, key in Gpu.objects.filter(removed_at__isnull=True).order_by("pk").values_list("node__cluster_id", "pk"):
        found.setdefault(cluster, []).append(key)
    return {cluster: np.array(keys, np.uint32) for cluster, keys in sorted(found.items())}


def _batches(moment: datetime, span: int, kept: timedelta) -> Iterator[list[datetime]]:
    end, count = int(moment.timestamp()) // span * span, int(kept.total_seconds()) // span
    for first in range(1, count, 120):
        yield [datetime.fromtimestamp(end - span * step, UTC) for step in range(first, min(first + 120, count))]


def _put(model: type[Model], rows: list[Any]) -> int:
    model._default_manager.bulk_create(rows, ignore_conflicts=True, batch_size=120)
    return len(rows)


def _minute(cluster: int, gpus: np.ndarray, at: datetime, rng: np.random.Generator) -> TelemetryMinute:
    size = len(gpus)

    def total(most: int, kind: str = "<u2") -> bytes:
        return rng.integers(0, most * FRAMES, size).astype(kind).tobytes()

    read = bytes([FRAMES]) * size
    return TelemetryMinute(
        cluster_id=cluster,
        at=at,
        frames=FRAMES,
        is_rolled=True,
        gpu_ids=ids_packed(gpus),
        sm_sum=total(100),
        sm_read=read,
        memory_sum=total(100),
        memory_read=read,
        tensor_sum=total(100),
        tensor_read=read,
        dram_sum=total(100),
        dram_read=read,
        power_sum=total(700, "<u4"),
        power_read=read,
    )


def _rollup(span: int, cluster: int, gpus: np.ndarray, at: datetime, rng: np.random.Generator) -> GpuRollup:
    measures = {name: rng.integers(0, 10_000, len(gpus)).astype("<u2").tobytes() for name in ("sm", "memory", "tensor", "dram")}
    power = rng.integers(80, 700, len(gpus)).astype("<u2").tobytes()
    return GpuRollup(cluster_id=cluster, span=span, at=at, gpu_ids=ids_packed(gpus), minutes=bytes([span // 60]) * len(gpus), power=power, **measures)


def _of_jobs(span: int, jobs: np.ndarray, at: datetime, rng: np.random.Generator) -> JobRollup:
    held = rng.integers(1, 64, len(jobs)) * 1000 * span * 1000
    computing = (held * rng.random(len(jobs))).astype(np.int64)
    return JobRollup(span=span, at=at, job_ids=ids_packed(jobs), sums=sums_packed(held, computing, np.zeros(len(jobs), np.int64)))


def _fleet(moment: datetime, days: int) -> int:
    sizes: dict[str, int] = {}
    for kind in Gpu.objects.filter(removed_at__isnull=True).values_list("gpu_type_id", flat=True):
        sizes[kind] = sizes.get(kind, 0) + 1000
    rows = 0
    for ats in _batches(moment, 60, timedelta(days=days)):
        rows += _put(
            FleetSample,
            [
                FleetSample(at=at, gpu_type=kind, capacity_milli=all_, healthy_milli=all_, allocated_milli=all_ * 4 // 5, active_milli=all_ // 2)
                for at in ats
                for kind, all_ in sorted(sizes.items())
            ],
        )
    return rows


def _nodes(moment: datetime, days: int) -> int:
    """Five minutes of every node, written by the database itself, day by day: there are millions, and no statement may take long."""
    end = int(moment.timestamp()) // 300 * 300
    begins = [datetime.fromtimestamp(end - 86_400 * day, UTC) for day in range(1, days + 1)]
    if connection.vendor == "postgresql":
        steps, at, zeros = "generate_series(0, %s) AS steps(n)", "%s::timestamptz + steps.n * interval '5 minutes'", r"'\x2a2a2a2a2a2a2a2a'::bytea"
    else:
        steps = "(WITH RECURSIVE steps(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM steps WHERE n < %s) SELECT n FROM steps) AS steps"
        at, zeros = "strftime('%%Y-%%m-%%d %%H:%%M:%%S', %s, '+' || (steps.n * 5) || ' minutes')", "x'2a2a2a2a2a2a2a2a'"
    with connection.cursor() as cursor:
        rows = 0
        for begin in begins:
            cursor.execute(
                f"INSERT INTO node_sample (node_id, at, sm_active, memory_used, allocated) SELECT node.id, {at}, {zeros}, {zeros}, {zeros}"  # noqa: S608
                f" FROM node, {steps} WHERE node.removed_at IS NULL ON CONFLICT DO NOTHING",
                [begin.strftime("%Y-%m-%d %H:%M:%S+00" if connection.vendor == "postgresql" else "%Y-%m-%d %H:%M:%S"), 287],
            )
            rows += int(cursor.rowcount)
        return rows


def size_on_disk() -> dict[str, float]:
    """Megabytes of the whole database, and of the tables of telemetry with their indexes where the database tells."""
    with connection.cursor() as cursor:
        if connection.vendor != "postgresql":
            cursor.execute("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
            return {"database_mb": round(cursor.fetchone()[0] / 1e6, 1)}
        cursor.execute(
            "SELECT pg_database_size(current_database()), (SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE c.relkind = 'r'"
            " AND c.relname ~ '^(telemetry_minute|gpu_rollup|job_rollup|gap_rollup|fragmentation_rollup|node_sample|fleet_sample)')"
        )
        database, telemetry = cursor.fetchone()
        return {"database_mb": round(database / 1e6, 1), "telemetry_mb": round(float(telemetry) / 1e6, 1)}

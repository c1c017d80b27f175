"""How GPUs, nodes and jobs went over time: charts from the telemetry store, at the finest grain that the time allows."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np

from dashboards.telemetry.spans import Course, gpu_course, grain_for, job_course
from gpufleet.core.charts import Chart, Series, over_time
from gpufleet.core.ranges import Range
from scheduler.models import Attempt, Gpu, Job, Node

# More points than that are no finer on any screen.
MOST_POINTS = 700


def gpu_chart(gpu: Gpu, *, chosen: Range, now: datetime) -> Chart:
    """SM activity and memory of one GPU."""
    return _chart(f"GPU {gpu.index} of {gpu.node.name}", gpu.node.cluster_id, [gpu.pk], chosen, now)


def node_chart(node: Node, *, chosen: Range, now: datetime) -> Chart:
    """The same on average over the GPUs of a node."""
    gpus = list(Gpu.objects.filter(node=node, removed_at__isnull=True).order_by("pk").values_list("pk", flat=True))
    return _chart(node.name, node.cluster_id, gpus, chosen, now)


def _chart(name: str, cluster: int, gpus: Sequence[int], chosen: Range, now: datetime) -> Chart:
    start = chosen.begin(now)
    span = grain_for(since=start, now=now, most=MOST_POINTS)
    end = start + chosen.length
    courses = [
        _coarser(gpu_course(cluster_id=cluster, gpus=gpus, measure=measure, since=start, until=end, span=span), chosen.step)
        for measure in ("sm", "memory")
    ]
    series = [
        Series(label, [None if math.isnan(value) else round(value, 1) for value in course.values.tolist()], colour)
        for label, colour, course in zip(("SM activity", "Memory used"), ("used", "series-2"), courses, strict=True)
    ]
    return over_time(label=f"{name}, last {chosen.text}", unit="%", at=courses[0].at, series=series, most=100)


def _coarser(course: Course, step: timedelta) -> Course:
    """Means over longer steps, where a step of the course is shorter."""
    times = step // course.step
    if times <= 1:
        return course
    count = len(course.values) // times
    table = course.values[: count * times].reshape(count, times)
    read = ~np.isnan(table)
    means = np.where(read.any(axis=1), np.where(read, table, 0).sum(axis=1) / np.maximum(read.sum(axis=1), 1), np.nan)
    return Course(course.at[: count * times : times], times * course.step, means)


def job_chart(job: Job, attempts: Sequence[Attempt], *, now: datetime) -> Chart:
    """What a job held and what of it computed, from its first attempt to its last; they are given with the latest first."""
    since, until = (attempts[-1].started_at, attempts[0].ended_at or now) if attempts else (now, now)
    held, computing = job_course(job_id=job.pk, since=since, until=until, span=grain_for(since=since, now=now, most=MOST_POINTS))
    series = [
        Series("Allocated", [_gpus(value) for value in held.values.tolist()], "held"),
        Series("Computing", [_gpus(value) for value in computing.values.tolist()], "used"),
    ]
    return over_time(label=f"GPUs of {job.name}", unit="GPUs", at=held.at, series=series)


def _gpus(milli: float) -> float | None:
    return None if math.isnan(milli) else round(milli / 1000, 2)

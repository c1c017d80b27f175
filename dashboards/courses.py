"""How clusters, pools, nodes, GPUs, teams and jobs went over time: charts from the telemetry store, at the finest grain that the time allows."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from dashboards.gap.causes import Cause
from dashboards.gap.figures import CAUSES
from dashboards.gap.store import Step, gap_course, span_for
from dashboards.marks import MARKS, fleet_marks, hardware_marks, node_marks, quota_marks
from dashboards.measures import ALLOCATION, LINES, UTILIZATION, Line, Measure
from dashboards.telemetry.spans import Course, Hold, gpu_course_each, gpu_courses, grain_for, held_courses, job_course
from gpufleet.core.charts import Chart, Mark, Series, heat_map, over_time
from gpufleet.core.ranges import RANGES, Range
from quotas.models import QuotaNode
from quotas.permissions import Access
from scheduler.models import Attempt, Cluster, Gpu, Job, Node, Placement, Pool
from scheduler.selectors.nodes import events_since, node_events_since

# More points than that are no finer on any screen.
MOST_POINTS = 700
MOST_CELLS = 100
ALL = "all"
UNCLEAR = "Starting or no reading"
# What a team holds, the part that computes at the bottom.
HELD = (Cause.COMPUTING, Cause.IDLE, Cause.UNREAD, Cause.STARTING, Cause.FAILED, Cause.RESERVED)
ALWAYS_SHOWN = (Cause.COMPUTING, Cause.IDLE)
# What all GPUs are up to, the part that computes at the bottom; the name, the colour and the causes of each state.
STATES: Sequence[tuple[str, str, tuple[Cause, ...]]] = (
    ("Computing", "used", (Cause.COMPUTING,)),
    ("Allocated, idle", "waste", (Cause.IDLE,)),
    (UNCLEAR, "rest", (Cause.STARTING, Cause.UNREAD)),
    ("Reserved", "series-8", (Cause.RESERVED,)),
    ("Free", "held", (Cause.WANTED, Cause.FRAGMENTED, Cause.UNWANTED)),
    ("Down", "bad", (Cause.FAILED, Cause.DRAINED)),
)


def fleet_chart(*, gpu_type: str, access: Access, chosen: Range, now: datetime) -> Chart:
    """All GPUs, or those of one type, on top of each other by state."""
    start = chosen.begin(now)
    course = gap_course(start, start + chosen.length, step=chosen.step, span=span_for(chosen.step), gpu_type=gpu_type)
    series = []
    for label, colour, causes in STATES:
        milli = [None if step.causes is None else sum(step.causes[cause] for cause in causes) for step in course]
        if label != UNCLEAR or any(milli):
            series.append(Series(label, [None if one is None else round(one / 1000, 2) for one in milli], colour, "area"))
    marks, at = fleet_marks(access, since=start, gpu_type=gpu_type), [step.at for step in course]
    return over_time(label=f"All GPUs by state, last {chosen.text}", unit="GPUs", at=at, series=series, stacked=True, marks=marks)


def gpu_chart(gpu: Gpu, *, chosen: Range, now: datetime, measure: Measure = UTILIZATION) -> Chart:
    """What telemetry stores of one GPU: SM activity and memory, or another measure."""
    events = events_since(chosen.begin(now), gpu=gpu)
    return _chart(f"GPU {gpu.index} of {gpu.node.name}", gpu.node.cluster_id, [gpu.pk], chosen, now, hardware_marks(events), measure)


def node_chart(node: Node, *, chosen: Range, now: datetime, measure: Measure = UTILIZATION) -> Chart:
    """The same on average over the GPUs of a node."""
    gpus = gpus_of_node(node)
    events = events_since(chosen.begin(now), node=node)
    return _chart(node.name, node.cluster_id, gpus, chosen, now, hardware_marks(events), measure)


def gpus_of_node(node: Node) -> list[int]:
    return list(Gpu.objects.filter(node=node, removed_at__isnull=True).order_by("pk").values_list("pk", flat=True))


def node_heat(node: Node, gpus: Sequence[Gpu], *, chosen: Range, now: datetime) -> Chart:
    """SM activity of each of these GPUs of a node, in so few steps that a cell is wide enough to be pointed at."""
    start = chosen.begin(now)
    span = grain_for(since=start, now=now, most=MOST_POINTS)
    keys = [gpu.pk for gpu in gpus]
    each = gpu_course_each(cluster_id=node.cluster_id, gpus=keys, measure="sm", since=start, until=start + chosen.length, span=span)
    step = chosen.step * math.ceil(chosen.length / chosen.step / MOST_CELLS)
    courses = [_coarser(each[key], step) for key in keys]
    values = [[None if math.isnan(value) else round(value, 1) for value in course.values.tolist()] for course in courses]
    at, names = courses[0].at if courses else (), [f"GPU {gpu.index}" for gpu in gpus]
    return heat_map(label=f"SM activity of each GPU of {node.name}, last {chosen.text}", unit="%", at=at, names=names, values=values, most=100)


def cluster_chart(cluster: Cluster, *, chosen: Range, now: datetime, measure: Measure = UTILIZATION) -> Chart:
    """The same on average over the GPUs of a cluster."""
    marks = node_marks(node_events_since(chosen.begin(now), node__cluster=cluster))
    return _chart(cluster.name, cluster.pk, gpus_of_cluster(cluster), chosen, now, marks, measure)


def gpus_of_cluster(cluster: Cluster) -> list[int]:
    present = Gpu.objects.filter(node__cluster=cluster, removed_at__isnull=True, node__removed_at__isnull=True)
    return list(present.order_by("pk").values_list("pk", flat=True))


def pool_chart(pool: Pool, *, chosen: Range, now: datetime, measure: Measure = UTILIZATION) -> Chart:
    """The same on average over the GPUs that a pool has now."""
    marks = node_marks(node_events_since(chosen.begin(now), node__pool=pool))
    return _chart(f"{pool.cluster.name}/{pool.name}", pool.cluster_id, gpus_of_pool(pool), chosen, now, marks, measure)


def gpus_of_pool(pool: Pool) -> list[int]:
    present = Gpu.objects.filter(node__pool=pool, removed_at__isnull=True, node__removed_at__isnull=True)
    return list(present.order_by("pk").values_list("pk", flat=True))


def _chart(name: str, cluster: int, gpus: Sequence[int], chosen: Range, now: datetime, marks: Sequence[Mark], measure: Measure) -> Chart:
    courses = hardware_courses(cluster, gpus, chosen=chosen, now=now, lines=measure.lines)
    return _of_lines(f"{name}, last {chosen.text}", courses, measure, marks)


def hardware_courses(cluster: int, gpus: Sequence[int], *, chosen: Range, now: datetime, lines: Sequence[Line] = LINES) -> list[Course]:
    """What telemetry stores of some GPUs of a cluster, on average, in the steps of a range. Two queries."""
    start = chosen.begin(now)
    span = grain_for(since=start, now=now, most=MOST_POINTS)
    stored = [line.stored for line in lines]
    found = gpu_courses(cluster_id=cluster, gpus=gpus, measures=stored, since=start, until=start + chosen.length, span=span)
    return [_coarser(course, chosen.step) for course in found]


def _of_lines(label: str, courses: Sequence[Course], measure: Measure, marks: Sequence[Mark]) -> Chart:
    series = [Series(line.name, values_read(course), line.colour) for line, course in zip(measure.lines, courses, strict=True)]
    return over_time(label=label, unit=measure.unit, at=courses[0].at, series=series, most=measure.most, marks=marks)


def values_read(course: Course) -> list[float | None]:
    """To a tenth; None where nothing was read."""
    return [None if math.isnan(value) else round(value, 1) for value in course.values.tolist()]


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


def team_chart(team: QuotaNode, *, access: Access, chosen: Range, now: datetime) -> Chart:
    """GPUs of a node of the quota tree and all below it: what computed, what was allocated and idle, what was kept free for its reservations."""
    start = chosen.begin(now)
    course = team_course(team, chosen=chosen, now=now)
    columns = {cause: [None if step.causes is None else round(step.causes[cause] / 1000, 2) for step in course] for cause in HELD}
    shown = [cause for cause in HELD if cause in ALWAYS_SHOWN or any(columns[cause])]
    series = [Series(CAUSES[cause].label, columns[cause], CAUSES[cause].colour, "area") for cause in shown]
    marks = quota_marks(access, team, since=start)
    return over_time(label=f"{team.path}, last {chosen.text}", unit="GPUs", at=[step.at for step in course], series=series, stacked=True, marks=marks)


def team_course(team: QuotaNode, *, chosen: Range, now: datetime) -> list[Step]:
    """The gap of a node of the quota tree and all below it, in the steps of a range. Two queries."""
    start = chosen.begin(now)
    below = QuotaNode.objects.filter(path__startswith=f"{team.path}/").values_list("pk", flat=True)
    return gap_course(start, start + chosen.length, step=chosen.step, span=span_for(chosen.step), quotas={team.pk, *below})


def job_ranges(attempts: Sequence[Attempt], *, now: datetime) -> list[Range]:
    """What the chart of a job offers: all of its time, and each range that is shorter; the attempts are given with the latest first."""
    life = _until(attempts, now) - attempts[-1].started_at if attempts else timedelta(0)
    over = bool(attempts) and attempts[0].ended_at is not None
    return [*(replace(one, over=over) for one in RANGES if one.length < life), Range(ALL, life, timedelta(0), "whole job")]


def job_range(asked: str, ranges: Sequence[Range]) -> Range:
    """The range of that key; all of the job's time where it is not offered."""
    return next((one for one in ranges if one.key == asked), ranges[-1])


def _until(attempts: Sequence[Attempt], now: datetime) -> datetime:
    return attempts[0].ended_at or now


def job_chart(job: Job, attempts: Sequence[Attempt], *, now: datetime, chosen: Range | None = None, measure: Measure = ALLOCATION) -> Chart:
    """What a job held and what of it computed, from its first attempt to its last; they are given with the latest first.

    With another measure: what was read of the whole GPUs that it held, on average.
    """
    since, until = job_time(attempts, now=now, chosen=chosen)
    span = grain_for(since=since, now=now, most=MOST_POINTS)
    if measure.lines:
        courses = job_gpu_courses(job, lines=measure.lines, since=since, until=until, span=span)
        return _of_lines(f"GPUs of {job.name}", courses, measure, _attempt_marks(attempts, since))
    held, computing = job_course(job_id=job.pk, since=since, until=until, span=span)
    series = [
        Series("Allocated", [_gpus(value) for value in held.values.tolist()], "held"),
        Series("Computing", [_gpus(value) for value in computing.values.tolist()], "used"),
    ]
    return over_time(label=f"GPUs of {job.name}", unit="GPUs", at=held.at, series=series, marks=_attempt_marks(attempts, since))


def job_time(attempts: Sequence[Attempt], *, now: datetime, chosen: Range | None) -> tuple[datetime, datetime]:
    """From when to when a job is drawn: all of its time, or the last part of it."""
    since, until = (attempts[-1].started_at, _until(attempts, now)) if attempts else (now, now)
    return (since if chosen is None else max(since, until - chosen.length)), until


def job_gpu_courses(job: Job, *, lines: Sequence[Line] = LINES, since: datetime, until: datetime, span: int) -> list[Course]:
    """What telemetry stores of the whole GPUs of a job while it held them, on average. Three queries; two more for each further cluster."""
    held = Placement.objects.filter(job=job, gpu__isnull=False, gpu_milli=1000, since__lt=until).exclude(until__lte=since).order_by("pk")
    by_cluster: dict[int, list[Hold]] = {}
    for cluster, gpu, begin, end in held.values_list("node__cluster_id", "gpu_id", "since", "until"):
        by_cluster.setdefault(cluster, []).append((gpu, begin, end))
    return held_courses(by_cluster, measures=[line.stored for line in lines], since=since, until=until, span=span)


def _attempt_marks(attempts: Sequence[Attempt], since: datetime) -> list[Mark]:
    marks = [Mark(one.started_at, f"Attempt {one.number} started") for one in attempts[:MARKS] if one.started_at >= since]
    marks += [Mark(one.ended_at, f"Attempt {one.number} ended") for one in attempts[:MARKS] if one.ended_at and one.ended_at >= since]
    return sorted(marks, key=lambda one: (one.at, one.text))


def _gpus(milli: float) -> float | None:
    return None if math.isnan(milli) else round(milli / 1000, 2)

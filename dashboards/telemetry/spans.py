"""The store's coarser grains: a quarter of an hour and an hour of every GPU and every job, made from minutes.

A span is made when its last minute is over, and made again when a frame came late to one of its minutes. It is one row a cluster (of GPUs) or one row
(of jobs), so a fleet of 4,000 GPUs writes a few rows a quarter of an hour. docs/operate/telemetry.md says how large that gets.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Substr
from numpy.typing import NDArray

from dashboards.models import GpuRollup, JobRollup, TelemetryMinute
from dashboards.telemetry.frames import MEASURES, SETTLE, Sums, sums_of
from dashboards.telemetry.packing import ids_packed, ids_read, sums_packed, sums_read
from gpufleet.core.times import Seconds

QUARTER, HOUR = 900, 3600
SPANS = (QUARTER, HOUR)
# So long minutes are kept: coarser spans can be made, and made again, from them.
MINUTES_KEPT = timedelta(hours=48)
UNREAD = 65_535

Ids = NDArray[np.uint32]
Whole = NDArray[np.int64]


def span_begin(moment: datetime, span: int) -> datetime:
    return datetime.fromtimestamp(int(moment.timestamp()) // span * span, UTC)


def slots_due(snapshots: QuerySet[Any], *, now: datetime) -> list[tuple[int, datetime]]:
    """Which quarters and hours of the last two days are over and not there yet, of rows with `span` and `at` that are written a minute."""
    first = now - MINUTES_KEPT
    known = snapshots.filter(at__gte=first).order_by()
    there = set(known.filter(span__in=SPANS).values_list("span", "at"))
    begun = {(span, span_begin(minute, span)) for minute in known.filter(span=60).values_list("at", flat=True) for span in SPANS}
    return sorted((span, at) for span, at in begun - there if at >= first and at + timedelta(seconds=span) <= now)


@dataclass(frozen=True, slots=True)
class JobSums:
    """What jobs held in a period, in milli-GPU x milliseconds; `unread` is the part of `held` on GPUs without a reading."""

    jobs: Ids
    held: Whole
    computing: Whole
    unread: Whole


def spans_roll(*, late: Collection[datetime], now: datetime) -> int:
    """Write every span that is over and not there yet, and again those that `late` minutes lie in. Returns how many were written."""
    last = now - SETTLE
    first = last - MINUTES_KEPT
    of_jobs = set(JobRollup.objects.filter(span__in=SPANS, at__gte=first).values_list("span", "at"))
    of_gpus = set(GpuRollup.objects.filter(span__in=SPANS, at__gte=first).order_by().values_list("span", "at").distinct())
    minutes = set(TelemetryMinute.objects.filter(at__gte=first).order_by().values_list("at", flat=True).distinct())
    minutes |= set(JobRollup.objects.filter(span=60, at__gte=first).values_list("at", flat=True))
    written = 0
    for span in SPANS:
        over = {slot for minute in minutes if (slot := span_begin(minute, span)) + timedelta(seconds=span) <= last}
        # A span that began before the oldest minute would be made from half of them.
        due = {slot for slot in over if slot >= first and not ((span, slot) in of_jobs and (span, slot) in of_gpus)}
        due |= {slot for minute in late if (slot := span_begin(minute, span)) in over and slot >= first}
        for slot in sorted(due):
            written += _span_roll(span, slot)
    return written


def _span_roll(span: int, at: datetime) -> int:
    end = at + timedelta(seconds=span)
    gpus = _gpu_rollups(span, at, TelemetryMinute.objects.filter(at__gte=at, at__lt=end).order_by("cluster_id", "at"))
    jobs = jobs_added([jobs_of(row) for row in JobRollup.objects.filter(span=60, at__gte=at, at__lt=end).order_by("at")])
    with transaction.atomic():
        GpuRollup.objects.bulk_create(gpus, update_conflicts=True, unique_fields=["cluster", "span", "at"], update_fields=[*_COLUMNS])
        jobs_write(span, {at: jobs})
    return 1


_COLUMNS = ("gpu_ids", "minutes", *MEASURES)


def _gpu_rollups(span: int, at: datetime, minutes: Iterable[TelemetryMinute]) -> list[GpuRollup]:
    by_cluster: dict[int, list[Sums]] = {}
    for row in minutes:
        by_cluster.setdefault(row.cluster_id, []).append(sums_of(row))
    return [GpuRollup(cluster_id=cluster, span=span, at=at, **_means(parts)) for cluster, parts in by_cluster.items()]


def _means(parts: Sequence[Sums]) -> dict[str, bytes]:
    gpus = np.unique(np.concatenate([part.gpus for part in parts]))
    columns: dict[str, bytes] = {"gpu_ids": ids_packed(gpus), "minutes": b""}
    for name in MEASURES:
        total, count = np.zeros(len(gpus)), np.zeros(len(gpus), np.uint32)
        scale = 1 if name == "power" else 100
        for part in parts:
            if name in part.measures:
                place, (added, read) = np.searchsorted(gpus, part.gpus), part.measures[name]
                total[place] += np.where(read > 0, added * scale / np.maximum(read, 1), 0)
                count[place] += read > 0
        if name == "sm":
            columns["minutes"] = count.astype(np.uint8).tobytes()
        if name in ("sm", "memory") or count.any():
            columns[name] = np.where(count > 0, np.minimum(np.round(total / np.maximum(count, 1)), UNREAD - 1), UNREAD).astype("<u2").tobytes()
        else:
            columns[name] = b""
    return columns


def jobs_write(span: int, sums: Mapping[datetime, JobSums]) -> None:
    """One row a period; one that is there is written anew. A period without jobs has a row too: it says that nothing was held."""
    rows = [
        JobRollup(span=span, at=at, job_ids=ids_packed(part.jobs), sums=sums_packed(part.held, part.computing, part.unread))
        for at, part in sums.items()
    ]
    JobRollup.objects.bulk_create(rows, update_conflicts=True, unique_fields=["span", "at"], update_fields=["job_ids", "sums"])


def jobs_of(row: JobRollup) -> JobSums:
    held, computing, unread = sums_read(row.sums, 3)
    return JobSums(ids_read(row.job_ids), held, computing, unread)


def jobs_added(parts: Sequence[JobSums]) -> JobSums:
    """Sums of several periods, exact."""
    jobs = np.unique(np.concatenate([part.jobs for part in parts])) if parts else np.zeros(0, np.uint32)
    sums = np.zeros((3, len(jobs)), np.int64)
    for part in parts:
        place = np.searchsorted(jobs, part.jobs)
        for row, column in zip(sums, (part.held, part.computing, part.unread), strict=True):
            row[place] += column
    return JobSums(jobs.astype(np.uint32), *sums)


# ---- Read ----


@dataclass(frozen=True, slots=True)
class Course:
    """A measure over equal steps, the oldest first; NaN where nothing was read."""

    at: tuple[datetime, ...]
    step: timedelta
    values: NDArray[np.float64]


# How far back each grain reaches, the finest first.
GRAINS = ((60, MINUTES_KEPT), (QUARTER, timedelta(days=30)), (HOUR, timedelta(days=400)))


def grain_for(*, since: datetime, now: datetime, most: int) -> int:
    """The finest grain, in seconds, that reaches back to `since` in at most `most` steps; else the coarsest."""
    for span, kept in GRAINS:
        if now - since <= kept and (now - since) / timedelta(seconds=span) <= most:
            return span
    return HOUR


def steps_between(begin: datetime, end: datetime, step: timedelta) -> int:
    """How many steps it takes to reach an end, one that has only begun included: a row may be of its very first moment."""
    return max(0, -((begin - end) // step))


def gpu_courses(*, cluster_id: int, gpus: Sequence[int], measures: Sequence[str], since: datetime, until: datetime, span: int) -> tuple[Course, ...]:
    """The mean of some GPUs of a cluster in each step of the grain, for each measure. Two queries; a step counts the GPUs that were read in it."""
    wanted = np.array(sorted(gpus), np.uint32)
    begin = span_begin(since, span)
    steps = steps_between(begin, until, timedelta(seconds=span))
    values = np.full((len(measures), steps), np.nan)
    for at, place, columns, _ in _measured(cluster_id, measures, begin, until, span, wanted):
        values[:, (at - int(begin.timestamp())) // span] = [_mean(measure, columns, place, minute=span == 60) for measure in measures]
    moments = tuple(begin + timedelta(seconds=span * step) for step in range(steps))
    return tuple(Course(moments, timedelta(seconds=span), row) for row in values)


Hold = tuple[int, datetime, datetime | None]  # which GPU, from when, until when


def held_courses(by_cluster: Mapping[int, Sequence[Hold]], *, measures: Sequence[str], since: datetime, until: datetime, span: int) -> list[Course]:
    """As `gpu_courses`, but a GPU counts only in those steps in which it was held from beginning to end: in the others it worked for somebody else.

    Two queries for each cluster.
    """
    begin = span_begin(since, span)
    steps = steps_between(begin, until, timedelta(seconds=span))
    values = np.full((len(measures), steps), np.nan)
    for cluster, holds in by_cluster.items():
        gpus = np.array([gpu for gpu, _, _ in holds], np.uint32)
        first = np.array([start.timestamp() for _, start, _ in holds])
        last = np.array([math.inf if end is None else end.timestamp() for _, _, end in holds])
        for at, place, columns, ids in _measured(cluster, measures, begin, until, span, np.unique(gpus)):
            mine = place[np.isin(ids, gpus[(first <= at) & (at + span <= last)])]
            if len(mine):
                values[:, (at - int(begin.timestamp())) // span] = [_mean(measure, columns, mine, minute=span == 60) for measure in measures]
    moments = tuple(begin + timedelta(seconds=span * step) for step in range(steps))
    return [Course(moments, timedelta(seconds=span), row) for row in values]


def gpu_course_each(*, cluster_id: int, gpus: Sequence[int], measure: str, since: datetime, until: datetime, span: int) -> dict[int, Course]:
    """What each of some GPUs of a cluster did in each step of the grain, by GPU. Two queries."""
    wanted = np.array(sorted(gpus), np.uint32)
    begin = span_begin(since, span)
    steps = steps_between(begin, until, timedelta(seconds=span))
    values = np.full((len(wanted), steps), np.nan)
    for at, place, columns, ids in _measured(cluster_id, [measure], begin, until, span, wanted):
        values[np.searchsorted(wanted, ids), (at - int(begin.timestamp())) // span] = _each(measure, columns, place, minute=span == 60)
    moments = tuple(begin + timedelta(seconds=span * step) for step in range(steps))
    return {int(gpu): Course(moments, timedelta(seconds=span), row) for gpu, row in zip(wanted, values, strict=True)}


Stretch = tuple[int, NDArray[np.int64], Mapping[str, NDArray[Any]], Ids]


def _measured(cluster: int, measures: Sequence[str], begin: datetime, until: datetime, span: int, wanted: Ids) -> Iterable[Stretch]:
    """Of each row the moment in seconds, where the wanted GPUs stand in its columns, the columns, and which GPUs those are."""
    minute = span == 60
    kinds = {measure: MEASURES[measure] if minute else "<u2" for measure in measures}
    names = {f"{measure}_sum": kinds[measure] for measure in measures} | {f"{measure}_read": "u1" for measure in measures} if minute else kinds
    stored: QuerySet[Any] = TelemetryMinute.objects.all() if minute else GpuRollup.objects.filter(span=span)
    rows = stored.filter(cluster_id=cluster, at__gte=begin, at__lt=until).order_by()
    # Most rows have the same GPUs: where the wanted ones stand is worked out once, and only the stretch of columns that has them all is read.
    places = {bytes(ids): np.flatnonzero(np.isin(ids_read(ids), wanted)) for ids in rows.values_list("gpu_ids", flat=True).distinct()}
    there = [place for place in places.values() if len(place)]
    if not there:
        return
    first, last = min(int(place[0]) for place in there), max(int(place[-1]) for place in there)
    parts = [
        Substr(name, 1 + first * width, (1 + last - first) * width)
        for name, width in ((name, np.dtype(kind).itemsize) for name, kind in names.items())
    ]
    for at, ids, *packed in rows.values_list(Seconds("at"), "gpu_ids", *parts):
        place = places.get(bytes(ids))
        if place is None:
            continue  # it came after the first question
        # Of a measure that nothing read, the column is empty: a part of it is NULL on SQLite.
        columns = {name: np.frombuffer(column or b"", kind) for (name, kind), column in zip(names.items(), packed, strict=True)}
        yield at, place - first, columns, ids_read(bytes(ids))[place]


def _mean(measure: str, columns: Mapping[str, NDArray[Any]], place: NDArray[np.int64], *, minute: bool) -> float:
    """Of what was read; NaN where nothing was, or where the row has no such measure."""
    column = columns[f"{measure}_sum" if minute else measure]
    if not len(column):
        return np.nan
    if minute:
        read = columns[f"{measure}_read"]
        seen = place[read[place] > 0]
        return float((column[seen] / read[seen]).mean()) if len(seen) else np.nan
    seen = place[column[place] != UNREAD]
    return float(column[seen].mean()) / (1 if measure == "power" else 100) if len(seen) else np.nan


def _each(measure: str, columns: Mapping[str, NDArray[Any]], place: NDArray[np.int64], *, minute: bool) -> NDArray[np.float64]:
    """Of each GPU; NaN where it was not read."""
    column = columns[f"{measure}_sum" if minute else measure]
    if not len(column):
        return np.full(len(place), np.nan)
    if minute:
        read = columns[f"{measure}_read"][place]
        return np.where(read > 0, column[place] / np.maximum(read, 1), np.nan)
    return np.where(column[place] == UNREAD, np.nan, column[place] / (1 if measure == "power" else 100))


def job_course(*, job_id: int, since: datetime, until: datetime, span: int) -> tuple[Course, Course]:
    """Milli-GPU that the job held, and that computed, on average in each step of the grain. One query."""
    return job_courses(jobs=[job_id], since=since, until=until, span=span)[job_id]


def job_courses(*, jobs: Sequence[int], since: datetime, until: datetime, span: int) -> dict[int, tuple[Course, Course]]:
    """The same of several jobs, by job. One query."""
    begin = span_begin(since, span)
    steps = steps_between(begin, until, timedelta(seconds=span))
    held, computing = np.full((len(jobs), steps), np.nan), np.full((len(jobs), steps), np.nan)
    for row in JobRollup.objects.filter(span=span, at__gte=begin, at__lt=until):
        sums, step = jobs_of(row), int((row.at - begin).total_seconds()) // span
        for line, job in enumerate(jobs):
            place = np.flatnonzero(sums.jobs == job)
            if not len(place) or not sums.held[place[0]]:
                held[line, step] = computing[line, step] = 0
                continue
            held[line, step] = sums.held[place[0]] / span / 1000
            if sums.unread[place[0]] < sums.held[place[0]]:
                computing[line, step] = sums.computing[place[0]] / span / 1000
    at, length = tuple(begin + timedelta(seconds=span * step) for step in range(steps)), timedelta(seconds=span)
    return {job: (Course(at, length, held[line]), Course(at, length, computing[line])) for line, job in enumerate(jobs)}

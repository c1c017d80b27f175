"""Learning in small steps: which runs are looked at next, what telemetry stores of their GPUs, and the phases found in it.

A run is looked at when it is over, and while it goes on each time that it is twice as old as at the last look, up to a day. Then its row stays as it
is: later phases are like those of its first day. A round reads telemetry once, for the runs that wait longest and whose times lie within a day.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, inf

import numpy as np
from django.db import transaction
from numpy.typing import NDArray

from dashboards.fingerprints.learning import LEAST_MINUTES
from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.phases import COUNTERS, Floats, Part, Phase, RunPhases, phase_sums, run_phases
from dashboards.models import TelemetryMinute
from dashboards.telemetry.packing import ids_read
from dashboards.telemetry.spans import MINUTES_KEPT
from dashboards.weak import weak_gpus
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.progress import turn_take
from gpufleet.core.times import Seconds
from scheduler.models import Attempt, Checkpoint, Placement

TURN = "fingerprints"
PACE = timedelta(seconds=50)  # beat asks each minute
FIRST_LOOK = timedelta(minutes=15)
# The last minutes of a run are stored, and late readings counted, by then.
SETTLED = timedelta(minutes=2)
# So much of a run is learned from, at most.
WINDOW = timedelta(hours=24)
LEAST_TIME = timedelta(minutes=LEAST_MINUTES)
# A call that came late still meets every run that ended since the one before.
OVERLAP = timedelta(minutes=10)
MINUTE = timedelta(minutes=1)
# Bounds of one round.
MOST_RUNS, MOST_MINUTES = 100, 1500
# Minutes of all of its runs: those of a day take 50 ms each to be cut, and a round is to take two seconds at most.
MOST_CUT = 30_000
LOOKED = ("due_at", "looked_at", "minutes", "read", "is_weak", "level", "period", "parts", "sums")
WHOLE_MILLI = 1000


def fingerprints_turn(*, now: datetime) -> int | None:
    """One round. None: another process just did it. Returns how many runs were looked at."""
    with transaction.atomic():
        turn = turn_take(name=TURN, now=now, at_least=PACE)
        if turn is None:
            return None
        runs_note(since=turn.before - OVERLAP if RunLearned.objects.exists() else now - MINUTES_KEPT, now=now)
    return runs_learn(now=now)


def runs_note(*, since: datetime, now: datetime) -> None:
    """Runs of templates that are new, and those that ended since then, are to be looked at. Four queries."""
    left = Placement.objects.filter(until__gt=since).values("attempt_id")
    open_ones = Attempt.objects.filter(ended_at__isnull=True)
    ended = Attempt.objects.filter(pk__in=left, ended_at__isnull=False)
    RunLearned.objects.filter(attempt__in=ended, due_at__gt=now + SETTLED).update(due_at=now + SETTLED)
    rows = []
    for attempts in (open_ones, ended):
        new = attempts.filter(running_at__isnull=False, job__template__isnull=False, learned__isnull=True)
        for key, template, began, end in new.values_list("pk", "job__template", "running_at", "ended_at"):
            if began is not None and (end is None or end - began >= LEAST_TIME):
                rows.append((key, template, began, began + FIRST_LOOK if end is None else end + SETTLED))
    rows_insert(RunLearned, ("attempt_id", "template", "since", "due_at"), rows)


def runs_learn(*, now: datetime) -> int:
    """Look at those that are due, the longest first, within the bounds of a round: all of them in one reading of telemetry."""
    batch: list[RunLearned] = []
    begin = end = now
    cut = 0.0
    for row in RunLearned.objects.filter(due_at__lte=now).select_related("attempt").order_by("due_at", "pk")[: 4 * MOST_RUNS]:
        first, last = _begin(row), _end(row, now)
        span = (min(begin, first), max(end, last)) if batch else (first, last)
        length = (last - first) / MINUTE
        if not batch or ((span[1] - span[0]) / MINUTE <= MOST_MINUTES and cut + length <= MOST_CUT):
            batch.append(row)
            (begin, end), cut = span, cut + length
        if len(batch) == MOST_RUNS:
            break
    if batch:
        _look(batch, begin=begin, end=end, now=now)
    return len(batch)


def _begin(row: RunLearned) -> datetime:
    """The first whole minute of the run."""
    return first_minute(row.since)


def first_minute(since: datetime) -> datetime:
    return since + timedelta(seconds=ceil(since.timestamp() / 60) * 60 - since.timestamp())


def _end(row: RunLearned, now: datetime) -> datetime:
    until = min(row.attempt.ended_at or now, row.since + WINDOW)
    return max(_begin(row), until - timedelta(seconds=until.timestamp() % 60))


def _look(rows: Sequence[RunLearned], *, begin: datetime, end: datetime, now: datetime) -> None:
    attempts = [row.attempt_id for row in rows]
    holds, weak = holds_of(attempts), weak_gpus()
    saved: dict[int, list[datetime]] = {}
    for attempt, at in Checkpoint.objects.filter(attempt__among=attempts).order_by("pk").values_list("attempt_id", "reported_at"):
        saved.setdefault(attempt, []).append(at)
    read = counters_read(holds, attempts, begin=begin, end=end)
    for place, row in enumerate(rows):
        start = _begin(row)
        skipped, size = int((start - begin) / MINUTE), int((_end(row, now) - start) / MINUTE)
        counters = {name: read[counter, place, skipped : skipped + size] for counter, name in enumerate(COUNTERS)}
        row.is_weak = bool(weak.intersection(holds.gpu[holds.run == row.attempt_id].tolist()))
        found = RunPhases((), size, 0)
        if not row.is_weak:
            reported = [(at - start) / MINUTE for at in saved.get(row.attempt_id, ())]
            found = run_phases(counters, lead=(start - row.since).total_seconds(), reported=reported)
        row.minutes, row.read, row.level, row.period = found.minutes, found.read, found.level, found.period
        row.parts = [list(_packed(part)) for part in found.parts]
        row.sums = {phase: [seconds, *levels] for phase, seconds, levels in phase_sums(found)}
        row.looked_at, row.due_at = now, _next_look(row, now)
    objects_update(rows, LOOKED)


def _next_look(row: RunLearned, now: datetime) -> datetime | None:
    age = now - row.since
    if row.attempt.ended_at is not None or age >= WINDOW:
        return None
    return min(max(row.since + 2 * age, now + FIRST_LOOK), row.since + WINDOW + SETTLED)


def _packed(part: Part) -> Iterable[object]:
    return (part.phase.value, part.first, part.minutes, part.seconds, *part.levels)


def phases_stored(row: RunLearned) -> RunPhases:
    parts = tuple(Part(Phase(phase), first, minutes, seconds, tuple(levels)) for phase, first, minutes, seconds, *levels in row.parts)
    return RunPhases(parts, row.minutes, row.read, row.level, row.period)


# ---- What telemetry stores of the GPUs of runs ----

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Holds:
    """Which run held which whole GPU, and from when until when in seconds, as columns."""

    run: Whole
    gpu: Whole
    cluster: Whole
    since: Floats
    until: Floats


def holds_of(attempts: Sequence[int]) -> Holds:
    """One query. Of a part of a GPU nothing is measured by itself."""
    held = Placement.objects.filter(attempt__among=attempts, gpu__isnull=False, mig__isnull=True, gpu_milli=WHOLE_MILLI).order_by("pk")
    rows = list(held.values_list("attempt_id", "gpu_id", "node__cluster_id", Seconds("since"), Seconds("until")))
    run, gpu, cluster = (np.array([row[place] for row in rows], np.int64) for place in range(3))
    since = np.array([row[3] for row in rows], np.float64)
    return Holds(run, gpu, cluster, since, np.array([inf if row[4] is None else row[4] for row in rows], np.float64))


def counters_read(holds: Holds, runs: Sequence[int], *, begin: datetime, end: datetime) -> Floats:
    """By counter, run and minute the mean over the GPUs that the run held from beginning to end of the minute. A query for each cluster."""
    start, size = int(begin.timestamp()), max(0, int((end - begin) / MINUTE))
    found = np.full((len(COUNTERS), len(runs), size), np.nan)
    order = {run: place for place, run in enumerate(runs)}
    columns = [f"{name}_{part}" for name in COUNTERS for part in ("sum", "read")]
    for cluster in np.unique(holds.cluster).tolist():
        mine = holds.cluster == cluster
        run = np.array([order[one] for one in holds.run[mine].tolist()], np.int64)
        gpu, since, until = holds.gpu[mine], holds.since[mine], holds.until[mine]
        places: dict[bytes, tuple[Whole, NDArray[np.bool_]]] = {}
        rows = TelemetryMinute.objects.filter(cluster_id=cluster, at__gte=begin, at__lt=end).order_by()
        for at, ids, *packed in rows.values_list(Seconds("at"), "gpu_ids", *columns).iterator(chunk_size=200):
            if (key := bytes(ids)) not in places:
                places[key] = _places(ids_read(key), gpu)
            place, there = places[key]
            held = np.flatnonzero(there & (since <= at) & (at + 60 <= until))
            if len(held):
                _add(found[:, :, (at - start) // 60], packed, place[held], run[held])
    return found


def _places(ids: NDArray[np.uint32], gpus: Whole) -> tuple[Whole, NDArray[np.bool_]]:
    """Where these GPUs stand among those of a minute, and whether they do."""
    if not len(ids):
        return np.zeros(len(gpus), np.int64), np.zeros(len(gpus), np.bool_)
    place = np.minimum(np.searchsorted(ids, gpus), len(ids) - 1)
    return place, ids[place] == gpus


def _add(column: Floats, packed: Sequence[bytes], place: Whole, run: Whole) -> None:
    """The mean of each counter over the GPUs of each run that were read in one minute."""
    for counter in range(len(COUNTERS)):
        total, read = np.frombuffer(packed[2 * counter] or b"", "<u2"), np.frombuffer(packed[2 * counter + 1] or b"", "u1")
        if not len(total):
            continue
        seen = place[read[place] > 0]
        whose = run[read[place] > 0]
        count = np.bincount(whose, minlength=column.shape[1])
        means = np.bincount(whose, total[seen] / read[seen], column.shape[1])
        column[counter, count > 0] = means[count > 0] / count[count > 0]

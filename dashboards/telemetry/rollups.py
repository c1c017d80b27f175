"""Roll-ups: a minute of the fleet per GPU type, and five minutes of every node, from frames and placements.

A GPU without a reading counts as unread, never as idle. Handed-out GPUs are weighted by time, so the sum over all samples is what the placements
say for the same hours.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction
from django.db.models import Q, QuerySet
from numpy.typing import NDArray

from dashboards.models import NO_READING, FleetSample, NodeSample, TelemetryMinute
from dashboards.telemetry.frames import MINUTE, SETTLE, Sums, minute_of, sums_between
from dashboards.telemetry.spans import JobSums, jobs_write, spans_roll
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.times import millis
from scheduler.models import IN_SERVICE, Gpu, Placement

SLOT = timedelta(minutes=5)
LOOK_BACK = timedelta(minutes=15)

FOREVER = 1 << 52

Whole = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of the fleet as columns, by node and index. `place` finds a GPU's row by its key."""

    keys: Whole
    nodes: Whole
    types: NDArray[np.str_]
    in_service: NDArray[np.bool_]
    place: Whole


def gpus_now() -> Gpus:
    rows = list(
        Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True)
        .order_by("node_id", "index")
        .values_list("id", "node_id", "gpu_type_id", "health", "node__health")
    )
    return gpus_of(
        np.array([row[0] for row in rows], np.int64),
        np.array([row[1] for row in rows], np.int64),
        np.array([row[2] for row in rows], np.str_),
        np.array([row[3] in IN_SERVICE and row[4] in IN_SERVICE for row in rows], np.bool_),
    )


def gpus_of(keys: Whole, nodes: Whole, types: NDArray[np.str_], in_service: NDArray[np.bool_]) -> Gpus:
    place = np.full(int(keys.max(initial=0)) + 1, -1, np.int64)
    place[keys] = np.arange(len(keys))
    return Gpus(keys=keys, nodes=nodes, types=types, in_service=in_service, place=place)


@dataclass(frozen=True, slots=True)
class Holds:
    """Placements as columns; times in milliseconds, `FOREVER` where one is open."""

    gpus: Whole
    milli: Whole
    since: Whole
    until: Whole


@dataclass(frozen=True, slots=True)
class Use:
    """Per GPU over a period: milli-GPU x milliseconds handed out, and what the frames add up to."""

    held_milli_millis: Whole
    sm_sum: Whole
    sm_read: Whole
    memory_sum: Whole
    memory_read: Whole


def telemetry_rollup(*, now: datetime) -> int:
    """Write every sample that is due and not there yet, of the last quarter of an hour, and again those to whose minutes frames came late.

    Doubled or late calls are harmless. What a stopped console left undone is made up for from the minutes that are kept.
    """
    last = minute_of(now - SETTLE)
    first = minute_of(now - LOOK_BACK)
    minutes = [first + MINUTE * step for step in range((last - first) // MINUTE)]
    seen = set(FleetSample.objects.filter(at__gte=first).values_list("at", flat=True))
    unrolled = list(TelemetryMinute.objects.filter(is_rolled=False, at__lt=last).order_by("at", "pk").values_list("pk", "at", "frames"))
    late = {at for _, at, _ in unrolled}
    wanted = sorted({minute for minute in minutes if minute not in seen} | late)
    if not wanted and not unrolled:
        return 0
    gpus = gpus_now()
    if not len(gpus.keys):
        return 0
    # Added up first, as SQLite's other writers wait for the end of a transaction: after a start there are fifteen minutes to add up.
    of_fleet = [sample for minute in wanted for sample in fleet_samples(gpus, use_between(gpus, minute, minute + MINUTE), at=minute)]
    of_nodes = _node_samples_due(gpus, minutes, late)
    of_jobs = {minute: jobs_between(gpus, minute, minute + MINUTE) for minute in wanted}
    with transaction.atomic():
        FleetSample.objects.bulk_create(of_fleet, update_conflicts=True, unique_fields=["at", "gpu_type"], update_fields=FLEET_FIGURES)
        NodeSample.objects.bulk_create(of_nodes, update_conflicts=True, unique_fields=["node", "at"], update_fields=NODE_FIGURES)
        jobs_write(60, of_jobs)
        feed_publish(changes={"overview": [{"id": 1}]})
    spans_roll(late=late, now=now)
    with transaction.atomic():
        # Last of all: a round that breaks off before is done again.
        for key, _, frames in unrolled:
            # One that was added to meanwhile has its turn next time.
            TelemetryMinute.objects.filter(pk=key, frames=frames).update(is_rolled=True)
    return len(wanted)


FLEET_FIGURES = ["capacity_milli", "healthy_milli", "allocated_milli", "active_milli", "unread_milli"]
NODE_FIGURES = ["sm_active", "memory_used", "allocated"]


def _node_samples_due(gpus: Gpus, minutes: Sequence[datetime], late: Collection[datetime]) -> list[NodeSample]:
    slots = [minute for minute in minutes if minute.minute % 5 == 0 and minute + SLOT <= minutes[-1] + MINUTE]
    there = set(NodeSample.objects.filter(at__in=slots).order_by().values_list("at", flat=True).distinct())
    again = {minute - timedelta(minutes=minute.minute % 5) for minute in late}
    due = [slot for slot in slots if slot not in there or slot in again]
    return [sample for slot in due for sample in node_samples(gpus, use_between(gpus, slot, slot + SLOT), at=slot, period=SLOT)]


def jobs_between(gpus: Gpus, start: datetime, end: datetime) -> JobSums:
    """What each job held in [start, end), and how much of it computed."""
    rows = holds_between(start, end).values_list("gpu_id", "gpu_milli", "since", "until", "job_id")
    columns = [(gpu, milli, millis(since), millis(until) if until else FOREVER, job) for gpu, milli, since, until, job in rows]
    *holds, jobs = np.array(columns, np.int64).reshape(-1, 5).T
    return job_sums(gpus, Holds(*holds), jobs, sums_between(start, end), start, end)


def job_sums(gpus: Gpus, holds: Holds, jobs: Whole, sums: Sequence[Sums], start: datetime, end: datetime) -> JobSums:
    """`jobs` says whose each hold is. Jobs that share a GPU compute in proportion to what they hold of it."""
    use = use_of(gpus, held_milli_millis(gpus, holds, start, end), sums)
    place = _rows(gpus, holds.gpus)
    held = np.maximum(0, np.minimum(holds.until, millis(end)) - np.maximum(holds.since, millis(start))) * holds.milli
    counts = (place >= 0) & (held > 0)
    place, held = place[counts], held[counts]
    keys, number = np.unique(jobs[counts], return_inverse=True)
    read = use.sm_read > 0
    active = np.where(read, use.sm_sum * 10 * (millis(end) - millis(start)) // np.maximum(use.sm_read, 1), 0)
    whole = use.held_milli_millis
    computing = held * (np.minimum(active, whole)[place] / np.maximum(whole, 1)[place])
    found = np.zeros((3, len(keys)), np.int64)
    np.add.at(found[0], number, held)
    np.add.at(found[1], number, np.minimum(computing.astype(np.int64), held))
    np.add.at(found[2], number, np.where(read[place], 0, held))
    return JobSums(keys.astype(np.uint32), *found)


def use_between(gpus: Gpus, start: datetime, end: datetime) -> Use:
    """What frames and placements say about [start, end)."""
    held = held_between(gpus, start, end)
    return use_of(gpus, held, sums_between(start, end))


def use_of(gpus: Gpus, held: Whole, sums: Sequence[Sums]) -> Use:
    columns = {name: np.zeros(len(gpus.keys), np.int64) for name in ("sm_sum", "sm_read", "memory_sum", "memory_read")}
    for part in sums:
        rows = _rows(gpus, part.gpus.astype(np.int64))
        for name, column in columns.items():
            column[rows[rows >= 0]] += getattr(part, name)[rows >= 0].astype(np.int64)
    return Use(held_milli_millis=held, **columns)


def _rows(gpus: Gpus, keys: Whole) -> Whole:
    """The rows of the given GPUs; -1 for those that are not in the fleet any more."""
    return np.where(keys < len(gpus.place), gpus.place[np.minimum(keys, len(gpus.place) - 1)], -1)


def holds_between(start: datetime, end: datetime) -> QuerySet[Placement]:
    return Placement.objects.filter(Q(until__isnull=True) | Q(until__gt=start), since__lt=end, gpu__isnull=False)


def held_between(gpus: Gpus, start: datetime, end: datetime) -> Whole:
    """Milli-GPU x milliseconds that every GPU was handed out in [start, end)."""
    rows = holds_between(start, end).values_list("gpu_id", "gpu_milli", "since", "until")
    columns = [(gpu, milli, millis(since), millis(until) if until else FOREVER) for gpu, milli, since, until in rows]
    return held_milli_millis(gpus, Holds(*np.array(columns, np.int64).reshape(-1, 4).T), start, end)


def held_milli_millis(gpus: Gpus, holds: Holds, start: datetime, end: datetime) -> Whole:
    held = np.zeros(len(gpus.keys), np.int64)
    overlap = np.minimum(holds.until, millis(end)) - np.maximum(holds.since, millis(start))
    rows = _rows(gpus, holds.gpus)
    counts = (overlap > 0) & (rows >= 0)
    np.add.at(held, rows[counts], (overlap * holds.milli)[counts])
    return held


def fleet_samples(gpus: Gpus, use: Use, *, at: datetime) -> list[FleetSample]:
    """One sample a GPU type for the minute that begins at `at`."""
    period = int(MINUTE.total_seconds() * 1000)
    read = use.sm_read > 0
    mean_milli = np.where(read, use.sm_sum * 10 // np.maximum(use.sm_read, 1), 0)
    samples = []
    for name in np.unique(gpus.types):
        mine = gpus.types == name
        samples.append(
            FleetSample(
                at=at,
                gpu_type=str(name),
                capacity_milli=int(mine.sum()) * 1000,
                healthy_milli=int((mine & gpus.in_service).sum()) * 1000,
                allocated_milli=int(use.held_milli_millis[mine].sum()) // period,
                active_milli=int(mean_milli[mine].sum()),
                unread_milli=int((mine & ~read).sum()) * 1000,
            )
        )
    return samples


def node_samples(gpus: Gpus, use: Use, *, at: datetime, period: timedelta) -> list[NodeSample]:
    """One sample a node for the period that begins at `at`: a byte a GPU, in the order of their indices."""
    sm = _percent(use.sm_sum, use.sm_read)
    memory = _percent(use.memory_sum, use.memory_read)
    held = (use.held_milli_millis // (10 * int(period.total_seconds() * 1000))).astype(np.uint8)
    nodes, starts = np.unique(gpus.nodes, return_index=True)
    ends = [*starts[1:].tolist(), len(gpus.nodes)]
    return [
        NodeSample(
            node_id=int(node), at=at, sm_active=sm[start:end].tobytes(), memory_used=memory[start:end].tobytes(), allocated=held[start:end].tobytes()
        )
        for node, start, end in zip(nodes.tolist(), starts.tolist(), ends, strict=True)
    ]


def _percent(total: Whole, count: Whole) -> NDArray[np.uint8]:
    return np.where(count > 0, np.round(total / np.maximum(count, 1)), NO_READING).astype(np.uint8)

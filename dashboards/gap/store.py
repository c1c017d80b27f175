"""The gap kept: a snapshot a minute, sums of them a quarter of an hour and an hour."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from zlib import decompress

import numpy as np
from django.db import transaction
from django.db.models import Q

from dashboards.gap.causes import Cause, Part, Piece, summed
from dashboards.gap.models import GapNewest, GapPart, GapRollup
from dashboards.gap.snapshot import pieces_now
from dashboards.telemetry.frames import minute_of
from dashboards.telemetry.packing import ids_packed, ids_read, sums_packed, sums_read
from dashboards.telemetry.spans import HOUR, QUARTER, SPANS, slots_due, span_begin, steps_between
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.times import Seconds

MINUTE = 60


@dataclass(frozen=True, slots=True)
class Gap:
    """Sums of `snapshots` snapshots by part, in milli-GPU."""

    snapshots: int = 0
    sums: Mapping[Part, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.sums.values())


def gap_turn(*, now: datetime) -> bool:
    """Keep the gap of this minute, unless that has been done, and sum up what is over. A console that was stopped has no snapshots of that time."""
    minute = minute_of(now)
    if GapRollup.objects.filter(span=MINUTE, at=minute).exists():
        return False
    pieces = pieces_now(now=now)
    if not pieces:
        return False
    with transaction.atomic():
        gaps_write(MINUTE, {minute: Gap(1, summed(pieces))})
        _pieces_write(minute, pieces)
        feed_publish(changes={"gap": [{"id": 1}]})
    spans_sum(now=now)
    return True


def gaps_write(span: int, gaps: Mapping[datetime, Gap]) -> None:
    """One row a period; one that is there stays: the first snapshot of a minute counts."""
    keys = _keys({part for gap in gaps.values() for part in gap.sums})
    rows = []
    for at, gap in gaps.items():
        counted = sorted((keys[part], milli) for part, milli in gap.sums.items() if milli)
        ids, sums = np.array(counted, np.int64).reshape(-1, 2).T
        rows.append(GapRollup(span=span, at=at, minutes=gap.snapshots, part_ids=ids_packed(ids.astype(np.uint32)), sums=sums_packed(sums)))
    GapRollup.objects.bulk_create(rows, ignore_conflicts=True, batch_size=500)


def _pieces_write(at: datetime, pieces: Sequence[Piece]) -> None:
    """Those of the first snapshot of the newest minute, as its sums are: what another turn wrote meanwhile or of a later minute stays."""
    newest = GapNewest.objects.select_for_update().filter(pk=1).first()
    if newest is not None and newest.at >= at:
        return
    keys = _keys({piece.part for piece in pieces})
    rows = [(keys[piece.part], piece.gpu, piece.job or 0, piece.milli) for piece in pieces]
    GapNewest.objects.update_or_create(pk=1, defaults={"at": at, "pieces": sums_packed(*np.array(rows, np.int64).T)})


def _keys(parts: Iterable[Part]) -> dict[Part, int]:
    wanted = set(parts)
    known = parts_known()
    found = {part: key for key, part in known.items()}
    if missing := sorted(wanted - found.keys(), key=repr):
        GapPart.objects.bulk_create(
            [GapPart(cause=one.cause, gpu_type=one.gpu_type, pool=one.pool, job_class=one.job_class, quota_id=one.quota) for one in missing],
            ignore_conflicts=True,
        )
        found = {part: key for key, part in parts_known().items()}
    return found


def parts_known() -> dict[int, Part]:
    rows = GapPart.objects.values_list("pk", "cause", "gpu_type", "pool", "job_class", "quota_id")
    return {key: Part(Cause(cause), gpu_type, pool, job_class, quota) for key, cause, gpu_type, pool, job_class, quota in rows}


def spans_sum(*, now: datetime) -> int:
    """Sum up every quarter and hour of the last two days that is over and not there yet."""
    due = slots_due(GapRollup.objects.all(), now=now)
    for span, at in due:
        rows = GapRollup.objects.filter(span=MINUTE, at__gte=at, at__lt=at + timedelta(seconds=span))
        ids, sums, count = _added(rows.values_list("minutes", "part_ids", "sums"))
        row = GapRollup(span=span, at=at, minutes=count, part_ids=ids_packed(ids.astype(np.uint32)), sums=sums_packed(sums))
        GapRollup.objects.bulk_create([row], ignore_conflicts=True)
    return len(due)


Whole = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Packed = bytes | memoryview


def _tables(rows: Iterable[tuple[int, int, Packed, Packed]]) -> Iterator[tuple[Whole, Whole, Whole, Whole]]:
    """Rows of the same parts, as most of a time are, as one table: keys of the parts, then of each row its number, its snapshots and its sums.

    A month is thousands of rows: what is worked out for each row by itself is what a page costs.
    """
    found: dict[bytes, list[tuple[int, int, bytes]]] = defaultdict(list)
    for number, minutes, ids, sums in rows:
        found[bytes(ids)].append((number, minutes, decompress(sums)))
    for packed, group in found.items():
        facts = np.array([(number, minutes) for number, minutes, _ in group], np.int64).T
        table = np.frombuffer(b"".join(columns for *_, columns in group), "<u8").astype(np.int64).reshape(len(group), -1)
        yield ids_read(packed).astype(np.int64), facts[0], facts[1], table


def _added(rows: Iterable[tuple[int, Packed, Packed]]) -> tuple[Whole, Whole, int]:
    """Keys, sums and snapshots of all these rows together."""
    tables = list(_tables((0, *row) for row in rows))
    total = np.zeros(max((int(ids.max(initial=0)) for ids, *_ in tables), default=0) + 1, np.int64)
    for ids, _, _, table in tables:
        total[ids] += table.sum(axis=0)
    keys = np.flatnonzero(total)
    return keys, total[keys], sum(int(minutes.sum()) for _, _, minutes, _ in tables)


# ---- Read ----


def gap_newest() -> tuple[datetime, Gap] | None:
    """The newest snapshot, and its moment."""
    row = GapRollup.objects.filter(span=MINUTE).order_by("-at").values_list("at", "minutes", "part_ids", "sums").first()
    if row is None:
        return None
    keys, sums, count = _added([row[1:]])
    known = parts_known()
    return row[0], Gap(count, {known[key]: milli for key, milli in zip(keys.tolist(), sums.tolist(), strict=True)})


def pieces_newest() -> tuple[datetime, list[Piece]] | None:
    """The newest snapshot GPU by GPU, and its moment."""
    row = GapNewest.objects.filter(pk=1).first()
    if row is None:
        return None
    known = parts_known()
    return row.at, [Piece(known[part], gpu, job or None, milli) for part, gpu, job, milli in sums_read(row.pieces, 4).T.tolist()]


def gap_between(start: datetime, end: datetime, *, span: int) -> Gap:
    """All snapshots of a time, added up from a grain."""
    return _gap_of(Q(span=span, at__gte=start, at__lt=end))


def gap_over(start: datetime, end: datetime) -> Gap:
    """The same from whole hours, of which there are fewer, and from quarters of an hour before the first and after the last of them."""
    first, last = span_begin(start - timedelta(milliseconds=1), HOUR) + timedelta(seconds=HOUR), span_begin(end, HOUR)
    if first >= last:
        return gap_between(start, end, span=QUARTER)
    ends = Q(at__gte=start, at__lt=first) | Q(at__gte=last, at__lt=end)
    return _gap_of(Q(span=HOUR, at__gte=first, at__lt=last) | (Q(span=QUARTER) & ends))


def _gap_of(wanted: Q) -> Gap:
    keys, sums, count = _added(GapRollup.objects.filter(wanted).values_list("minutes", "part_ids", "sums"))
    known = parts_known()
    return Gap(count, {known[key]: milli for key, milli in zip(keys.tolist(), sums.tolist(), strict=True)})


class Step(NamedTuple):
    """One step of a course: milli-GPU by cause, on average; None where there is no snapshot."""

    at: datetime
    causes: Mapping[Cause, float] | None


def gap_course(
    start: datetime, end: datetime, *, step: timedelta, span: int, gpu_type: str = "", quotas: Collection[int] | None = None
) -> list[Step]:
    """The causes over equal steps, from rows of a grain that is no coarser than a step; of one GPU type, or of some nodes of the tree."""
    known = parts_known()
    order = list(Cause)
    size = max(known, default=0) + 1
    cause_of = np.full(size, -1, np.int64)
    for key, part in known.items():
        if (not gpu_type or part.gpu_type == gpu_type) and (quotas is None or part.quota in quotas):
            cause_of[key] = order.index(part.cause)
    steps = steps_between(start, end, step)
    totals, counts = np.zeros((steps, len(order))), np.zeros(steps)
    rows = GapRollup.objects.filter(span=span, at__gte=start, at__lt=end)
    begin, seconds = int(start.timestamp()), int(step.total_seconds())
    for ids, moments, minutes, table in _tables(rows.values_list(Seconds("at"), "minutes", "part_ids", "sums")):
        places = (moments - begin) // seconds
        causes = cause_of[ids]
        of_cause = (causes[:, None] == np.arange(len(order))).astype(float)  # sums are far below 2**53
        np.add.at(counts, places, minutes)
        np.add.at(totals, places, table @ of_cause)
    return [
        Step(start + number * step, dict(zip(order, (totals[number] / counts[number]).tolist(), strict=True)) if counts[number] else None)
        for number in range(steps)
    ]


@dataclass(frozen=True, slots=True)
class Hours:
    """Milli-GPU on average of each hour, by cause and GPU type: `milli[hour, cause, type]`. NaN where an hour has no snapshot, which `there` says."""

    types: Sequence[str]
    milli: Floats
    there: Sequence[bool]

    def by_type(self, *causes: Cause) -> Floats:
        """The sum of some causes: a row an hour, a column a type."""
        order = list(Cause)
        return self.milli[:, [order.index(cause) for cause in causes], :].sum(axis=1)

    def of(self, *causes: Cause) -> Floats:
        return self.by_type(*causes).sum(axis=1)


def gap_hours(start: datetime, end: datetime) -> Hours:
    """From a full hour to a full hour, in two queries."""
    known, order, hour = parts_known(), list(Cause), timedelta(hours=1)
    types = sorted({part.gpu_type for part in known.values()})
    place = np.zeros(max(known, default=0) + 1, np.int64)
    for key, part in known.items():
        place[key] = order.index(part.cause) * len(types) + types.index(part.gpu_type)
    size = len(order) * len(types)
    found = np.full((max(0, (end - start) // hour), size), np.nan)
    there = [False] * len(found)
    rows = GapRollup.objects.filter(span=HOUR, at__gte=start, at__lt=end).values_list("at", "minutes", "part_ids", "sums")
    for at, minutes, ids, sums in rows:
        there[(at - start) // hour] = True
        found[(at - start) // hour] = np.bincount(place[ids_read(ids).astype(np.int64)], sums_read(sums, 1)[0], size) / minutes
    return Hours(types, found.reshape(len(found), len(order), len(types)), there)


def span_for(step: timedelta) -> int:
    """The coarsest grain within a step."""
    return max(span for span in (MINUTE, *SPANS) if span <= step.total_seconds())

"""Windows of approved reservations as the engine's; `scheduler.simulation.calendar` says what it is told of them when."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Q

from gpufleet.core.prepared import Prepared, Question
from gpufleet.core.times import millis
from quotas.models import Idle, Shape
from quotas.models import Window as WindowRow
from scheduler.engine.model.plan import Waiting
from scheduler.engine.model.reasons import reason
from scheduler.engine.model.values import CLASS_RANK, Window
from scheduler.simulation.calendar import Promised, in_order, parts

MOST_NODES = 32  # of one reservation: each is a window of its own to the engine
_COLUMNS = (
    "reservation__public_id",
    "starts_at",
    "ends_at",
    "reservation__quota__path",
    "reservation__job_class",
    "reservation__gpu_type",
    "reservation__shape",
    "reservation__gpus_milli",
    "reservation__nodes",
    "reservation__level",
    "reservation__notice_s",
    "reservation__lead_s",
    "reservation__idle",
    "reservation__name",
)
ASKED: Prepared[tuple[Any, ...]] = Prepared(
    lambda now, until: (
        WindowRow.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now), starts_at__lt=until, released_at__isnull=True)
        .order_by("starts_at", "id")
        .values_list(*_COLUMNS)
    )
)


class Kept(NamedTuple):
    """A window as the calendar has it."""

    reservation: str
    starts_at: datetime
    ends_at: datetime | None
    path: str | None
    job_class: str
    gpu_type: str
    shape: str
    milli: int
    nodes: int | None
    level: str
    notice_s: int
    lead_s: int
    idle: str
    title: str

    @property
    def name(self) -> str:
        return f"{self.reservation}@{self.starts_at:%Y%m%dT%H%MZ}"

    def lasts_at(self, moment: datetime) -> bool:
        return self.starts_at <= moment and (self.ends_at is None or moment < self.ends_at)


def windows_asked(now: datetime, horizon_ms: int) -> Question:
    return ASKED.asking(now, now + timedelta(milliseconds=horizon_ms))


@dataclass(frozen=True, slots=True)
class WindowsView:
    """What is told to the engine, and what its words about it mean."""

    kept: tuple[Kept, ...] = ()
    windows: tuple[Window, ...] = ()

    @classmethod
    def of(
        cls, rows: Iterable[Sequence[Any]], *, paths: Collection[str], types: Collection[str], levels: Collection[str], now: datetime
    ) -> "WindowsView":
        """What is of a node, a GPU type or a level that there is no more holds nothing."""
        asked = (Kept(*row) for row in rows)
        kept = tuple(
            one
            for one in asked
            if (one.path is None or one.path in paths) and one.gpu_type in types and (one.shape != Shape.BLOCK or one.level in levels)
        )
        return cls(kept, in_order(window for one in kept for window in parts_of(one, millis(now))))

    def told(self, waiting: Sequence[Waiting]) -> Sequence[Waiting]:
        """What a plan says of those who wait, by the calendar: the parts of a window are one, and nobody starts because one part follows another."""
        if not self.windows:
            return waiting
        by_name = {one.name: one for one in self.kept}
        held = {window.start: by_name[window.name.partition("/")[0]] for window in self.windows if "/rest" in window.name}
        return [self._told(one, by_name, held) for one in waiting]

    def _told(self, one: Waiting, by_name: dict[str, Kept], held: dict[int, Kept]) -> Waiting:
        reasons = tuple(_reason(each.as_json(), by_name) or each for each in one.reasons)
        starts = one.predicted_start
        if starts in held and any(each.code == "window" for each in one.reasons):
            end = held[starts].ends_at
            starts = None if end is None else millis(end)
        return one if reasons == one.reasons and starts == one.predicted_start else one._replace(reasons=reasons, predicted_start=starts)


def _reason(said: dict[str, Any], by_name: dict[str, Kept]) -> Any:
    if said.get("code") != "window" or "window" not in said:
        return None
    name, _, part = str(said["window"]).partition("/")
    kept = by_name.get(name)
    if kept is None:
        return None
    facts = {"window": kept.reservation, "start": said["start"], "kept": said["kept"]}
    count = f"{kept.milli / 1000:g} {kept.gpu_type} GPUs"
    if part.startswith("rest"):
        until = f"until {kept.ends_at:%Y-%m-%d %H:%M} UTC" if kept.ends_at is not None else "without an end"
        detail = f"{kept.reservation} ({kept.title}) keeps {count} idle for its owner {until}"
    else:
        detail = (
            f"{kept.reservation} ({kept.title}) starts at {kept.starts_at:%Y-%m-%d %H:%M} UTC and keeps {count}; this job might not leave in time"
        )
    return reason("window", detail, **facts)


def parts_of(one: Kept, now: int) -> Iterable[Window]:
    return parts(promised(one), now)


def promised(one: Kept) -> Promised:
    """As it is told to a simulation."""
    return Promised(
        name=one.name,
        quota=one.path,
        class_rank=CLASS_RANK[one.job_class] if one.path is None else None,
        gpus=one.milli,
        gpu_type=one.gpu_type,
        level=one.level if one.shape == Shape.BLOCK else None,
        nodes=one.nodes if one.shape == Shape.NODES else None,
        start=millis(one.starts_at),
        end=None if one.ends_at is None else millis(one.ends_at),
        notice_ms=1000 * one.notice_s,
        lead_ms=1000 * one.lead_s,
        held=one.idle != Idle.LENT,
    )


def windows_of_span(begin: datetime, end: datetime, *, paths: Mapping[int, str], types: Collection[str], levels: Collection[str]) -> list[Promised]:
    """What the calendar had from one moment to another, as it came about: ended early, or released when nobody had claimed it."""
    rows = WindowRow.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=begin), starts_at__lt=end)
    rows = rows.filter(Q(released_at__isnull=True) | Q(released_at__gt=begin)).order_by("starts_at", "id")
    found = []
    for released, decided, quota, *columns in rows.values_list("released_at", "reservation__decided_at", "reservation__quota_id", *_COLUMNS):
        kept = Kept(*columns)
        if kept.gpu_type not in types or (kept.shape == Shape.BLOCK and kept.level not in levels) or (quota is not None and quota not in paths):
            continue
        # Changed and approved again, it is of its last approval; what was over by then had an earlier one.
        known = 0 if decided is None or (kept.ends_at is not None and kept.ends_at <= decided) else millis(decided)
        if released is not None:
            kept = kept._replace(ends_at=released if kept.ends_at is None else min(released, kept.ends_at))
        found.append(promised(kept._replace(path=None if quota is None else paths[quota]))._replace(known=known))
    return found


def next_turn(windows: WindowsView, now: datetime) -> datetime | None:
    """When the next window comes into its lead: a plan keeps off what would be in its way from then on."""
    leads = (one.starts_at - timedelta(seconds=max(one.lead_s, one.notice_s)) for one in windows.kept)
    return min((at.astimezone(UTC) for at in leads if at > now), default=None)

"""Windows of approved reservations as the engine's: what is promised when, and what must be kept clear.

The engine keeps jobs out of the way of windows to come, and lends what a window that lasts does not use. Two things are said to it here by what it
knows. In the lead of a window, nothing is evictable in time any more, so its notice is none. And of a window that keeps its GPUs idle for the owner,
the part behind the next few minutes is a window to come of its own: what could still run by then does not start. `TURN` is how long such a part is.
"""

from collections.abc import Collection, Iterable, Sequence
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

TURN_MS = 300_000
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
        windows = sorted((window for one in kept for window in parts_of(one, millis(now))), key=lambda window: (window.start, window.name))
        return cls(kept, tuple(windows))

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
    start, end = millis(one.starts_at), None if one.ends_at is None else millis(one.ends_at)
    if start > now:
        notice = 0 if now >= start - 1000 * max(one.lead_s, one.notice_s) else 1000 * one.notice_s
        yield from _windows(one, start, end, notice, "")
        return
    # The end of the next part but one, so that a plan is made anew once a turn and never for a moment only.
    turn = (now // TURN_MS + 2) * TURN_MS
    if one.idle == Idle.LENT or (end is not None and end <= turn):
        yield from _windows(one, start, end, 1000 * one.notice_s, "")
        return
    yield from _windows(one, start, turn, 0, "")
    yield from _windows(one, turn, end, 0, "/rest")


def _windows(one: Kept, start: int, end: int | None, notice_ms: int, mark: str) -> Iterable[Window]:
    """A window of whole nodes is one for each node, as the engine knows them in a block or on all of a type."""
    rank = CLASS_RANK[one.job_class] if one.path is None else None
    if one.shape == Shape.NODES and one.nodes:
        each = one.milli // one.nodes
        for number in range(one.nodes):
            yield Window(f"{one.name}{mark}/{number}", one.path, rank, each, one.gpu_type, "node", start, end, notice_ms, None)
        return
    level = one.level if one.shape == Shape.BLOCK else None
    yield Window(f"{one.name}{mark}", one.path, rank, one.milli, one.gpu_type, level, start, end, notice_ms, None)


def next_turn(windows: WindowsView, now: datetime) -> datetime | None:
    """When the next window comes into its lead: a plan keeps off what would be in its way from then on."""
    leads = (one.starts_at - timedelta(seconds=max(one.lead_s, one.notice_s)) for one in windows.kept)
    return min((at.astimezone(UTC) for at in leads if at > now), default=None)

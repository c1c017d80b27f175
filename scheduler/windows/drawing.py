"""Where windows stand in the pictures of the calendar: a week by hours, and a fortnight by GPU type. Numbers in, numbers out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from quotas.models import Window

DAYS, HOUR_HEIGHT, DAY_WIDTH, GUTTER, HEAD = 7, 28, 140, 48, 26
TIMELINE_DAYS, TIMELINE_WIDTH, LANE, LABEL = 14, 980, 24, 150
SHORTEST = 16
LETTER = 6.4


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle with a window's name in it, as far as that fits."""

    window: Window
    x: float
    y: float
    width: float
    height: float
    state: str
    text: str
    under: str
    movable: bool

    @property
    def text_y(self) -> float:
        return self.y + 13

    @property
    def under_y(self) -> float:
        return self.y + 26

    @property
    def text_x(self) -> float:
        return self.x + 5


@dataclass(frozen=True, slots=True)
class Day:
    """`date` is by the calendar's own clock, without a zone: pages write it as it is."""

    date: datetime
    x: float
    is_today: bool


@dataclass(frozen=True, slots=True)
class Week:
    days: tuple[Day, ...]
    hours: tuple[tuple[int, float], ...]
    boxes: tuple[Box, ...]
    standing: tuple[Window, ...]
    now_x: float | None
    now_y: float | None
    width: int
    height: int
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU type with its windows in lanes."""

    gpu_type: str
    y: float
    height: float
    boxes: tuple[Box, ...]
    capacity: int
    peak: int

    @property
    def label_y(self) -> float:
        return self.y + 16

    @property
    def note_y(self) -> float:
        return self.y + 32


@dataclass(frozen=True, slots=True)
class Timeline:
    rows: tuple[Row, ...]
    days: tuple[Day, ...]
    now_x: float | None
    width: int
    height: int


def week_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """The Monday midnight before a moment, by the clock of a zone."""
    local = moment.astimezone(zone)
    monday = local.date() - timedelta(days=local.weekday())
    return datetime(monday.year, monday.month, monday.day, tzinfo=zone)


def day_at(start: datetime, number: int) -> datetime:
    """So many days later by the wall clock."""
    return (start.replace(tzinfo=None) + timedelta(days=number)).replace(tzinfo=start.tzinfo)


def fitted(text: str, width: float) -> str:
    most = max(0, int((width - 8) / LETTER))
    return text if len(text) <= most else f"{text[: most - 1]}…" if most > 2 else ""


def week_drawn(windows: Sequence[Window], start: datetime, now: datetime, movable: set[int]) -> Week:
    zone = start.tzinfo
    days = [day_at(start, number) for number in range(DAYS + 1)]
    boxes: list[Box] = []
    for number in range(DAYS):
        pieces = []
        for window in windows:
            piece = _in_day(window, days[number], days[number + 1])
            if piece is not None and window.ends_at is not None:
                pieces.append((window, *piece))
        for (window, top, bottom), lane, lanes in _lanes(pieces):
            width = (DAY_WIDTH - 6) / lanes
            y, height = HEAD + HOUR_HEIGHT * top, max(SHORTEST, HOUR_HEIGHT * (bottom - top) - 1)
            x = GUTTER + number * DAY_WIDTH + lane * width + 1
            boxes.append(_box(window, x, y, width - 2, height, now, movable))
    here = now.astimezone(zone)
    today = next((number for number in range(DAYS) if days[number] <= here < days[number + 1]), None)
    drawn = tuple(Day(days[number].replace(tzinfo=None), GUTTER + number * DAY_WIDTH, number == today) for number in range(DAYS))
    return Week(
        days=drawn,
        hours=tuple((hour, HEAD + HOUR_HEIGHT * hour) for hour in range(25)),
        boxes=tuple(boxes),
        standing=tuple(window for window in windows if window.ends_at is None),
        now_x=None if today is None else GUTTER + today * DAY_WIDTH,
        now_y=None if today is None else HEAD + HOUR_HEIGHT * (here.hour + here.minute / 60),
        width=GUTTER + DAYS * DAY_WIDTH,
        height=HEAD + 24 * HOUR_HEIGHT + 2,
        start=days[0].replace(tzinfo=None),
        end=days[DAYS].replace(tzinfo=None),
    )


def _in_day(window: Window, begin: datetime, end: datetime) -> tuple[float, float] | None:
    """From which hour to which it lasts on a day, by the wall clock."""
    stop = window.released_at or window.ends_at or end
    if window.starts_at >= end or stop <= begin:
        return None
    top = 0.0 if window.starts_at <= begin else _hours(window.starts_at, begin)
    bottom = 24.0 if stop >= end else _hours(stop, begin)
    return (top, bottom) if bottom > top else (top, min(24.0, top + 0.5))


def _hours(moment: datetime, day: datetime) -> float:
    local = moment.astimezone(day.tzinfo)
    return local.hour + local.minute / 60 + local.second / 3600


def _lanes(pieces: Iterable[tuple[Window, float, float]]) -> list[tuple[tuple[Window, float, float], int, int]]:
    """Side by side where they meet: each with its lane, and with how many lanes its group has."""
    found: list[tuple[tuple[Window, float, float], int, int]] = []
    group: list[tuple[tuple[Window, float, float], int]] = []
    ends: list[float] = []
    reach = -1.0

    def close() -> None:
        found.extend((piece, lane, len(ends)) for piece, lane in group)

    for piece in sorted(pieces, key=lambda one: (one[1], -one[2], one[0].pk)):
        _, top, bottom = piece
        if group and top >= reach:
            close()
            group, ends = [], []
        lane = next((number for number, end in enumerate(ends) if end <= top), len(ends))
        if lane == len(ends):
            ends.append(bottom)
        else:
            ends[lane] = bottom
        group.append((piece, lane))
        reach = max(reach, bottom) if len(group) > 1 else bottom
    close()
    return found


def _box(window: Window, x: float, y: float, width: float, height: float, now: datetime, movable: set[int]) -> Box:
    reservation = window.reservation
    gpus = f"{reservation.gpus_milli / 1000:g}"
    text = fitted(f"{gpus} {reservation.name}", width)
    if len(text) < len(gpus) + len(" ab…"):  # nothing of the name can be read
        text = fitted(gpus, width)
    under = f"{reservation.owner_label}" if height >= 2 * SHORTEST else ""
    can = window.reservation_id in movable and not reservation.rule and window.starts_at > now
    return Box(window, round(x, 1), round(y, 1), round(width, 1), round(height, 1), window.state_at(now), text, fitted(under, width), can)


def timeline_drawn(
    windows: Sequence[Window], start: datetime, now: datetime, capacity: dict[str, int], peaks: dict[str, int], movable: set[int]
) -> Timeline:
    days = [day_at(start, number) for number in range(TIMELINE_DAYS + 1)]
    begin, length = days[0], (days[-1] - days[0]).total_seconds()

    def at(moment: datetime) -> float:
        part = (moment - begin).total_seconds() / length
        return LABEL + (TIMELINE_WIDTH - LABEL) * min(1.0, max(0.0, part))

    rows, y = [], float(HEAD)
    for gpu_type in sorted({*capacity, *(window.reservation.gpu_type for window in windows)}):
        mine = [window for window in windows if window.reservation.gpu_type == gpu_type]
        pieces = [(window, at(window.starts_at), at(window.released_at or window.ends_at or days[-1])) for window in mine]
        laid = _lanes(pieces)
        lanes = max((lane + 1 for _, lane, _ in laid), default=1)
        boxes = tuple(
            _box(window, left, y + lane * LANE + 4, max(4.0, right - left - 1), LANE - 4, now, movable) for (window, left, right), lane, _ in laid
        )
        height = max(40, lanes * LANE + 8)
        rows.append(Row(gpu_type, y, height, boxes, capacity.get(gpu_type, 0), peaks.get(gpu_type, 0)))
        y += height
    marks = tuple(Day(days[number].replace(tzinfo=None), at(days[number]), days[number] <= now < days[number + 1]) for number in range(TIMELINE_DAYS))
    return Timeline(tuple(rows), marks, at(now) if begin <= now < days[-1] else None, TIMELINE_WIDTH, int(y) + 4)

"""Windows of a calendar, and power caps, as the engine is told of them at an instant: what is promised when, and what must be kept clear.

The engine keeps jobs out of the way of windows to come, and lends what a window that lasts does not use. Two things are said to it here by what is
known. In the lead of a window, nothing is evictable in time any more, so its notice is none. And of a window that keeps its GPUs idle for the owner,
the part behind the next few minutes (`TURN_MS`) is a window to come of its own: what could still run by then does not start.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler.engine.model.values import PowerCap, Window

TURN_MS = 300_000


class Promised(NamedTuple):
    """A window as the calendar has it."""

    name: str
    quota: str | None
    class_rank: int | None
    gpus: int
    gpu_type: str
    level: str | None
    nodes: int | None  # whole ones: each is a window of its own to the engine
    start: int
    end: int | None
    notice_ms: int
    lead_ms: int
    held: bool  # what is not used is kept idle for the owner
    known: int = 0  # since when it is in the calendar


def windows_at(calendar: Iterable[Promised], now: int, horizon_ms: int) -> tuple[Window, ...]:
    """What is known at an instant, lasts or comes within the horizon, in the engine's order."""
    near = (one for one in calendar if one.known <= now and one.start < now + horizon_ms and (one.end is None or one.end > now))
    return in_order(part for one in near for part in parts(one, now))


def in_order(windows: Iterable[Window]) -> tuple[Window, ...]:
    return tuple(sorted(windows, key=lambda window: (window.start, window.name)))


def parts(one: Promised, now: int) -> Sequence[Window]:
    if one.start > now:
        return _windows(one, one.start, one.end, 0 if now >= one.start - max(one.lead_ms, one.notice_ms) else one.notice_ms, "")
    # The end of the next part but one, so that a plan is made anew once a turn and never for a moment only.
    turn = (now // TURN_MS + 2) * TURN_MS
    if not one.held or (one.end is not None and one.end <= turn):
        return _windows(one, one.start, one.end, one.notice_ms, "")
    return [*_windows(one, one.start, turn, 0, ""), *_windows(one, turn, one.end, 0, "/rest")]


def _windows(one: Promised, start: int, end: int | None, notice_ms: int, mark: str) -> list[Window]:
    """A window of whole nodes is one for each node, as the engine knows them in a block or on all of a type."""
    if one.nodes:
        return [
            Window(f"{one.name}{mark}/{number}", one.quota, one.class_rank, one.gpus // one.nodes, one.gpu_type, "node", start, end, notice_ms, None)
            for number in range(one.nodes)
        ]
    return [Window(f"{one.name}{mark}", one.quota, one.class_rank, one.gpus, one.gpu_type, one.level, start, end, notice_ms, None)]


class Capped(NamedTuple):
    """A power cap at one of its times, as it was written between two instants."""

    pool: str | None  # None: the whole fleet
    watts: int
    start: int
    end: int | None
    known: int
    gone: int | None  # when it was changed or removed

    @property
    def turns(self) -> tuple[int, ...]:
        """When it changes what is allowed, or what is known of that."""
        return tuple(turn for turn in (self.start, self.end, self.known, self.gone) if turn is not None)


def caps_at(caps: Iterable[Capped], now: int) -> tuple[PowerCap, ...]:
    """What is known at an instant, and lasts or is to come, in the engine's order."""
    there = (one for one in caps if one.known <= now and (one.gone is None or one.gone > now) and (one.end is None or one.end > now))
    return in_cap_order(PowerCap(*one[:4]) for one in there)


def in_cap_order(caps: Iterable[PowerCap]) -> tuple[PowerCap, ...]:
    return tuple(sorted(caps, key=lambda one: (one.start, one.pool or "", one.watts, one.end or 0)))

"""When an alert fires and when it is over. No clock and no database: the state and a value in, the next state out.

A rule fires after its figure was beyond the limit for the whole of its window, and is over after it was within `clear_at` for as long: a figure that
swings around the limit neither fires again and again nor ends.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Limits:
    threshold: float
    clear_at: float
    window: timedelta
    higher_is_worse: bool = True

    def beyond(self, value: float) -> bool:
        return value >= self.threshold if self.higher_is_worse else value <= self.threshold

    def within(self, value: float) -> bool:
        return value < self.clear_at if self.higher_is_worse else value > self.clear_at

    def worse(self, one: float, other: float) -> float:
        return max(one, other) if self.higher_is_worse else min(one, other)


@dataclass(frozen=True, slots=True)
class State:
    """`pending` until it fires; `resolved` is the end."""

    state: str
    since: datetime
    value: float
    worst: float
    calm_since: datetime | None = None


def begun(limits: Limits, value: float, now: datetime) -> State | None:
    """A state for a figure that is beyond the limit; None for others."""
    if not limits.beyond(value):
        return None
    return State("firing" if not limits.window else "pending", now, value, value)


def gone_on(state: State, limits: Limits, value: float | None, now: datetime) -> State:
    """The state after another look. Without a value nothing is known, and nothing changes."""
    if value is None:
        return state
    if state.state == "pending":
        if not limits.beyond(value):
            return replace(state, state="resolved", value=value)
        worst = limits.worse(state.worst, value)
        return replace(state, state="firing" if now - state.since >= limits.window else "pending", value=value, worst=worst)
    if not limits.within(value):
        return replace(state, value=value, worst=limits.worse(state.worst, value), calm_since=None)
    calm = state.calm_since or now
    return replace(state, state="resolved" if now - calm >= limits.window else "firing", value=value, calm_since=calm)

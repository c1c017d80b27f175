"""Submission rates: a bucket that holds the jobs of ten minutes and fills again at its rate. Values in, values out; instants are microseconds.

What is kept of a bucket is one instant, at which it is full again. A submission passes as a whole: if the bucket holds all of its jobs, or, where
that is more than it can ever hold, once it is full. Then it owes the rest, so that nothing is refused for good and the rate holds all the same.
"""

from datetime import UTC, datetime, timedelta

BURST_MINUTES = 10
BURST_US = BURST_MINUTES * 60_000_000
_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def instant(moment: datetime) -> int:
    return (moment - _FIRST) // _MICROSECOND


def moment_of(instant_us: int) -> datetime:
    return _FIRST + instant_us * _MICROSECOND


def burst(per_minute: int) -> int:
    """How many jobs pass at once after a quiet time."""
    return BURST_MINUTES * per_minute


def opens_at(full_at_us: int, count: int, per_minute: int) -> int:
    """From when on so many jobs pass."""
    return full_at_us - BURST_US + min(_cost(count, per_minute), BURST_US)


def full_after(full_at_us: int, count: int, per_minute: int, now_us: int) -> int:
    """When it is full again, once so many jobs have passed."""
    return max(full_at_us, now_us) + _cost(count, per_minute)


def room(full_at_us: int, per_minute: int, now_us: int) -> int:
    """How many jobs it holds."""
    return max(0, now_us + BURST_US - max(full_at_us, now_us)) * per_minute // 60_000_000


def _cost(count: int, per_minute: int) -> int:
    """Rounded up, so that no rate is exceeded."""
    return -(-count * 60_000_000 // per_minute)

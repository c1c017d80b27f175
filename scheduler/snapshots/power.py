"""Power caps of the console as the engine's: what recurs is written out so far ahead that every start which is planned meets what follows it."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db.models import Q

from gpufleet.core.prepared import Prepared
from gpufleet.core.recurrence import Times
from gpufleet.core.times import millis
from scheduler.engine.model.values import NO_POWER, PowerCap, PowerCaps
from scheduler.models import GpuType
from scheduler.models import PowerCap as CapRow
from scheduler.power.ratings import rated_watts

# Behind the last start that the engine considers: a rule comes again within a week, mostly.
BEYOND = timedelta(days=8)


def in_force(now: datetime) -> Q:
    return Q(ends_at__isnull=True) | ~Q(rule="") | Q(ends_at__gt=now)


CAPS: Prepared[tuple[Any, ...]] = Prepared(
    lambda now: CapRow.objects.filter(in_force(now)).order_by("id").values_list("pool", "watts", "zone", "starts_at", "ends_at", "rule")
)
RATED: Prepared[tuple[Any, ...]] = Prepared(lambda: GpuType.objects.order_by("name").values_list("name", "rated_watts"))


class Cap(NamedTuple):
    """A cap as the console has it."""

    pool: str
    watts: int
    zone: str
    starts_at: datetime
    ends_at: datetime | None
    rule: str

    @property
    def times(self) -> Times:
        zone = ZoneInfo(self.zone)
        end = None if self.ends_at is None else self.ends_at.astimezone(zone).replace(tzinfo=None)
        return Times(self.zone, self.starts_at.astimezone(zone).replace(tzinfo=None), end, self.rule)


class Rows(NamedTuple):
    """What the caps of a moment are made from."""

    caps: tuple[Any, ...]
    rated: tuple[Any, ...]

    @classmethod
    def read(cls, now: datetime) -> "Rows":
        return cls(tuple(CAPS(now)), tuple(RATED()))


def power_caps(rows: Rows, types: Collection[str], *, now: datetime, horizon_ms: int) -> PowerCaps:
    """`types` are those of the fleet: each has its watts."""
    return written_out([Cap(*row) for row in rows.caps], dict(rows.rated), types, now=now, horizon_ms=horizon_ms)


def written_out(caps: Iterable[Cap], rated: dict[str, int | None], types: Collection[str], *, now: datetime, horizon_ms: int) -> PowerCaps:
    until = now + timedelta(milliseconds=horizon_ms) + BEYOND
    found = [
        PowerCap(cap.pool or None, cap.watts, millis(start), None if end is None else millis(end))
        for cap in caps
        for start, end in cap.times.between(now.astimezone(UTC), until)
    ]
    if not found:
        return NO_POWER
    watts = tuple((name, rated_watts(name, rated.get(name))) for name in sorted(types))
    return PowerCaps(watts, tuple(sorted(found, key=lambda one: (one.start, one.pool or "", one.watts, one.end or 0))))

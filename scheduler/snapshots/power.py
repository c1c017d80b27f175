"""Power caps of the console as the engine's: what recurs is written out so far ahead that every start which is planned meets what follows it."""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db.models import Q

from gpufleet.core.models import AuditEntry
from gpufleet.core.prepared import Prepared
from gpufleet.core.recurrence import Times
from gpufleet.core.times import millis
from scheduler.engine.model.values import NO_POWER, PowerCap, PowerCaps
from scheduler.models import GpuType
from scheduler.models import PowerCap as CapRow
from scheduler.power.ratings import rated_watts
from scheduler.simulation.calendar import Capped, in_cap_order

# Behind the last start that the engine considers: a rule comes again within a week, mostly.
BEYOND = timedelta(days=8)


def in_force(now: datetime) -> Q:
    return Q(ends_at__isnull=True) | ~Q(rule="") | Q(ends_at__gt=now)


COLUMNS = ("pool", "watts", "zone", "starts_at", "ends_at", "rule")
CAPS: Prepared[tuple[Any, ...]] = Prepared(lambda now: CapRow.objects.filter(in_force(now)).order_by("id").values_list(*COLUMNS))
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
    return PowerCaps(_watts(rated, types), in_cap_order(found)) if found else NO_POWER


def _watts(rated: Mapping[str, int | None], types: Collection[str]) -> tuple[tuple[str, int], ...]:
    return tuple((name, rated_watts(name, rated.get(name))) for name in sorted(types))


# Of the past


def caps_of_span(begin: datetime, now: datetime, types: Collection[str], *, horizon_ms: int) -> tuple[PowerCaps, list[Capped]]:
    """The watts of GPUs as rated today, and the caps since a moment, each from when it was set until it was changed or removed. Three queries."""
    until = now + timedelta(milliseconds=horizon_ms) + BEYOND
    found = [
        Capped(
            cap.pool or None, cap.watts, millis(start), None if end is None else millis(end), millis(known), None if gone is None else millis(gone)
        )
        for cap, known, gone in _written_since(begin, now)
        for start, end in cap.times.between(begin.astimezone(UTC), until)
    ]
    found.sort(key=lambda one: (one.start, one.pool or "", one.known, one.watts))
    return (PowerCaps(_watts(dict(RATED()), types)) if found else NO_POWER), found


def _written_since(begin: datetime, now: datetime) -> list[tuple[Cap, datetime, datetime | None]]:
    """Each cap that there was, from when and until when: what rows say now, and back from there what the audit log says it was before each write."""
    found: list[tuple[Cap, datetime, datetime | None]] = []
    facts: dict[str, Mapping[str, Any]] = {}
    since: dict[str, datetime] = {}
    for row in CapRow.objects.order_by("id").values("public_id", "created_at", *COLUMNS):
        facts[row["public_id"]], since[row["public_id"]] = row, max(begin, row["created_at"])
    until: dict[str, datetime] = {}
    entries = AuditEntry.objects.filter(object_kind="power_cap", at__gt=begin, at__lte=now).order_by("-id")
    for name, at, before, after in entries.values_list("object_id", "at", "before", "after"):
        if after is not None and name in facts:
            found.append((_cap_of(facts[name]), at, until.get(name)))
        until[name] = at
        if before is None:
            facts.pop(name, None)  # it was set then
        else:
            facts[name] = {**facts.get(name, {}), **before}  # of a change the log has what differed, of a removal all
    return found + [(_cap_of(known), since.get(name, begin), until.get(name)) for name, known in facts.items()]


def _cap_of(facts: Mapping[str, Any]) -> Cap:
    times = {name: datetime.fromisoformat(at) if isinstance(at := facts[name], str) else at for name in ("starts_at", "ends_at")}
    return Cap(**{name: facts[name] for name in COLUMNS} | times)

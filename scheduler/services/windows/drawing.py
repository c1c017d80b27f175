"""A reservation as it is asked for, with all that is wrong with it: by itself, and beside what is promised already. Nothing is written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Any

from gpufleet.core.recurrence import rule_fault
from gpufleet.core.zones import zone_fault
from quotas.models import Idle, Reservation, ReservationState, Shape
from quotas.permissions import Access, Can, nodes_visible
from quotas.rules import Faults, note, said
from scheduler.engine.model.values import CLASSES
from scheduler.selectors.windows import Capacity, bookings, capacity_now
from scheduler.snapshots.windows import MOST_NODES
from scheduler.windows.capacity import Shortage, nearest_series, nearest_start, shortages

NAME_LENGTH, PURPOSE_LENGTH = 80, 300
LONGEST = timedelta(days=366)
FURTHEST = timedelta(days=732)
MOST_NOTICE = 86_400
MOST_LEAD = 7 * 86_400
MOST_DECAY = 30 * 86_400
MOST_GPUS = 100_000
# So far ahead windows are compared with others, and so many of them.
CHECKED_AHEAD, CHECKED = timedelta(days=180), 200


@dataclass(frozen=True, slots=True)
class Drawn:
    """What it would be. `short` are its windows that do not fit, `nearest` when the first of them would."""

    reservation: Reservation
    faults: Faults
    capacity: int
    short: tuple[Shortage, ...] = ()
    nearest: datetime | None = None


def reservation_draw(*, access: Access, given: Mapping[str, Any], now: datetime, instead_of: Reservation | None = None) -> Drawn:
    """Every fault by its field. `instead_of` is one that is changed: what is not given stays as it is there."""
    found = instead_of or Reservation(state=ReservationState.REQUESTED, requested_at=now, requested_name=access.actor.name, name="", gpu_type="")
    capacity, faults = capacity_now(), Faults()
    if instead_of is None:
        _take_owner(found, access, given, faults)
    _take_words(found, given, faults)
    _take_amount(found, given, capacity, faults)
    _take_times(found, given, now, faults)
    _take_rules(found, given, faults)
    of_type = capacity.by_type.get(found.gpu_type, 0)
    if faults:
        return Drawn(found, faults, of_type)
    return _beside_others(found, capacity, now)


def _take_owner(found: Reservation, access: Access, given: Mapping[str, Any], faults: Faults) -> None:
    path, of_class = (given.get("quota") or "").strip("/"), given.get("job_class") or ""
    if bool(path) == bool(of_class):
        note(faults, "quota", "Name a team, or a class of jobs for a floor. One of the two.")
    elif of_class and of_class not in CLASSES:
        note(faults, "job_class", f"The classes are {', '.join(reversed(CLASSES))}.")
    elif path:
        found.quota = nodes_visible(access, Can.SEE).select_related("parent").filter(path=path).first()
        if found.quota is None:
            note(faults, "quota", f"There is no team {path[:80]}.")
    found.job_class = of_class


def _take_words(found: Reservation, given: Mapping[str, Any], faults: Faults) -> None:
    for field, most in (("name", NAME_LENGTH), ("purpose", PURPOSE_LENGTH)):
        if field in given:
            text = str(given[field]).strip()
            if len(text) > most:
                note(faults, field, f"Use at most {most} characters.")
            elif not all(letter.isprintable() for letter in text):
                note(faults, field, "Contains an invalid character.")
            setattr(found, field, text[:most])
    if not found.name:
        note(faults, "name", "Name is required.")


def _take_amount(found: Reservation, given: Mapping[str, Any], capacity: Capacity, faults: Faults) -> None:
    found.gpu_type = given.get("gpu_type", found.gpu_type)
    if found.gpu_type not in capacity.by_type:
        note(faults, "gpu_type", f"No healthy GPU is of this type. There are {', '.join(sorted(capacity.by_type)) or 'none'}.")
    if not {"gpus", "nodes", "level"} & given.keys() and found.gpus_milli:
        return
    gpus, nodes, level = given.get("gpus"), given.get("nodes"), given.get("level") or ""
    if (gpus is None) == (nodes is None):
        note(faults, "gpus", "State GPUs or whole nodes, one of the two.")
        return
    if nodes is not None:
        if level:
            note(faults, "level", "A block is stated in GPUs.")
        if not 1 <= nodes <= MOST_NODES:
            note(faults, "nodes", f"State 1 to {MOST_NODES} nodes.")
            return
        if nodes > (whole := capacity.whole_nodes.get(found.gpu_type, 0)) and not faults:
            note(faults, "nodes", f"{whole} nodes of this type have all of their GPUs healthy.")
        found.shape, found.nodes, found.level = Shape.NODES, nodes, ""
        found.gpus_milli = 1000 * nodes * capacity.node_size.get(found.gpu_type, 1)
        return
    assert gpus is not None
    if not 1 <= gpus <= MOST_GPUS:
        note(faults, "gpus", f"State 1 to {MOST_GPUS:,} GPUs.")
        return
    found.shape, found.nodes, found.level, found.gpus_milli = Shape.BLOCK if level else Shape.GPUS, None, level, 1000 * gpus
    if level and level not in capacity.levels:
        note(faults, "level", f"There is no such level. There are {', '.join(capacity.levels) or 'none'}.")
    elif level and (largest := capacity.blocks.get((found.gpu_type, level), 0)) < found.gpus_milli and not faults:
        note(faults, "gpus", f"The largest {level} has {said(largest)} healthy GPUs of this type.")


def _take_times(found: Reservation, given: Mapping[str, Any], now: datetime, faults: Faults) -> None:
    before = found.starts_at
    for field in ("starts_at", "ends_at", "rule", "zone"):
        if field in given:
            setattr(found, field, given[field])
    found.rule = (found.rule or "").strip().removeprefix("RRULE:").upper()
    if fault := zone_fault(found.zone):
        note(faults, "zone", fault)
    if found.starts_at is None:
        note(faults, "starts_at", "Start is required.")
    if faults or found.starts_at is None:
        return
    if found.starts_at > now + FURTHEST or (found.starts_at < now - LONGEST and found.starts_at != before):
        note(faults, "starts_at", "Start within two years from now.")
    if found.ends_at is not None:
        _length_faults(found, now, faults)
    if found.rule:
        _rule_faults(found, now, faults)


def _length_faults(found: Reservation, now: datetime, faults: Faults) -> None:
    assert found.ends_at is not None
    if found.ends_at <= found.starts_at:
        note(faults, "ends_at", "End after the start.")
    elif found.ends_at - found.starts_at > LONGEST:
        note(faults, "ends_at", "A window lasts at most 366 days. Leave the end empty for a standing one.")
    elif not found.rule and found.ends_at <= now:
        note(faults, "ends_at", "This is in the past.")


def _rule_faults(found: Reservation, now: datetime, faults: Faults) -> None:
    if found.ends_at is None:
        note(faults, "ends_at", "What recurs needs an end.")
    elif fault := rule_fault(found.rule, found.times.start):
        note(faults, "rule", fault)
    elif not faults:
        windows = list(islice(found.times.between(now, now + FURTHEST), CHECKED))
        if not windows:
            note(faults, "rule", "No window of it lies ahead.")
        if any(one is not None and one > start for (_, one), (start, _) in pairwise(windows)):
            note(faults, "rule", "Its windows would overlap: the next starts before one ends.")


def _take_rules(found: Reservation, given: Mapping[str, Any], faults: Faults) -> None:
    for field, most in (("notice_s", MOST_NOTICE), ("lead_s", MOST_LEAD)):
        value = given.get(field, getattr(found, field))
        if value is None or not 0 <= value <= most:
            note(faults, field, f"State 0 to {most:,} seconds.")
        else:
            setattr(found, field, value)
    decay = given.get("decay_s", found.decay_s)
    if decay is not None and not 60 <= decay <= MOST_DECAY:
        note(faults, "decay_s", f"State 60 to {MOST_DECAY:,} seconds, or nothing.")
    elif decay is not None and found.ends_at is None:
        note(faults, "decay_s", "A standing reservation is not released by itself.")
    else:
        found.decay_s = decay
    found.idle = given.get("idle", found.idle)
    if found.idle not in Idle.values:
        note(faults, "idle", f"Choose {' or '.join(Idle.values)}.")


def windows_ahead(found: Reservation, now: datetime) -> Iterator[tuple[datetime, datetime | None]]:
    return islice(found.times.between(now, max(now, found.starts_at) + CHECKED_AHEAD), CHECKED)


def _beside_others(found: Reservation, capacity: Capacity, now: datetime) -> Drawn:
    of_type = capacity.by_type[found.gpu_type]
    others = bookings(found.gpu_type, now, but=found if found.pk else None)
    short = shortages(others, windows_ahead(found, now), milli=found.gpus_milli, capacity=of_type)
    if not short:
        return Drawn(found, {}, of_type)
    first = short[0]
    milli = found.gpus_milli
    if found.rule:
        fits: dict[str, Any] = {"milli": milli, "capacity": of_type, "since": now, "begun": found.starts_at < now}
        nearest = nearest_series(others, first.start, lambda move: windows_ahead(_moved(found, move), now), **fits)
    else:
        length = None if found.ends_at is None else found.ends_at - found.starts_at
        nearest = nearest_start(others, found.starts_at, length, milli=milli, capacity=of_type, since=now)
    return Drawn(found, {"gpus": [_short_said(found, first, len(short), nearest)]}, of_type, tuple(short), nearest)


def _moved(found: Reservation, move: timedelta) -> Reservation:
    ends_at = None if found.ends_at is None else found.ends_at + move
    return Reservation(zone=found.zone, starts_at=found.starts_at + move, ends_at=ends_at, rule=found.rule)


def _short_said(found: Reservation, first: Shortage, count: int, nearest: datetime | None) -> str:
    names = list(dict.fromkeys(one.name for one in first.peak.bookings))
    whose = f" by {', '.join(names[:4])}{' and others' if len(names) > 4 else ''}" if names else ""
    text = (
        f"{said(first.asked)} GPUs asked, {said(first.left)} left: {said(first.capacity)} {found.gpu_type} GPUs are healthy, "
        f"{said(first.peak.milli)} reserved{whose} at {first.peak.at:%Y-%m-%d %H:%M} UTC."
    )
    if count > 1:
        text += f" {count} of its windows do not fit."
    if nearest is not None:
        text += f" The nearest start that fits is {nearest:%Y-%m-%d %H:%M} UTC."
    elif not found.rule:
        text += f" At most {said(first.left)} GPUs fit then."
    return text

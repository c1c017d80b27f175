"""Who holds what a limit lets a part of the tree have: a job that waits for a limit waits until enough of it is given back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Min, Q, Sum

from quotas.permissions import Access, Can
from scheduler.models import Outlook
from scheduler.selectors.holders import open_placements
from scheduler.speeds import seconds_at, speed_on

SHOWN = 5


@dataclass(frozen=True, slots=True)
class LimitHolder:
    """A job that counts against a limit. Who it is stays empty where the reader may not know."""

    job_id: str
    job_name: str
    quota: str
    named: bool
    gpus_milli: int
    ends_at: datetime | None  # by its limit or estimate; None: nobody knows


@dataclass(frozen=True, slots=True)
class LimitHolders:
    """Who leaves first, how many others there are, and when enough will have left; None: nobody knows."""

    first: Sequence[LimitHolder]
    others: int
    enough_at: datetime | None


def limit_holders(access: Access, outlook: Outlook | None, now: datetime) -> list[LimitHolders | None]:
    """For each reason of an outlook who holds the GPUs that it counts as used: None where it is about no limit, or nobody holds any."""
    return [_held(access, reason, now) for reason in outlook.reasons] if outlook else []


def _held(access: Access, reason: Mapping[str, Any], now: datetime) -> LimitHolders | None:
    if reason.get("code") != "limit" or "quota" not in reason:
        return None
    path = reason["quota"]
    held = open_placements().filter(Q(job__quota__path=path) | Q(job__quota__path__startswith=f"{path}/"))
    if reason.get("type"):
        held = held.filter(gpu__gpu_type_id=reason["type"])
    rows = held.values_list(
        "job__public_id",
        "job__name",
        "job__quota__path",
        "job__spec",
        "job__estimate_seconds",
        "job__limit_seconds",
        "attempt__running_at",
    ).annotate(Sum("gpu_milli"), Min("gpu__gpu_type_id"))
    holders = [_holder(access, now, *row) for row in rows.order_by("job__public_id")]
    if not holders:
        return None
    holders.sort(key=lambda holder: (holder.ends_at is None, holder.ends_at or now))
    return LimitHolders(holders[:SHOWN], max(0, len(holders) - SHOWN), _enough_at(holders, reason))


def _holder(access: Access, now: datetime, public_id: str, name: str, path: str, *rest: Any) -> LimitHolder:
    spec, estimate, limit, running_at, milli, gpu_type = rest
    ends_at = _ends_at(running_at or now, seconds_at(speed_on(spec, gpu_type or ""), estimate, limit), limit, now)
    if access.can(Can.SEE, path):
        return LimitHolder(public_id, name, path, True, milli, ends_at)
    return LimitHolder("", "", "", False, milli, ends_at)


def _ends_at(started: datetime, expected: int | None, limit: int | None, now: datetime) -> datetime | None:
    """By its estimate, or, where it has outlived that, by its limit."""
    for seconds in (expected, limit):
        if seconds is not None and started + timedelta(seconds=seconds) > now:
            return started + timedelta(seconds=seconds)
    return None


def _enough_at(holders: Sequence[LimitHolder], reason: Mapping[str, Any]) -> datetime | None:
    missing = round(1000 * (reason["used"] + reason["needed"] - reason["limit"]))
    for holder in holders:
        missing -= holder.gpus_milli
        if missing <= 0:
            return holder.ends_at
    return None

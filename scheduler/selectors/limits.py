"""Who holds what a limit lets a part of the tree have: a job that waits for a limit waits until enough of it is given back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Q, Sum

from quotas.permissions import Access, Can, is_within
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
    """For each reason of an outlook who holds the GPUs that it counts as used: None where it is about no limit, or nobody holds any. One query."""
    reasons = outlook.reasons if outlook else []
    limits = [reason for reason in reasons if _is_limit(reason)]
    held = _held(access, limits, now) if limits else []
    return [_holders([one for one in held if _counts(one, reason)], reason, now) if _is_limit(reason) else None for reason in reasons]


@dataclass(frozen=True, slots=True)
class _Held:
    """What a job holds of one GPU type, and where in the tree."""

    path: str
    gpu_type: str
    holder: LimitHolder


def _is_limit(reason: Mapping[str, Any]) -> bool:
    return reason.get("code") == "limit" and "quota" in reason


def _counts(held: _Held, reason: Mapping[str, Any]) -> bool:
    return is_within(held.path, reason["quota"]) and reason.get("type") in (None, held.gpu_type)


def _held(access: Access, limits: Sequence[Mapping[str, Any]], now: datetime) -> list[_Held]:
    below = Q()
    for path in {reason["quota"] for reason in limits}:
        below |= Q(job__quota__path=path) | Q(job__quota__path__startswith=f"{path}/")
    rows = (
        open_placements()
        .filter(below)
        .values_list(
            "job__quota__path",
            "gpu__gpu_type_id",
            "job__public_id",
            "job__name",
            "job__spec",
            "job__estimate_seconds",
            "job__limit_seconds",
            "attempt__running_at",
        )
        .annotate(Sum("gpu_milli"))
        .order_by("job__public_id")
    )
    return [_Held(path, kind or "", _holder(access, now, path, kind or "", *facts)) for path, kind, *facts in rows]


def _holders(held: Sequence[_Held], reason: Mapping[str, Any], now: datetime) -> LimitHolders | None:
    """Who leaves first in front."""
    holders = sorted((one.holder for one in held), key=lambda holder: (holder.ends_at is None, holder.ends_at or now))
    return LimitHolders(holders[:SHOWN], max(0, len(holders) - SHOWN), _enough_at(holders, reason)) if holders else None


def _holder(access: Access, now: datetime, path: str, gpu_type: str, public_id: str, name: str, *rest: Any) -> LimitHolder:
    spec, estimate, limit, running_at, milli = rest
    ends_at = _ends_at(running_at or now, seconds_at(speed_on(spec, gpu_type), estimate, limit), limit, now)
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

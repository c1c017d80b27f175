"""What power caps and energy rates have in common over HTTP: a pool, and times."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

from ninja import Schema
from pydantic import Field

from gpufleet.core.taken import Taken
from scheduler.models import EnergyRate, PowerCap
from scheduler.selectors.power import next_of


class PooledOut(Schema):
    id: str
    pool: str
    zone: str
    starts_at: datetime
    ends_at: datetime | None
    rule: str
    note: str
    next_start: datetime | None
    next_end: datetime | None
    revision: int


class PooledIn(Taken):
    pool: str = Field("", max_length=60, description="Empty: the whole fleet.")
    zone: str = Field("UTC", max_length=100)
    starts_at: datetime | None = Field(None, description="Null: now.")
    ends_at: datetime | None = Field(None, description="Null: standing.")
    rule: str = Field("", max_length=300, description="RFC 5545, over the clock of the zone.")
    note: str = Field("", max_length=200)
    reason: str = Field("", max_length=280)


class PooledChange(Taken):
    pool: str | None = Field(None, max_length=60)
    zone: str | None = Field(None, max_length=100)
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    rule: str | None = Field(None, max_length=300)
    note: str | None = Field(None, max_length=200)
    reason: str = Field("", max_length=280)


def pooled_told(one: PowerCap | EnergyRate, moment: datetime) -> dict[str, Any]:
    span = next_of(one, moment)
    return {name: getattr(one, name) for name in ("pool", "zone", "starts_at", "ends_at", "rule", "note", "revision")} | {
        "id": one.public_id,
        "next_start": None if span is None else span[0],
        "next_end": None if span is None else span[1],
    }


def changed_of(body: PooledChange, may_be_null: Collection[str] = ()) -> dict[str, Any]:
    """What a change names. An end of null is none; other nulls count as not named, but for those that may be."""
    return {key: value for key, value in body.dict(exclude_unset=True).items() if value is not None or key in ("ends_at", *may_be_null)}

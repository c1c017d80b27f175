"""Power over HTTP: caps of pools, rated watts, and what is drawn."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.api.lists import ReasonQuery
from scheduler.api.pooled import PooledChange, PooledIn, PooledOut, changed_of, pooled_told
from scheduler.models import PowerCap
from scheduler.selectors.power import any_in_force, cap_for, caps_listed, power_now, ratings
from scheduler.services.power import cap_change, cap_remove, cap_set, rating_set
from scheduler.services.windows.previews import snapshot_now

router = Router(tags=["Power"])


class PowerCapOut(PooledOut):
    """Times of a rule are by the clock of its zone. `next_start` and `next_end`: when it applies now or next."""

    watts: int


class PowerPoolOut(Schema):
    """A capped pool now, in watts."""

    pool: str
    gpus: int
    rated_watts: int
    drawn_watts: int
    cap_watts: int | None


class PowerRatingOut(Schema):
    gpu_type: str
    watts: int
    source: str
    gpus: int


class PowerOut(Schema):
    caps: list[PowerCapOut]
    pools: list[PowerPoolOut]
    ratings: list[PowerRatingOut]


class PowerCapIn(PooledIn):
    watts: int = Field(ge=0, le=10**10)


class PowerCapChange(PooledChange):
    """What is not named stays; an `ends_at` of null makes it standing."""

    watts: int | None = Field(None, ge=0, le=10**10)


class PowerRatingIn(Taken):
    watts: int | None = Field(None, ge=1, le=100_000, description="Null: as the maker states.")
    reason: str = Field("", max_length=280)


@router.get("/power", response=PowerOut, url_name="power", summary="Power caps and what is drawn")
def power(request: HttpRequest) -> dict[str, Any]:
    access, moment = access_of(request), now()
    caps = list(caps_listed(access))
    pools = power_now(snapshot_now(moment)[0].scenario).values() if any_in_force(moment) else ()
    return {
        "caps": [cap_told(cap, moment) for cap in caps],
        "pools": [
            {"pool": one.pool, "gpus": one.gpus, "rated_watts": one.rated, "drawn_watts": one.drawn, "cap_watts": one.cap}
            for one in sorted(pools, key=lambda one: one.pool)
        ],
        "ratings": [rating_told(one) for one in ratings(access)],
    }


@router.post("/power/caps", response={201: PowerCapOut}, url_name="power_caps", summary="Set a power cap")
def power_cap_make(request: HttpRequest, body: PowerCapIn) -> Status[dict[str, Any]]:
    """By operators. Jobs that run stay; nothing that would exceed it starts."""
    return Status(201, cap_told(cap_set(access=access_of(request), given=body.dict(), now=now()), now()))


@router.get("/power/caps/{public_id}", response=PowerCapOut, url_name="power_cap", summary="A power cap")
def power_cap(request: HttpRequest, public_id: str, response: HttpResponse) -> dict[str, Any]:
    found = cap_for(access_of(request), public_id)
    stamped(response, found.revision)
    return cap_told(found, now())


@router.patch("/power/caps/{public_id}", response=PowerCapOut, url_name="power_cap", openapi_extra=IF_MATCH, summary="Change a power cap")
def power_cap_update(request: HttpRequest, public_id: str, body: PowerCapChange, response: HttpResponse) -> dict[str, Any]:
    access = access_of(request)
    found = cap_change(access=access, one=cap_for(access, public_id), given=changed_of(body), revision=revision_wanted(request), now=now())
    stamped(response, found.revision)
    return cap_told(found, now())


@router.delete("/power/caps/{public_id}", response={204: None}, url_name="power_cap", openapi_extra=IF_MATCH, summary="Remove a power cap")
def power_cap_delete(request: HttpRequest, public_id: str, query: Query[ReasonQuery]) -> Status[None]:
    access = access_of(request)
    cap_remove(access=access, one=cap_for(access, public_id), reason=query.reason, revision=revision_wanted(request), now=now())
    return Status(204, None)


@router.put("/power/ratings/{gpu_type}", response=PowerRatingOut, url_name="power_rating", summary="State the rated power of a GPU type")
def power_rating(request: HttpRequest, gpu_type: str, body: PowerRatingIn) -> dict[str, Any]:
    access = access_of(request)
    rating_set(access=access, gpu_type=gpu_type, watts=body.watts, reason=body.reason)
    return rating_told(next(one for one in ratings(access, every=True) if one.gpu_type == gpu_type))


def rating_told(one: Any) -> dict[str, Any]:
    return {"gpu_type": one.gpu_type, "watts": one.watts, "source": one.source, "gpus": one.gpus}


def cap_told(cap: PowerCap, moment: datetime) -> dict[str, Any]:
    return pooled_told(cap, moment) | {"watts": cap.watts}
